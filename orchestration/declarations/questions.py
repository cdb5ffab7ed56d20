"""Asks what a person must decide before declarations are written, because the driver log can't know it.

Is a new stream one that is gone, by another name? May records come out where they came out before? Writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.declarations.apply import declared_streams, overlap
from orchestration.declarations.renames import renames
from orchestration.declarations.sink import place_of
from tracker_store.batches import pipelines as store
from tracker_store.batches.streams import stream_overview
from tracker_store.close_names import did_you_mean
from tracker_store.schema.declarations import PipelineDeclaration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from orchestration.declarations.apply import Change
    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.sink import Place

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Decided:
    """Say what a person has decided: streams that `stop`, and are no renamed ones; pipelines that begin `again`."""

    stop: Collection[str] = ()
    again: Collection[str] = ()


NOTHING_DECIDED = Decided()


def mistyped_stops(connection: sa.Connection, changes: Sequence[Change], decided: Decided) -> list[str]:
    """Return a sentence on each `--stop` of a stream that there is not; say it of a refusal too.

    A service has the answers of its first start among its arguments for ever.
    """
    applied = {row.name for row in store.list_streams(connection)}
    stopped = [change.name for change in changes if change.action == "stop"]
    said = []
    for name in decided.stop:
        if name not in applied:
            meant = did_you_mean(name, stopped)
            said.append(f"--stop {name}: the driver log has no such stream{f'; {meant}' if meant else '.'}")
    return said


def undecided(
    connection: sa.Connection, pipelines: Sequence[Pipeline], changes: Sequence[Change], decided: Decided, command: str
) -> str | None:
    """Return the questions before these changes are written; None: there is none.

    command: the one that takes `--stop` and `--again`; it is shown with the answers that it needs, those given too.
    """
    added = [change.name for change in changes if (change.kind, change.action) == ("stream", "add")]
    stopped = [change.name for change in changes if change.action == "stop"] if added else []
    repeats = dict(_repeats(connection, pipelines))
    stops = [name for name in stopped if name not in decided.stop]
    repeated = [name for name in repeats if name not in decided.again]
    if not stops and not repeated:
        return None
    options = [f"--stop {name}" for name in stopped] + [f"--again {name}" for name in repeats]
    answered = f"`{command} {' '.join(options)}`"
    said = [
        f"--again {name}: {meant}"
        for name in decided.again
        if name not in repeats and (meant := did_you_mean(name, repeats))
    ]
    if stops:
        said.append(
            f"Is {' or '.join(added)} the stream {' or '.join(stops)} by another name? Then write Stream(…, "
            f'renamed_from="{stops[0]}"), and it keeps its receivers, positions and records (the URL of HTTP senders '
            f"changes with its name). If not, {answered} stops the one and begins the other."
        )
    said += [
        f'{repeats[name]} Give it another place, or start="latest", with which it reads nothing that is stored now. '
        f"If that place is empty, or they may be there twice: {answered}."
        for name in repeated
    ]
    return " ".join(said)


def _repeats(connection: sa.Connection, pipelines: Sequence[Pipeline]) -> Iterator[tuple[str, str]]:
    """Yield new pipelines that begin with kept records of which another one wrote results to the same place, and why.

    The other one is removed, or its output leaves that place with this apply. An applied pipeline that takes over a
    place begins where it is, so that only its next records are concerned.
    """
    applied = {row.name for row in store.list_pipelines(connection)}
    new = [pipeline for pipeline in pipelines if pipeline.start != "latest" and pipeline.name not in applied]
    if not new:
        return
    rows = {row.name: row.stream_id for row in store.list_streams(connection)}
    stored = {row.stream: row.stored_records for row in stream_overview(connection)}
    kept = {rows[name]: name for name in rows if stored.get(name)}
    renamed = renames(declared_streams(pipelines), rows)
    for pipeline in new:
        names = {renamed.get(stream.name, stream.name) for stream in pipeline.streams}
        ids = [stream_id for stream_id, name in kept.items() if name in names]
        places = [place for output in pipeline.outputs.values() if (place := _place(output.sink.declaration()))]
        for reader in store.readers_of_kept_blocks(connection, ids) if places else ():
            taken = next((one for one in _places(reader) if any(overlap(place.key, one.key) for place in places)), None)
            if taken is not None:
                streams = sorted(kept[stream_id] for stream_id in reader.stream_ids)
                records = sum(stored[name] for name in streams)
                other = f"{reader.name!r}{' (removed)' if reader.is_removed else ''}"
                why = (
                    f"Pipeline {pipeline.name!r} is new, and begins with the {records:,} kept records of "
                    f"{', '.join(streams)}. Pipeline {other} wrote results of some to {taken.shown}, which would then "
                    "hold them twice."
                )
                yield pipeline.name, why
                break


def _places(reader: store.KeptBlocksReader) -> Iterator[Place]:
    try:
        sinks = [output.sink for output in PipelineDeclaration.of(reader.declaration).outputs.values()]
    except Exception as error:  # noqa: BLE001  one that is removed can't be applied again, or corrected
        log.warning("a pipeline's places are not compared with others", pipeline=reader.name, error=str(error))
        return
    yield from filter(None, map(_place, sinks))


def _place(sink: Mapping[str, Any]) -> Place | None:
    try:
        return place_of(sink)
    except Exception as error:  # noqa: BLE001  also one of another package, or of a declaration of long ago
        log.warning("a sink's place is not compared with others", kind=sink.get("kind"), error=str(error))
        return None
