"""`forebay validate MODULE`: check declarations, and where a driver log is, what they need. All stays as it was."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Self

import sqlalchemy as sa
import typer

from forebay.cli.checks.definitions_check import check_definitions
from forebay.cli.checks.findings import Finding, Health, all_well, findings_table
from forebay.cli.checks.own_ports import pids_of_home
from forebay.cli.checks.plan_checks import Columns, check_plans
from forebay.cli.checks.sink_checks import check_event_time, check_needs, check_sink
from forebay.cli.checks.source_checks import (
    check_declaration,
    check_listening,
    check_registries,
    check_source,
    listens_at,
)
from forebay.cli.instance.database import database_url, naming_the_log
from forebay.cli.services.running_module import UNLESS_GIVEN, left_to_a_person, named_module
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import clear_errors
from orchestration.declarations.apply import (
    declared_streams,
    difference,
    refuse,
    refuse_to_share,
    rename_hints,
)
from orchestration.declarations.asked_targets import ask_targets
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.modules import PipelineModuleError, load_pipelines
from orchestration.declarations.questions import NOTHING_DECIDED, undecided
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from orchestration.spark.reading.batch_reader import declared_columns
from receiver_runtime.block_store.frames.columns import union
from receiver_runtime.sources.source import SourceError
from tracker_store.batches.pipelines import list_streams
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.connection.engine import connect_once
from tracker_store.connection.errors import DriverLogError, SharedPlaceError
from tracker_store.receivers.processes import receiver_pids

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql.types import StructType

    from orchestration.declarations.apply import Change
    from orchestration.declarations.pipeline import Output, Pipeline, Stream

_APPLICATION = "forebay validate"
_LEAST_SHARERS = 2
_SHORT = timedelta(seconds=2)  # the least interval that leaves a batch time beyond its fixed cost


def validate(
    module: Annotated[
        str | None,
        typer.Argument(help=f"The module (or .py file) that declares your pipelines; {UNLESS_GIVEN}."),
    ] = None,
    offline: Annotated[  # noqa: FBT002
        bool, typer.Option("--offline", help="Ask no driver log, no source and no sink. A busy port is a warning.")
    ] = False,
    plans: Annotated[  # noqa: FBT002
        bool, typer.Option("--plans/--no-plans", help="Run outputs' functions on empty frames, in a local Spark.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Check a module's streams, pipelines and outputs, and leave all as it was. Exits with 1 if something fails.

    Declarations are checked always, and whether the packages that sinks need are installed. The project's own Dagster
    definitions are loaded, if it names a module of them. A port at which a stream would listen must be free on this
    host, or held by a receiver of this installation. Each output's function runs on empty frames with the columns of
    its streams, so that Spark analyses its plan, and its sink sees the names and types of the result. No sink is
    called; nor is the function of a ForeachBatchSink. Of an output by event time it says which windows its sink gets.
    Unless --offline: whether sinks may be written to, by this user, and the results fit their targets.

    With a driver log (FOREBAY_DATABASE_URL, or the one of `forebay up` in this home) also: whether sources and schema
    registries answer from this host, and what `forebay apply` would change, or refuse.

    For example:

        forebay validate my_pipeline
        forebay validate my_pipeline.py --offline --json
    """
    with clear_errors(Console(highlight=False, stderr=True)):
        named = named_module(module, Settings())
    findings = list(_examine(named, offline=offline, plans=plans))
    is_well = all_well(findings)
    if as_json:
        typer.echo(json.dumps({"ok": is_well, "findings": [asdict(finding) for finding in findings]}))
    else:
        Console(highlight=False).print(findings_table(findings))
    if not is_well:
        raise typer.Exit(1)


