"""Compares declarations with the driver log, and writes them there.

Refuses a change that would leave blocks that nothing reads. Idempotent.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.pipeline import PER_HOST
from orchestration.declarations.renames import idle_renames, refuse_to_rename, removal, renames
from orchestration.declarations.sink import place_of
from receiver_runtime.sources.plugins import PluginError
from receiver_runtime.sources.records.ddl import type_name
from receiver_runtime.sources.source import SourceError
from tracker_store.batches import pipelines as store
from tracker_store.batches.streams import stream_overview
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.connection.errors import SharedPlaceError, StrandingChangeError
from tracker_store.schema.declarations import RECORDS_FIELD, PipelineDeclaration, StreamDeclaration
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline, Stream
    from receiver_runtime.sources.source import Source

log = structlog.get_logger(__name__)
#: The detail of a renamed stream whose name is in its senders' URLs.
SENDERS_PATH = "path in senders' URLs"
_STRANDED = (
    "If it has another name now: Stream(…, renamed_from={0!r}). If it is to go: while the pipeline reads it, "
    "`forebay receivers stop {0}` (no pipeline gets more of it then), and take it out when `forebay status` shows that "
    "nothing of it waits and no batch is unfinished."
)
# A pipeline that some code has is decided at each of its intervals, except while that code starts again.
_IDLE, _IDLE_INTERVALS = timedelta(seconds=30), 3


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a difference: `details` are (key, old, new).

    `action` is "add", "change", "rename", or "stop": nothing reads the stream any more, so that its receivers stop.
    """

    kind: str
    name: str
    action: str
    details: tuple[tuple[str, Any, Any], ...] = ()


