"""Ask the targets of new and changed outputs who writes to them, before anything is applied.

A target that does not answer refuses nothing: its batches wait until it does. Changes no target, and applies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from orchestration.block_checks.bounded_scans import BoundedScans, answer
from orchestration.declarations.sink import TargetCheck
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.schema.declarations import PipelineDeclaration

if TYPE_CHECKING:
    from collections.abc import Iterable

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Output, Pipeline

# For all targets together: longer than one takes to refuse a connection or to leave it unanswered (10 s).
_SECONDS = 12.0
# Many outputs may have one server, whose connections are few.
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class TargetAnswers:
    """List in a sentence each the outputs that their target refuses, and those whose target could not be asked."""

    refused: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()


def ask_targets(
    connection: sa.Connection, pipelines: Iterable[Pipeline], *, seconds: float = _SECONDS
) -> TargetAnswers:
    """Ask the targets of new and changed outputs, all at once; a renamed output is new. Raises none of their errors.

    `seconds`: for all of them together.
    """
    before = {row.name: PipelineDeclaration.of(row.declaration).outputs for row in list_pipelines(connection)}
    looks = BoundedScans(seconds)
    places = BoundedSemaphore(_AT_ONCE)
    asked = {
        _name(output): looks.start(_name(output), partial(_look, output, places, seconds))
        for pipeline in pipelines
        for output in pipeline.outputs.values()
        if (was := before.get(pipeline.name, {}).get(output.name)) is None or was.sink != output.sink.declaration()
    }
    unasked = [f"{one.part}: its target was not asked who writes to it: {one.reason}." for one in looks.unreachable()]
    refused = []
    for name, look in asked.items():
        if (found := answer(look)) is None:
            continue
        if found.health == "failed":
            refused.append(f"{name}: {found.found}. {found.way_out}")
        elif found.health == "warning":
            unasked.append(f"{name}: its target was not asked who writes to it: {found.found}.")
    return TargetAnswers(tuple(refused), tuple(unasked))


def _look(output: Output, places: BoundedSemaphore, seconds: float) -> TargetCheck | None:
    if not places.acquire(timeout=seconds):
        return TargetCheck("warning", "those before it took too long", "")
    try:
        return output.sink.check_writer(output.pipeline.name, output.name)
    finally:
        places.release()


def _name(output: Output) -> str:
    return f"output {output.name!r} of pipeline {output.pipeline.name!r}"