def _examine(module: str, *, offline: bool, plans: bool) -> Iterator[Finding]:
    try:
        pipelines = load_pipelines(module)
    except PipelineModuleError as error:
        yield Finding("declarations", Health.FAILED, str(error), "Correct the module.")
        return
    streams = declared_streams(pipelines)
    outputs = [output for pipeline in pipelines for output in pipeline.outputs.values()]
    said = f"{len(pipelines)} pipeline(s), {len(streams)} stream(s), {len(outputs)} output(s)"
    yield Finding("declarations", Health.OK, f"{module}: {said}")
    yield from check_definitions(module, pipelines)
    conflicts = {finding.found: finding for finding in _conflicts(pipelines, streams)}
    yield from conflicts.values()
    yield from _short_intervals(pipelines)
    for stream in streams:
        yield from check_declaration(stream)
    needs = {output: list(check_needs(output)) for output in outputs}
    yield from (finding for found in needs.values() for finding in found)
    yield from (finding for output in outputs for finding in check_event_time(output))
    log = _DriverLog.nowhere() if offline else _ask_driver_log(module, pipelines, streams)
    # A place that two outputs share is refused with the same words.
    yield from (finding for finding in log.findings if finding.found not in conflicts)
    schemas: dict[Output, StructType] = {}
    if plans:
        planned = check_plans(outputs, _known_columns(streams, log.columns))
        yield from planned.findings
        schemas = planned.schemas
    for stream in streams:
        listening = check_listening(stream, ours=log.own_pids, is_here=not offline)
        # Offline, another host may be the one that receives: what is well here says nothing.
        yield from (found for found in listening if not offline or found.health is not Health.OK)
        if log.is_asked:
            yield from check_source(stream)
            if stream.records is not None:
                known = union(*log.columns.get(stream.name, ()))
                yield from check_registries(f"stream {stream.name}", stream.source, stream.records, known)
    if offline:
        return
    for output, missing in needs.items():
        if not missing:
            yield check_sink(output, schemas.get(output), log.steps.get(output, ""))


@dataclass(frozen=True, slots=True)
class _DriverLog:
    """Hold what the driver log says: findings, registered columns of streams, and steps that changed sinks need.

    `url`: where it is, if it was asked.
    """

    findings: list[Finding]
    url: str | None = None
    columns: dict[str, list[Columns]] = field(default_factory=dict)
    steps: dict[Output, str] = field(default_factory=dict)

    @classmethod
    def nowhere(cls, *findings: Finding) -> Self:
        return cls([*findings])

    @property
    def is_asked(self) -> bool:
        """Return whether there is one, whether it answered or not."""
        return self.url is not None

    def own_pids(self) -> set[int]:
        """Return the pids of this installation's receivers now: a reload may have replaced some meanwhile.

        Without an answer of the driver log, of all that this home's `forebay up` has started.
        """
        with suppress(DriverLogError, sa.exc.SQLAlchemyError):
            if self.url is not None:
                with connect_once(self.url, application_name=_APPLICATION) as connection:
                    return receiver_pids(connection)
        return pids_of_home(Settings().home)


def _ask_driver_log(module: str, pipelines: Sequence[Pipeline], streams: Sequence[Stream]) -> _DriverLog:
    try:
        url = database_url(Settings())
    except DatabaseUrlMissingError:
        found = "there is none: other programs' addresses and what is applied were not looked at"
        return _DriverLog.nowhere(Finding("driver log", Health.OK, found))
    except DriverLogError as error:
        found = f"not compared: {error}"
        return _DriverLog.nowhere(Finding("driver log", Health.WARNING, found, "Start it, or say --offline."))
    log = _DriverLog([], url)
    try:
        with naming_the_log(url), connect_once(url, application_name=_APPLICATION) as connection:
            changes = difference(connection, pipelines)
            log.findings.extend(_compare(connection, module, pipelines, changes))
            log.steps.update(ask_targets(connection, pipelines).steps)
            declared = {stream.name for stream in streams}
            for row in list_streams(connection):
                if row.name in declared and (registered := schemas_of_stream(connection, row.stream_id)):
                    log.columns[row.name] = [schema.columns for schema in registered]
    except (DriverLogError, sa.exc.SQLAlchemyError) as error:
        found = f"not compared: {error}"
        log.findings.append(Finding("driver log", Health.FAILED, found, "`forebay doctor` looks at it."))
    return log


def _known_columns(streams: Sequence[Stream], registered: Mapping[str, list[Columns]]) -> dict[str, Columns]:
    """Return the columns that a batch of each stream has; a stream of which they are not known here is left out."""
    known: dict[str, Columns] = {}
    for stream in streams:
        versions = [*registered.get(stream.name, ())]
        # A class that can't be loaded is a finding of its own.
        with suppress(SourceError):
            versions.append(declared_columns(stream.source, stream.name, stream.records))
        if versions:
            known[stream.name] = union(*versions)
    return known