def _flatten(declaration: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in declaration.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def changed_keys(old: dict[str, Any], new: dict[str, Any]) -> tuple[tuple[str, Any, Any], ...]:
    """Return what differs between two declarations, as (key, old, new)."""
    before, after = _flatten(old), _flatten(new)
    return tuple(
        (key.replace(f"source.{RECORDS_FIELD}.", "records."), before.get(key), after.get(key))
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    )


def declared_streams(pipelines: Iterable[Pipeline]) -> list[Stream]:
    """Return each stream of `pipelines` once, by name."""
    return sorted(
        {stream.name: stream for pipeline in pipelines for stream in pipeline.streams}.values(),
        key=lambda stream: stream.name,
    )


def difference(connection: sa.Connection, pipelines: Iterable[Pipeline]) -> list[Change]:
    """Return what `apply` would write; empty when code and driver log agree."""
    pipelines = list(pipelines)
    changes: list[Change] = []
    applied_streams = {row.name: row.declaration for row in store.list_streams(connection)}
    rows = {row.name: row for row in store.list_pipelines(connection)}
    applied_pipelines = {row.name: row.declaration for row in rows.values()}
    streams = declared_streams(pipelines)
    by_name = {stream.name: stream for stream in streams}
    renamed = renames(streams, applied_streams)
    declared = [("stream", s.name, s.declaration(), applied_streams) for s in streams]
    declared += [("pipeline", p.name, p.declaration(), applied_pipelines) for p in pipelines]
    for kind, name, declaration, applied in declared:
        if kind == "stream" and name in renamed:
            old = renamed[name]
            moved = (("name", old, name), *_moved_path(by_name[name].source, old, name))
            changes.append(Change(kind, name, "rename", (*moved, *changed_keys(applied[old], declaration))))
        elif name not in applied:
            changes.append(Change(kind, name, "add"))
        elif details := changed_keys(applied[name], declaration):
            changes.append(Change(kind, name, "change", details))
    lost = _lost(pipelines, rows) - {*renamed.values()}
    return changes + _stops(connection, {name: applied_streams[name] for name in lost & applied_streams.keys()})


def _moved_path(source: Source, old: str, new: str) -> list[tuple[str, Any, Any]]:
    path = source.path_of(new)
    return [] if path is None else [(SENDERS_PATH, source.path_of(old), path)]


def _lost(pipelines: Sequence[Pipeline], rows: Mapping[str, store.PipelineRow]) -> set[str]:
    """Return the streams of these pipelines that no pipeline would read any more."""
    own = {pipeline.name for pipeline in pipelines}
    before = streams_read(rows.values())
    after = {stream.name for stream in declared_streams(pipelines)}.union(
        *(names for pipeline, names in before.items() if pipeline not in own)
    )
    return set().union(*(names for pipeline, names in before.items() if pipeline in own)) - after


def _stops(connection: sa.Connection, lost: Mapping[str, dict[str, Any]]) -> list[Change]:
    """Return a change for each of these applied streams that nothing else reads, with what stops."""
    if not lost:
        return []
    listens = {name: declaration["source"].get("listen") for name, declaration in lost.items()}
    return [
        Change(
            "stream",
            row.stream,
            "stop",
            (
                ("receivers", row.receivers, 0),
                ("records", row.stored_records, None),
                *([("listen", listens[row.stream], None)] if listens[row.stream] else []),
            ),
        )
        for row in stream_overview(connection)
        if row.stream in lost and not row.readers
    ]


def _streams_of(row: store.PipelineRow) -> set[str]:
    return {*PipelineDeclaration.of(row.declaration).streams}


def streams_read(rows: Iterable[store.PipelineRow]) -> dict[str, set[str]]:
    """Return the streams that each of these pipelines reads."""
    return {row.name: _streams_of(row) for row in rows}


def is_applied(connection: sa.Connection, pipeline: Pipeline) -> bool:
    """Return whether the driver log holds exactly this declaration of the pipeline and its streams."""
    return not difference(connection, [pipeline])


def apply(connection: sa.Connection, pipelines: Iterable[Pipeline]) -> list[Change]:
    """Write the declarations; return what was changed.

    Raises DeclarationError, StrandingChangeError or SharedPlaceError before writing anything.
    """
    pipelines = list(pipelines)
    changes = difference(connection, pipelines)
    refuse(connection, pipelines)
    changed = {change.name for change in changes if change.kind == "stream"}
    stream_ids = {
        stream.name: store.apply_stream(
            connection,
            name=stream.name,
            declaration=stream.declaration(),
            # One per host: the tracker adds a receiver when an agent starts on a new host.
            receivers=None if stream.receivers == PER_HOST else stream.receivers,
            retention=stream.retention,
            preferred_host=_preferred_host(stream) if stream.name in changed else None,
            renamed_from=stream.renamed_from,
        )
        for stream in declared_streams(pipelines)
    }
    for pipeline in pipelines:
        store.apply_pipeline(
            connection,
            name=pipeline.name,
            declaration=pipeline.declaration(),
            stream_ids=[stream_ids[stream.name] for stream in pipeline.streams],
            interval=pipeline.interval,
            retention=pipeline.kept_for,
            at_latest=pipeline.start == "latest",
            calendar=pipeline.calendar,
        )
    return changes


def refuse(connection: sa.Connection, pipelines: Sequence[Pipeline]) -> None:
    """Raise DeclarationError, StrandingChangeError or SharedPlaceError if `apply` would; write nothing."""
    applied = {row.name: row for row in store.list_streams(connection)}
    before = {row.name: row for row in store.list_pipelines(connection)}
    streams, own = declared_streams(pipelines), {pipeline.name for pipeline in pipelines}
    renamed = renames(streams, applied)
    read = streams_read(before.values())
    others = {name: names for name, names in read.items() if name not in own}
    refuse_to_rename(renamed, {stream.name for stream in streams}, others, read)
    for stream in streams:
        if (row := applied.get(renamed.get(stream.name, stream.name))) is not None:
            _refuse_other_columns(connection, stream, row)
    for pipeline in pipelines:
        if pipeline.name in before:
            _refuse_to_strand(connection, pipeline, before[pipeline.name], applied, renamed)
            _refuse_another_state(pipeline, before[pipeline.name])
    refuse_to_share(pipelines, before)


def _refuse_other_columns(connection: sa.Connection, stream: Stream, row: store.StreamRow) -> None:
    """Refuse a column that the stream has with another type or in other case, and records without one that they had.

    Blocks of all versions are read together. A mistake can be corrected until a receiver has begun with it.
    """
    stored = [column for schema in schemas_of_stream(connection, row.stream_id) for column in schema.columns]
    # The first type of each counts, as for the receivers.
    had = {name.lower(): (name, kind) for name, kind in reversed(stored)}
    source, records = stream.source, stream.records
    columns = source.columns if records is None else records.block_columns(source.columns, source.record_column)
    found = [
        f"{name} {_told(kind, had[name.lower()][1])} is {had[name.lower()][0]} {_told(had[name.lower()][1], kind)} in "
        "the stream"
        for name, kind in columns
        if had.get(name.lower(), (name, kind)) != (name, kind)
    ]
    before = StreamDeclaration.of(row.declaration).records
    # Records that bring their own columns leave none out by declaration.
    if records is not None and before is not None and not records.columns_grow:
        now = {name.lower() for name, _ in columns}
        found += [
            f"{name} {type_name(kind)} is left out"
            for name, kind in before["columns"]
            if name.lower() in had and name.lower() not in now
        ]
    if found:
        message = (
            f"stream {stream.name!r}: {'; '.join(found)}. Its earlier blocks are read together with new ones, so each "
            "column stays: declare it as it is (it is null where a record has none), and give one of another type a "
            "new name. To begin without it, declare a new stream"
        )
        raise DeclarationError(message)


def _refuse_another_state(pipeline: Pipeline, row: store.PipelineRow) -> None:
    """Refuse a state with other columns or buckets and the same version, and a version before the applied one."""
    for name, applied in (row.declaration.get("outputs") or {}).items():
        before, output = applied.get("state"), pipeline.outputs.get(name)
        if not before or output is None or output.state is None:
            continue
        now, where = output.state.declaration(), f"output {name!r} of pipeline {pipeline.name!r}"
        if now["version"] < before["version"]:
            message = f"{where}: its state has version {before['version']}, and {now['version']} is declared: raise it"
            raise DeclarationError(message)
        if now.get("made_of") != before.get("made_of"):
            message = (
                f"{where}: its windows, join or columns of event time were {before.get('made_of')}, and what is kept "
                "for them is of no use to others: declare them as they were, or give the output another name"
            )
            raise DeclarationError(message)
        changed = [part for part in ("key", "value", "buckets") if now[part] != before[part]]
        if changed and now["version"] == before["version"]:
            shown = " and ".join(changed)
            message = (
                f"{where}: the {shown} of its state was {', '.join(str(before[part]) for part in changed)}: declare it "
                f"as it was, or raise version={before['version'] + 1} and give migrate="
            )
            raise DeclarationError(message)
        if now["version"] > before["version"] and output.state.migrate is None:
            message = f"{where}: version={now['version']} of its state needs migrate=, a function from the one before"
            raise DeclarationError(message)


def _told(kind: str, other: str) -> str:
    """Return a type as people declare it, or in full where another one is declared likewise."""
    name = type_name(kind)
    return kind if kind != other and name == type_name(other) else name


def _preferred_host(stream: Stream) -> str | None:
    """Return where the stream's receivers ask to run, so that their first placement follows it (R01).

    A receiver that can't be asked here says it when it first starts, and is moved there then.
    """
    try:
        return stream.source.preferred_host()
    except SourceError as error:
        log.info(
            "the receiver's preferred host is not known before its first start", stream=stream.name, error=str(error)
        )
        return None


def refuse_to_share(pipelines: Sequence[Pipeline], before: Mapping[str, store.PipelineRow]) -> None:
    """Refuse two outputs at one place: outputs there replace batches by batch time alone, so they would overwrite.

    One place within another, as a directory below one, counts too: its readers would get the rows of both.

    `before`: the pipelines of the driver log by name; none to compare the declarations alone. Raises SharedPlaceError.
    """
    declared = {pipeline.name for pipeline in pipelines}
    outputs = [
        (row.name, name, output)
        for row in before.values()
        if row.name not in declared
        for name, output in PipelineDeclaration.of(row.declaration).outputs.items()
    ]
    outputs += [
        (pipeline.name, name, output)
        for pipeline in pipelines
        for name, output in PipelineDeclaration.of(pipeline.declaration()).outputs.items()
    ]
    owners: dict[tuple[str, ...], tuple[str, str]] = {}
    for pipeline, name, output in outputs:
        try:
            place = place_of(output.sink)
        except PluginError as error:
            # It may be another pipeline's, which is not to keep this one from being applied.
            log.warning("an output's place is not compared with others", output=f"{pipeline}.{name}", error=str(error))
            continue
        if place is None:
            continue
        other = next((key for key in owners if overlap(key, place.key)), None)
        if other is None or pipeline not in declared:
            owners.setdefault(place.key, (pipeline, name))
            continue
        owner = owners[other]
        steps = "" if owner[0] in declared else removal(owner[0], streams_read(before.values()))
        gone = f" (if that one is gone: {steps})" if steps else ""
        how = "as" if other == place.key else "and one of the two lies within the other, where"
        raise SharedPlaceError(
            f"output {name!r} of pipeline {pipeline!r} writes to {place.shown}, {how} output {owner[1]!r} of pipeline "
            f"{owner[0]!r} does{gone}"
        )


def overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return whether two places' keys are the same place, or one lies within the other."""
    shared = min(len(one), len(other))
    return one[:shared] == other[:shared]


def _refuse_to_strand(
    connection: sa.Connection,
    pipeline: Pipeline,
    row: store.PipelineRow,
    streams: dict[str, store.StreamRow],
    renamed: Mapping[str, str],
) -> None:
    """Refuse to take a stream from a pipeline while its blocks, or a batch with its records, wait there."""
    # A name that is no stream's is one before a rename that was interrupted: what waits is under the new name.
    for name in (_streams_of(row) & streams.keys()) - {renamed.get(s.name, s.name) for s in pipeline.streams}:
        waiting = store.waiting_records(connection, row.pipeline_id, streams[name].stream_id)
        if waiting:
            raise StrandingChangeError(
                f"pipeline {row.name!r} no longer reads {name}, of which {waiting:,} records wait for a batch of it",
                _STRANDED.format(name),
            )
        unfinished = store.unfinished_records(connection, row.pipeline_id, streams[name].stream_id)
        if unfinished:
            raise StrandingChangeError(
                f"pipeline {row.name!r} no longer reads {name}, of which {unfinished:,} records are in batches of it "
                "that are not finished",
                _STRANDED.format(name),
            )


def rename_hints(connection: sa.Connection, pipelines: Sequence[Pipeline]) -> list[str]:
    """Return a sentence for each stream's `renamed_from` that would rename nothing, and may be meant to."""
    return idle_renames(declared_streams(pipelines), {row.name for row in store.list_streams(connection)})


def absent_pipelines(
    connection: sa.Connection,
    pipelines: Sequence[Pipeline],
    *,
    running: Collection[str] = (),
    lost: Collection[str] = (),
) -> list[str]:
    """Return a sentence on each RUNNING pipeline that is not declared here, and that no other code decides.

    running: the pipelines of the code that runs here. lost: those that it ran until now.
    """
    declared = {pipeline.name for pipeline in pipelines}.union(running)
    # Another module's is decided all the time.
    since = datetime.now(UTC) - _IDLE
    return [
        (
            f"The driver log also has {row.name}, which this module does not declare. No batch is made of it, while "
            "receivers of its streams go on. Put it back into the module, or give up what waits for it, which then "
            f"does not come out: `forebay stop --pipeline {row.name} --timeout 0s`, then `forebay pipelines remove "
            f"{row.name}`."
        )
        for row in store.list_pipelines(connection)
        if row.name not in declared
        and row.state is PipelineState.RUNNING
        and (row.name in lost or row.last_batch_time < since - _IDLE_INTERVALS * row.interval)
    ]


def still_applied(connection: sa.Connection, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``compatibility.declared`` gave, without pipelines and streams that a person has removed since."""
    pipelines = {row.name for row in store.list_pipelines(connection)}
    streams = {row.name for row in store.list_streams(connection)}
    return {
        **before,
        "pipelines": {name: one for name, one in before["pipelines"].items() if name in pipelines},
        "streams": {name: one for name, one in before["streams"].items() if name in streams},
    }
