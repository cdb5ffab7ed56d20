"""Say what in a changed module a person must decide: what is gone or renamed, and what readers would find changed.

Compares declarations alone. It reads nothing, and never decides for the person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from orchestration.declarations.apply import changed_keys, declared_streams
from orchestration.declarations.renames import removal
from orchestration.declarations.sink import place_of
from receiver_runtime.sources.fields.units import duration_text
from receiver_runtime.sources.plugins import PluginError
from receiver_runtime.sources.records.registry import RecordsError, parse_records
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tracker_store.schema.declarations import StreamDeclaration

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from orchestration.declarations.pipeline import Pipeline

_SHORT = 40  # characters of two values that a line of `forebay up` shows


def declared(pipelines: Iterable[Pipeline]) -> dict[str, Any]:
    """Return, as JSON, what `needs_a_person` compares, and all else of the declarations that people are shown."""
    pipelines = list(pipelines)
    return {
        "pipelines": {pipeline.name: pipeline.declaration() for pipeline in pipelines},
        "streams": {stream.name: stream.declaration() for stream in declared_streams(pipelines)},
        "renamed": {
            stream.name: {"was": stream.renamed_from, "path": stream.source.path_of(stream.name)}
            for stream in declared_streams(pipelines)
        },
        "descriptions": {
            pipeline.name: {output.name: output.description for output in pipeline.outputs.values()}
            for pipeline in pipelines
        },
    }


def needs_a_person(
    before: Mapping[str, Any], after: Mapping[str, Any], read: Mapping[str, Collection[str]]
) -> list[str]:
    """Return one line for each change between two results of `declared` that waits for `forebay apply`.

    read: the streams that each applied pipeline reads.
    """
    found = [*_pipelines_gone(before["pipelines"], after["pipelines"], read), *_streams_gone(before["streams"], after)]
    for name, pipeline in after["pipelines"].items():
        if name in before["pipelines"]:
            outputs = before["pipelines"][name]["outputs"]
            found += _outputs_gone(name, outputs, pipeline["outputs"])
            found += _moved(name, outputs, pipeline["outputs"])
    for name, stream in after["streams"].items():
        if name in before["streams"]:
            found += _broken(name, before["streams"][name], stream)
    return found


def declared_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what is declared in another way than before, in a few words each, as `words: interval 10s → 5s`."""
    found: dict[str, None] = {}
    for kind in ("streams", "pipelines"):
        for name, now in after[kind].items():
            if name not in before[kind]:
                renamed = after["renamed"][name]["was"] if kind == "streams" else None
                found[f"{renamed} is renamed to {name}" if renamed in before[kind] else f"{name} is new"] = None
                continue
            was = before[kind][name]
            for key, old, new in changed_keys(was, now):
                first, _, rest = key.partition(".")
                output = rest.partition(".")[0]
                if first != "outputs" or (output in was["outputs"] and output in now["outputs"]):
                    said = _said(key, old, new)
                else:
                    said = f"output {output} is {'gone' if output in was['outputs'] else 'new'}"
                found[f"{name}: {said}"] = None
        renamed = {one["was"] for one in after["renamed"].values()} if kind == "streams" else ()
        gone = (before[kind].keys() - after[kind].keys()).difference(renamed)
        found |= dict.fromkeys(f"{name} is gone" for name in sorted(gone))
    return list(found)


def _said(key: str, old: object, new: object) -> str:
    if key.endswith("_ms") and isinstance(old, int) and isinstance(new, int):
        return f"{key.removesuffix('_ms')} {duration_text(old / 1000)} → {duration_text(new / 1000)}"
    # A long value, or a list, is in the table of `forebay apply`.
    return f"{key} {old} → {new}" if len(f"{old}{new}") <= _SHORT and not isinstance(new, list) else key


def _pipelines_gone(
    before: Mapping[str, Any], after: Mapping[str, Any], read: Mapping[str, Collection[str]]
) -> Iterator[str]:
    new = _new(before, after)
    for name in sorted(before.keys() - after.keys()):
        if name not in read:
            yield f"pipeline {name!r}, which was removed, is gone from the code too"
        elif new:
            yield (
                f"pipeline {name!r} is gone (renamed? new is {new}: under a new name it is a new pipeline. To replace "
                f"{name} by it: {removal(name, read)})"
            )
        else:
            yield (
                f"pipeline {name!r} is gone; until it is removed too, its records wait, and its receivers go on: "
                f"`forebay stop --pipeline {name}`, `forebay pipelines remove {name}`, and only then apply, after "
                "which no batch of it runs"
            )


def _streams_gone(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    streams, new = after["streams"], _new(before, after["streams"])
    renamed = {one["was"]: (name, one["path"]) for name, one in after["renamed"].items() if name not in before}
    for name in sorted(before.keys() - streams.keys()):
        if name in renamed:
            to, path = renamed[name]
            yield f"stream {name!r} is renamed to {to}{f', and its senders must use {path}' if path else ''}"
        elif new:
            yield (
                f"stream {name!r} is gone (renamed? new is {new}; if it is renamed: Stream(…, renamed_from={name!r}), "
                "and the URL of HTTP senders changes with it)"
            )
        else:
            yield f"stream {name!r} is read by no output any more"


def _outputs_gone(pipeline: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    new = _new(before, after)
    for name in sorted(before.keys() - after.keys()):
        yield f"output {name!r} of {pipeline} is gone{f' (renamed? new is {new})' if new else ''}"


def _new(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return ", ".join(sorted(after.keys() - before.keys()))


def _moved(pipeline: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(before.keys() & after.keys()):
        old, new = before[name]["sink"], after[name]["sink"]
        if old.get("kind") != new.get("kind") or _place(old) != _place(new):
            yield f"output {pipeline}.{name} writes to another place"


def _place(sink: Mapping[str, Any]) -> tuple[str, ...] | None:
    try:
        place = place_of(sink)
    except PluginError:
        return None
    return None if place is None else place.key


def _broken(stream: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    # The columns of records are fixed for each kind of source.
    was, now = before["source"]["kind"], after["source"]["kind"]
    if was != now:
        yield f"records of stream {stream!r} get the columns of another kind of source ({was} becomes {now})"
        return
    try:
        had, has = _columns(before), _columns(after)
    except (SourceError, RecordsError):
        # Its package is not installed here, so it can't run on here either.
        return
    if had.parsed and has.parsed:
        # `apply` refuses to leave out one of these once there are rows of it.
        what, lost = "keep less", had.others - has.others
    else:
        what, lost = "are parsed" if has.parsed else "are not parsed any more", had.all - has.all
    if lost or bool(had.parsed) != bool(has.parsed):
        said = ", ".join(sorted(lost)) or "the columns of before"
        yield f"records of stream {stream!r} {what}: new rows have null in {said}"


class _Columns(NamedTuple):
    """Hold the names of a stream's columns, as far as its declaration knows them."""

    parsed: frozenset[str]
    all: frozenset[str]

    @property
    def others(self) -> frozenset[str]:
        return self.all - self.parsed


def _columns(declaration: Mapping[str, Any]) -> _Columns:
    """Return the columns of a stream's declaration. Raises SourceError and RecordsError."""
    declared = StreamDeclaration.of(declaration)
    source = parse_source(declared.source)
    if declared.records is None:
        return _Columns(frozenset(), frozenset(name for name, _ in source.columns))
    records = parse_records(declared.records)
    columns = records.block_columns(source.columns, source.record_column)
    return _Columns(frozenset(name for name, _ in records.columns), frozenset(name for name, _ in columns))