def _short_intervals(pipelines: Sequence[Pipeline]) -> Iterator[Finding]:
    for pipeline in pipelines:
        if pipeline.interval < _SHORT and pipeline.catch_up != "merge":
            seconds = f"{pipeline.interval.total_seconds():g} s"
            found = (
                f"its interval of {seconds} is short: a batch is a run of Dagster, of half a second and more whatever "
                "it computes, and batches that take longer than the interval fall behind"
            )
            way_out = f'Take {_SHORT.total_seconds():g} s or more, or catch_up="merge", which makes one batch of many.'
            yield Finding(f"pipeline {pipeline.name}", Health.WARNING, found, way_out)


def _conflicts(pipelines: Sequence[Pipeline], streams: Sequence[Stream]) -> Iterator[Finding]:
    """Yield what two declarations of the module can't both have: a stream's name, a listener's address, a place."""
    by_name = {stream.name: stream for stream in streams}
    for other in {id(stream): stream for pipeline in pipelines for stream in pipeline.streams}.values():
        if other.declaration() != by_name[other.name].declaration():
            found = f"two streams have the name {other.name!r}, and different declarations"
            yield Finding(
                f"stream {other.name}", Health.FAILED, found, "Declare it once, and let both pipelines use it."
            )
    yield from _shared_addresses([stream for stream in streams if stream.source.is_listener])
    try:
        refuse_to_share(pipelines, {})
    except SharedPlaceError as error:
        yield Finding("outputs", Health.FAILED, str(error), "Give each output a place of its own.")


def _shared_addresses(streams: Sequence[Stream]) -> Iterator[Finding]:
    """Yield which listeners have an address that they can't share, each set of them once, with their kinds."""
    places = {stream.name: listens_at(stream.source) for stream in streams}
    found: dict[tuple[str, ...], Finding] = {}
    for stream in streams:
        for place in places[stream.name]:
            here = [other for other in streams if any(map(place.overlaps, places[other.name]))]
            _add_conflict(found, f"{place}", here)
        if not places[stream.name]:
            # A kind of another package may listen in its own way.
            address = stream.source.address
            _add_conflict(found, address, [other for other in streams if other.source.address == address])
    yield from found.values()


def _add_conflict(found: dict[tuple[str, ...], Finding], address: str, here: Sequence[Stream]) -> None:
    """Add why streams can't listen at one address, if they can't share it."""
    if len(here) < _LEAST_SHARERS or address.endswith(":0"):
        return
    parts = {stream.source.address_part for stream in here}
    names = ", ".join(f"{stream.name} ({stream.source.kind})" for stream in here)
    said, way_out = f"the streams {names} listen at the same address, {address}", "Give each a port of its own."
    if "" not in parts and len(parts) == len(here):
        if len({stream.source.address_terms for stream in here}) == 1:
            return
        said += ", and differ in listen, tls or tokens"
        way_out = "Give all of them the same, or each a port of its own."
    found.setdefault(tuple(sorted(stream.name for stream in here)), Finding("streams", Health.FAILED, said, way_out))


def _compare(
    connection: sa.Connection, module: str, pipelines: Sequence[Pipeline], changes: Sequence[Change]
) -> Iterator[Finding]:
    """Yield what `forebay apply` would change or refuse, and what it asks for."""
    try:
        refuse(connection, pipelines)
    except (DeclarationError, DriverLogError) as error:
        yield Finding("driver log", Health.FAILED, str(error), "`forebay apply` refuses it: see the message.")
    else:
        if unclear := undecided(connection, pipelines, changes, NOTHING_DECIDED, f"forebay apply {module}"):
            yield Finding("driver log", Health.FAILED, "`forebay apply` asks first, and writes nothing", unclear)
    hints = rename_hints(connection, pipelines) + left_to_a_person(connection, module, pipelines, Settings())
    for hint in hints:
        yield Finding("driver log", Health.WARNING, hint)
    for change in changes:
        yield Finding(f"{change.kind} {change.name}", Health.OK, _shown(change))
    if not changes:
        yield Finding("driver log", Health.OK, "code and driver log agree")


def _shown(change: Change) -> str:
    match change.action:
        case "add":
            return "is new, and not applied yet"
        case "stop":
            return "nothing would read it any more, and its receivers would stop"
        case _:
            return f"differs from what is applied: {', '.join(key for key, _, _ in change.details)}"
