"""`forebay validate MODULE`: check declarations, and where a driver log is, what they need. It changes nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import sqlalchemy as sa
import typer

from forebay.cli.checks.findings import Finding, Health, all_well, findings_table
from forebay.cli.checks.sink_checks import check_sink
from forebay.cli.checks.source_checks import check_declaration, check_source
from forebay.cli.instance.database import database_url, naming_the_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import clear_errors
from orchestration.declarations.apply import declared_streams, difference, refuse, refuse_to_share
from orchestration.declarations.modules import PipelineModuleError, load_pipelines
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.batches.pipelines import list_streams
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.connection.engine import connect_once
from tracker_store.connection.errors import DriverLogError, SharedPlaceError
from tracker_store.reports.status import receiver_status
from tracker_store.schema.states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestration.declarations.pipeline import Pipeline, Stream

_APPLICATION = "forebay validate"


def validate(
    module: Annotated[
        str | None,
        typer.Argument(
            help="The module (or .py file) that declares your pipelines; unless given, FOREBAY_MODULE or the project's."
        ),
    ] = None,
    offline: Annotated[  # noqa: FBT002
        bool, typer.Option("--offline", help="Only the declarations: ask no driver log, no source and no sink.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Check a module's streams, pipelines and outputs, and change nothing. Exits with 1 if something fails.

    Declarations are checked always. With a driver log (FOREBAY_DATABASE_URL, or the one of `forebay up` in this home)
    also: whether sources answer and listeners can listen, from this host; whether sinks may be written to, by this
    user; and what `forebay apply` would change, or refuse.

    For example:

        forebay validate my_pipeline
        forebay validate my_pipeline.py --offline --json
    """
    with clear_errors(Console(highlight=False, stderr=True)):
        named = module or Settings().require_module()
    findings = list(_examine(named, offline=offline))
    is_well = all_well(findings)
    if as_json:
        typer.echo(json.dumps({"ok": is_well, "findings": [asdict(finding) for finding in findings]}))
    else:
        Console(highlight=False).print(findings_table(findings))
    if not is_well:
        raise typer.Exit(1)


def _examine(module: str, *, offline: bool) -> Iterator[Finding]:
    try:
        pipelines = load_pipelines(module)
    except PipelineModuleError as error:
        yield Finding("declarations", Health.FAILED, str(error), "Correct the module.")
        return
    except Exception as error:  # noqa: BLE001  whatever a user's module raises when it is imported
        found = f"module {module!r} fails when it is imported: {type(error).__name__}: {error}"
        yield Finding("declarations", Health.FAILED, found, "Import it in Python to see where.")
        return
    streams = declared_streams(pipelines)
    outputs = [output for pipeline in pipelines for output in pipeline.outputs.values()]
    said = f"{len(pipelines)} pipeline(s), {len(streams)} stream(s), {len(outputs)} output(s)"
    yield Finding("declarations", Health.OK, f"{module}: {said}")
    yield from _conflicts(pipelines, streams)
    for stream in streams:
        yield from check_declaration(stream)
    if offline:
        return
    try:
        url = database_url(Settings())
    except DatabaseUrlMissingError:
        yield Finding("driver log", Health.OK, "there is none: sources, sinks and what is applied were not looked at")
        return
    except DriverLogError as error:
        yield Finding("driver log", Health.WARNING, f"not compared: {error}", "Start it, or say --offline.")
        return
    running: set[str] = set()
    try:
        with naming_the_log(url), connect_once(url, application_name=_APPLICATION) as connection:
            running = {row.stream for row in receiver_status(connection) if row.state == ReceiverState.ACTIVE}
            yield from _compare(connection, pipelines, streams)
    except (DriverLogError, sa.exc.SQLAlchemyError) as error:
        yield Finding("driver log", Health.FAILED, f"not compared: {error}", "`forebay doctor` looks at it.")
    for stream in streams:
        yield from check_source(stream, running=running)
    for output in outputs:
        yield check_sink(output)


def _conflicts(pipelines: Sequence[Pipeline], streams: Sequence[Stream]) -> Iterator[Finding]:
    """Yield what two declarations of the module can't both have: a stream's name, a listener's address, a place."""
    by_name = {stream.name: stream for stream in streams}
    for other in {id(stream): stream for pipeline in pipelines for stream in pipeline.streams}.values():
        if other.declaration() != by_name[other.name].declaration():
            found = f"two streams have the name {other.name!r}, and different declarations"
            yield Finding(
                f"stream {other.name}", Health.FAILED, found, "Declare it once, and let both pipelines use it."
            )
    listening = defaultdict(list)
    for stream in streams:
        if stream.source.is_listener:
            listening[stream.source.address].append(stream.name)
    for address, names in listening.items():
        if len(names) > 1 and not address.endswith(":0"):
            found = f"the streams {', '.join(names)} listen at the same address, {address}"
            yield Finding("streams", Health.FAILED, found, "Give each a port of its own.")
    try:
        refuse_to_share(pipelines, {})
    except SharedPlaceError as error:
        yield Finding("outputs", Health.FAILED, str(error), "Give each output a place of its own.")


def _compare(connection: sa.Connection, pipelines: Sequence[Pipeline], streams: Sequence[Stream]) -> Iterator[Finding]:
    """Yield what `forebay apply` would change or refuse, and columns whose types differ from those of older blocks."""
    try:
        refuse(connection, pipelines)
    except DriverLogError as error:
        yield Finding("driver log", Health.FAILED, str(error), "`forebay apply` refuses it: see the message.")
    changes = difference(connection, pipelines)
    for change in changes:
        keys = ", ".join(key for key, _, _ in change.details)
        found = "is new" if change.action == "add" else f"differs from what is applied: {keys}"
        yield Finding(f"{change.kind} {change.name}", Health.OK, f"{found}; `forebay apply` writes it")
    if not changes:
        yield Finding("driver log", Health.OK, "code and driver log agree")
    applied = {row.name: row.stream_id for row in list_streams(connection)}
    for stream in streams:
        columns = dict(getattr(type(stream.source), "columns", ()))
        if stream.name not in applied:
            continue
        # In order of versions, so that the first one that has a column with its type is named.
        older: dict[str, tuple[str, str, int]] = {}
        for version in schemas_of_stream(connection, applied[stream.name]):
            for name, kind in version.columns:
                older.setdefault(name.lower(), (name, kind, version.version))
        for name, kind in columns.items():
            before = older.get(name.lower())
            if before is not None and before[:2] != (name, kind):
                found = (
                    f"column {name} is {kind}, and the stream has {before[0]} as {before[1]} since version {before[2]}"
                )
                way_out = "A column keeps its type: give the stream another name."
                yield Finding(f"stream {stream.name}", Health.FAILED, found, way_out)
