"""Names the applied stream that a declared one was, by `renamed_from`, and what a person should know of it.

Compares names alone. It reads nothing, and never decides for the person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orchestration.declarations.declaration_error import DeclarationError
from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from orchestration.declarations.pipeline import Stream


def renames(streams: Sequence[Stream], applied: Collection[str]) -> dict[str, str]:
    """Return the applied name of each stream that would get a new one."""
    named = {stream.name: stream.renamed_from for stream in streams if stream.name not in applied}
    return {name: old for name, old in named.items() if old is not None and old in applied}


def removal(pipeline: str, read: Mapping[str, Collection[str]]) -> str:
    """Return how a pipeline is removed, and what one in its place needs, so that no record is in both or in neither.

    read: the streams that each applied pipeline reads. Receivers of those that others read go on while it is stopped.
    """
    others = {name: streams for name, streams in sorted(read.items()) if name != pipeline}
    shared = sorted({name for name in read.get(pipeline, ()) if any(name in streams for streams in others.values())})
    readers = ", ".join(name for name, streams in others.items() if not {*streams}.isdisjoint(shared))
    stops, starts = (", ".join(f"`forebay receivers {verb} {name}`" for name in shared) for verb in ("stop", "start"))
    before = after = ""
    if shared:
        before = f"{stops} (because {readers} reads it too, and what comes meanwhile would be in neither), "
        after = f", {starts}"
    return (
        'write start="latest" in one that takes its place (else it begins with all records that are kept), then '
        f"{before}`forebay stop --pipeline {pipeline}`, `forebay pipelines remove {pipeline}`, `forebay apply`{after}"
    )


def refuse_to_rename(
    renamed: Mapping[str, str],
    declared: Collection[str],
    others: Mapping[str, Collection[str]],
    read: Mapping[str, Collection[str]],
) -> None:
    """Raise DeclarationError for a name that something else still reads: another stream would be made under it.

    declared: the names of all declared streams. others: what each applied pipeline that is not declared here reads.
    read: what each applied pipeline reads.
    """
    taken: dict[str, str] = {}
    for new, old in renamed.items():
        where = f"stream {new!r}: renamed_from={old!r}"
        if old in declared:
            message = f"{where}: {old} is declared too: leave renamed_from out, or that stream"
            raise DeclarationError(message)
        if (other := taken.setdefault(old, new)) != new:
            message = f"{where}: stream {other!r} has the same renamed_from: remove it from one of the two"
            raise DeclarationError(message)
        readers = sorted(name for name, read in others.items() if old in read)
        if readers:
            message = (
                f"{where}: pipeline {readers[0]!r} reads it too, and is not declared here: apply both in one call, or "
                f"remove that pipeline: {removal(readers[0], read)}"
            )
            raise DeclarationError(message)


def idle_renames(streams: Sequence[Stream], applied: Collection[str]) -> list[str]:
    """Return a sentence for each `renamed_from` that renames nothing, and may be meant to.

    There is none where it did so before, or where nothing is applied yet.
    """
    declared = {stream.name for stream in streams}
    said = []
    for stream in streams:
        name, old = stream.name, stream.renamed_from
        if not applied or old is None or old == name or (name in applied and old not in applied):
            continue
        where = f"stream {name!r}: renamed_from={old!r} has no effect, because"
        if name not in applied and old not in applied:
            hint = did_you_mean(old, sorted(set(applied) - declared))
            new = f"{name} is a new one{f'; {hint}' if hint else '.'}"
            said.append(f"{where} the driver log has no stream of that name: {new}")
        elif name in applied:
            way_out = (
                "leave it out"
                if old in declared
                else f"leave it out; or, if {name} should go on where {old} ended: "
                f"name it {old} again, apply when nothing of {name} waits, `forebay streams remove {name}`, and rename"
            )
            said.append(f"{where} both streams exist: {way_out}.")
    return said
