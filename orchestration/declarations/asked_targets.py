"""Ask the targets of new and changed outputs who writes to them, and what must be changed in them, before an apply.

A target that does not answer refuses nothing: its batches wait until it does. Changes no target, and applies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, TypeVar

from orchestration.block_checks.bounded_scans import BoundedScans, answer, has_answer
from orchestration.declarations.sink import TargetCheck, TargetMissingError, TargetUnavailableError
from tracker_store.batches.batches import running_batches
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from concurrent.futures import Future
    from datetime import datetime

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Output, Pipeline
    from tracker_store.batches.pipelines import PipelineRow

# For all targets together: longer than one takes to refuse a connection or to leave it unanswered (10 s).
_SECONDS = 12.0
# Many outputs may have one server, whose connections are few.
_AT_ONCE = 4
#: In which order a target is changed whose pipeline runs.
ORDER = (
    "In this order, because a batch in between would fail: `forebay stop --pipeline {0}`, that change, `forebay "
    "apply`, `forebay start --pipeline {0}`."
)
#: What else follows for commands, which can't know what runs.
NO_STOP = (
    "Where no batch is made meanwhile (`forebay up` has said so, or does not run, or a Dagster of your own has loaded "
    "the change), that stop can't end: that change, then `forebay apply`."
)
# What becomes of a change whose table does not exist while a batch runs that may create it.
_WHEN_CREATED = "when that batch has ended, this change can be used, or the statement that the table needs is named"
#: What follows where the pipeline makes no batches, and can't end a stop, because the code that waits is loaded.
PAUSED = "No batch is made meanwhile: when none runs any more, that change, then `forebay apply`."

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TargetAnswers:
    """Say in a sentence each what targets answer about outputs.

    refused: outputs that their target refuses. unasked: outputs whose target could not be asked who writes to it.
    steps: what must be changed in a target because the sink is another. unlooked: outputs whose target may need such a
    step, and can't be looked at just now, or does not exist while a batch runs that may create it. stopped: names of
    the pipelines that are STOPPED. creating: those of `unlooked` that wait for a batch, without what follows.
    """

    refused: tuple[str, ...] = ()
    unasked: tuple[str, ...] = ()
    steps: Mapping[Output, str] = field(default_factory=dict)
    unlooked: tuple[str, ...] = ()
    stopped: frozenset[str] = frozenset()
    creating: tuple[str, ...] = ()

    @property
    def steps_in_order(self) -> list[str]:
        """Return each step with the order in which it is taken."""
        return [_in_order(output, step) for output, step in self.steps.items()]

    @property
    def held(self) -> list[str]:
        """Return the steps without which batches of a running pipeline would fail, and what may become one."""
        found = [_in_order(one, step) for one, step in self.steps.items() if one.pipeline.name not in self.stopped]
        found += [NO_STOP] if found else []
        return [*found, *(f"{said} Apply again when that batch has ended." for said in self.creating)]


def _in_order(output: Output, step: str) -> str:
    return f"{step} {ORDER.format(output.pipeline.name)}"


def ask_targets(
    connection: sa.Connection, pipelines: Iterable[Pipeline], *, seconds: float = _SECONDS
) -> TargetAnswers:
    """Ask the targets of new and changed outputs, all at once; a renamed output is new. Raises none of their errors.

    `seconds`: for all of them together.
    """
    rows = {row.name: row for row in list_pipelines(connection)}
    before = {name: PipelineDeclaration.of(row.declaration).outputs for name, row in rows.items()}
    outputs = {
        output: was
        for pipeline in pipelines
        for output in pipeline.outputs.values()
        if (was := before.get(pipeline.name, {}).get(output.name)) is None or was.sink != output.sink.declaration()
    }
    changed = {one: was for one, was in outputs.items() if was is not None}
    # Read before and after the targets are looked at: a batch may end meanwhile, and another one may begin.
    running = _running(connection, rows, changed)
    scans = BoundedScans(seconds)
    places = BoundedSemaphore(_AT_ONCE)

    def start(output: Output, ask: Callable[[], Found], needs: Future[Any] | None = None) -> Future[Found]:
        return scans.start(_name(output), partial(_look, ask, places, seconds), needs=needs)

    # First: most sinks answer this without a look at their target.
    steps = {one: start(one, partial(_step, one, was.sink)) for one, was in changed.items()}
    writers = {one: start(one, partial(_writer, one), steps.get(one)) for one in outputs}
    missed = {one.part: one.reason for one in scans.unreachable()}
    away = {_name(one): missed[_name(one)] for one, look in steps.items() if not has_answer(look)}
    found = {one: answer(look) for one, look in steps.items()}
    if missing := [one for one, said in found.items() if isinstance(said, TargetMissingError)]:
        running |= _running(connection, rows, missing)
        due = {
            one
            for one in missing
            for name, time in running
            if name == one.pipeline.name and changed[one].is_due(time, one.pipeline.calendar)
        }
        found |= dict.fromkeys({*missing} - due)
    away |= {_name(one): str(said) for one, said in found.items() if isinstance(said, TargetUnavailableError)}
    creating = {_name(one): str(said) for one, said in found.items() if isinstance(said, TargetMissingError)}
    away |= {name: f"{why}; {_WHEN_CREATED}" for name, why in creating.items()}
    unasked = {name: reason for name, reason in missed.items() if name not in away}
    refused = []
    for output, look in writers.items():
        name = _name(output)
        match answer(look):
            case TargetCheck(health="failed") as check:
                refused.append(f"{name}: {check.found}. {check.way_out}")
            case TargetCheck(health="warning") as check if name not in away:
                unasked[name] = check.found
    return TargetAnswers(
        tuple(refused),
        tuple(f"{name}: its target was not asked who writes to it: {why}." for name, why in unasked.items()),
        {one: f"{_name(one)}: {step}." for one, step in found.items() if isinstance(step, str)},
        tuple(f"{name}: {why}." for name, why in away.items()),
        frozenset(row.name for row in rows.values() if row.state is PipelineState.STOPPED),
        tuple(f"{name}: {why}." for name, why in creating.items()),
    )


def _look(ask: Callable[[], Found], places: BoundedSemaphore, seconds: float) -> Found:
    if not places.acquire(timeout=seconds):
        raise TargetUnavailableError("those before it took too long")
    try:
        return ask()
    finally:
        places.release()


def _running(
    connection: sa.Connection, rows: Mapping[str, PipelineRow], outputs: Iterable[Output]
) -> set[tuple[str, datetime]]:
    """Return the batches of the outputs' pipelines that may run as they were declared before."""
    names = {one.pipeline.name for one in outputs}
    return {(name, time) for name in names for time in running_batches(connection, rows[name].pipeline_id)}


def _step(output: Output, was: Mapping[str, Any]) -> str | TargetUnavailableError | None:
    try:
        return output.sink.step_after(was)
    except TargetUnavailableError as error:
        return error


def _writer(output: Output) -> TargetCheck | None:
    return output.sink.check_writer(output.pipeline.name, output.name)


def _name(output: Output) -> str:
    return f"output {output.name!r} of pipeline {output.pipeline.name!r}"
