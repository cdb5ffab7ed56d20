"""Decides what a pipeline needs now: which intervals are due, which batches to launch, what the others wait for.

The only place that decides it, for the batch sensor and for the tracker, which launches short intervals itself. Both
call `next_steps`; the one that takes a launch (``tracker_store/batches/launches.py``) asks Dagster for its run.
Settings come from the pipeline's row, so that both decide the same. The driver log ensures correctness: batches are cut
by batch time, an allocation happens once, and a run claims its attempt or ends. Keeps no state and knows nothing of
Dagster.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, Self

from orchestration.batches.lost_runs import why_lost
from orchestration.declarations.pipeline_settings import PipelineSettings
from tracker_store.batches import batches
from tracker_store.batches.launches import LaunchOutcome, take_launch
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.batches.retry import MAX_LOST_ATTEMPTS
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import AttemptFailure, AttemptState, BatchState, PipelineState

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.batches.batches import BatchRow
    from tracker_store.batches.pipelines import PipelineRow
    from tracker_store.batches.received_block_tracker import BatchTimes
    from tracker_store.schema.declarations import WindowDeclaration

# Dagster's status of a run that was cancelled, and of one that was created and not submitted.
CANCELED = "CANCELED"
NOT_STARTED = "NOT_STARTED"
# How long submitting a created run may take. These are two steps of one request: if the process is killed in between,
# the run stays NOT_STARTED until Dagster's run monitoring fails it, minutes later, or for ever where that is off.
SUBMITTED_WITHIN = timedelta(minutes=1)
# How long a run may outlive its attempt: it only has some events to write.
LEFT_FOR = timedelta(minutes=2)
PIPELINE_TAG = "forebay/pipeline"
BATCH_TIME_TAG = "forebay/batch_time"
ATTEMPT_TAG = "forebay/attempt"
# The tag that a replay's run gets when it begins: the time of its first batch.
FIRST_TAG = "forebay/replays_from"
# The batch sensor's tag with the declaration that the code has, for processes that can't load the code.
DECLARATION_TAG = "forebay/declaration"

SENSOR_LAUNCHER = "batch sensor"
# In an instance created by `forebay up` the tracker launches batches of shorter intervals: Dagster's sensors tick
# every 5 s.
PUSHED_BELOW = timedelta(seconds=10)
# Bounds one call: intervals without records complete here, without a run. The next call goes on with a long gap.
MAX_EMPTY_BATCHES_PER_CALL = 2_000


def sensor_name(pipeline: str) -> str:
    """Return the name of a pipeline's batch sensor."""
    return f"{pipeline}_batches"


def job_name(pipeline: str) -> str:
    """Return the name of the job that runs one batch of a pipeline."""
    return f"{pipeline}_batch"


def replay_job_name(pipeline: str) -> str:
    """Return the name of the job that replays batches of a pipeline."""
    return f"{pipeline}_replay"


def is_begun_replay(job: str, tags: Mapping[str, str]) -> bool:
    """Return whether a run is a replay that has begun, and that only the driver log can say to have ended.

    A run of assets is none: it may have steps of the user's own, which go on after its replay.
    """
    return FIRST_TAG in tags and job == replay_job_name(tags.get(PIPELINE_TAG, ""))


def op_name(pipeline: str) -> str:
    """Return the name of the step that runs a batch; its configuration has this key."""
    return f"{pipeline}__outputs"


def declaration_fingerprint(pipeline: Mapping[str, Any], streams: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the fingerprint of a pipeline's and its streams' declarations (by name): equal if code and log agree."""
    whole = json.dumps({"pipeline": pipeline, "streams": {name: streams.get(name) for name in pipeline["streams"]}})
    # Normalise numbers as the database does: it stores 1e16 and 10000000000000000 as the same number.
    same = json.dumps(json.loads(whole, parse_float=_number), sort_keys=True)
    return hashlib.sha256(same.encode()).hexdigest()[:16]


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


def pause_reason(row: PipelineRow) -> str | None:
    """Return why the pipeline, as applied, makes no batches, or None. A STOPPING one still makes its last ones."""
    if row.state is PipelineState.STOPPED:
        return f"the pipeline is stopped: run `forebay start --pipeline {row.name}`"
    if row.halted_by is not None:
        return f"the pipeline is {halted(row.name, row.halted_by)}"
    return None


def halted(pipeline: str, by: datetime) -> str:
    """Return the message that a quarantined batch has halted a pipeline, and how to resume."""
    time = by.isoformat()
    return (
        f'halted (on_failure="halt"): batch {time} is quarantined; fix the cause and run '
        f"`forebay batches replay {pipeline} {time}`, give it up with `forebay batches discard {pipeline} {time}`, "
        f"or go on without it with `forebay start --pipeline {pipeline}`"
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a batch's next attempt; `outputs`: those that are left to commit, empty if none is committed yet.

    A run is shown as a failure of each output that it is to make: of those that are committed it must not be one.
    """

    batch_time: str
    attempt: int
    outputs: tuple[str, ...] = ()

    @property
    def run_key(self) -> str:
        """Return the run key, which gives one run per attempt despite crashes: Dagster launches a key once."""
        return f"{self.batch_time}:{self.attempt}"

    def run_config(self, pipeline: str) -> dict[str, Any]:
        """Return the run's configuration, in Dagster's form."""
        return {"ops": {op_name(pipeline): {"config": {"batch_time": self.batch_time, "attempt": self.attempt}}}}

    def tags(self, pipeline: str) -> dict[str, str]:
        """Return the tags by which the run is found."""
        return {PIPELINE_TAG: pipeline, BATCH_TIME_TAG: self.batch_time, ATTEMPT_TAG: str(self.attempt)}


@dataclass(frozen=True, slots=True)
class Wait:
    """Launch nothing now; `reason` tells an operator what the batch waits for."""

    reason: str


@dataclass(frozen=True, slots=True)
class Steps:
    """Hold what to launch now, and what the other batches wait for.

    `next_due_in`: the time until the next interval is over, if its batch waits for nothing else.
    """

    launches: tuple[Launch, ...] = ()
    waits: tuple[Wait, ...] = ()
    next_due_in: timedelta | None = None
    behind: bool = False

    @property
    def reason(self) -> str:
        """Return in words what the batches wait for."""
        return "\n".join(wait.reason for wait in self.waits)


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Hold how a pipeline's batches are made, as it was applied.

    A batch without records runs if `run_empty`, or if the content of one of `windows` has changed. `declared` is the
    declaration of a pipeline with a calendar.
    """

    pipeline_id: int
    pipeline: str
    interval: timedelta
    max_attempts: int
    merge: bool = False
    max_records: int | None = None
    max_bytes: int | None = None
    run_empty: bool = False
    windows: tuple[WindowDeclaration, ...] = ()
    concurrent_batches: int = 1
    max_lost_attempts: int = MAX_LOST_ATTEMPTS
    outputs: tuple[str, ...] = ()
    declared: PipelineDeclaration | None = None

    @classmethod
    def of_row(cls, row: PipelineRow) -> Self:
        """Read the row that `forebay apply` wrote."""
        declared = PipelineDeclaration.of(row.declaration)
        settings = PipelineSettings.of_row(declared.settings)
        return cls(
            pipeline_id=row.pipeline_id,
            pipeline=row.name,
            interval=row.interval,
            merge=declared.merges,
            max_attempts=declared.max_attempts,
            max_records=declared.max_records_per_batch,
            max_bytes=declared.max_bytes_per_batch,
            run_empty=declared.runs_empty_batches,
            windows=declared.deciding_windows,
            concurrent_batches=settings.concurrent_batches,
            max_lost_attempts=settings.max_lost_attempts,
            outputs=tuple(declared.outputs),
            declared=None if declared.calendar is None else declared,
        )


@dataclass(frozen=True, slots=True)
class PipelineRun:
    """Describe a run as Dagster has it."""

    run_id: str
    status: str
    is_finished: bool


class Runs(Protocol):
    """Ask Dagster about a pipeline's runs."""

    def by_id(self, run_id: str) -> PipelineRun | None:
        """Return the run, or None if it is gone."""

    def of_attempt(self, launch: Launch) -> PipelineRun | None:
        """Return a run that was launched for an attempt, preferably one that has not ended; None if there is none."""

    def why_failed(self, run_id: str) -> str:
        """Return why a run failed, as far as Dagster knows, in one line; empty if it doesn't know."""

    def show_cause(self, run_id: str, cause: str) -> None:
        """Show why a run failed where Dagster lists runs; never raises."""

    def begun(self) -> list[tuple[PipelineRun, datetime, int]]:
        """Return the runs that have begun and not ended, each with its batch time and its attempt."""

    def end_lost(self, run_id: str, reason: str) -> None:
        """End a run whose process is dead and can't report it: its attempt is over, or it never began."""


def next_steps(
    connection: sa.Connection, rules: BatchRules, *, launcher: str, runs: Runs | None, term: int | None = None
) -> Steps:
    """Allocate the batches that are due, at most `concurrent_batches` ahead, in order; return what to do now.

    `launcher` must make each launch that is returned. Without `runs`, return only first launches: the caller that can
    ask Dagster does the rest. Raises DeposedError if the leader's term `term` is over.
    """
    # Launches taken before another batch changed: the next look would find them taken, and would not launch them.
    taken: dict[datetime, Launch] = {}
    for _ in range(MAX_EMPTY_BATCHES_PER_CALL):
        unfinished = batches.unfinished_batches(connection, rules.pipeline_id, limit=rules.concurrent_batches)
        times = batch_times(connection, rules.pipeline_id)
        is_due = times.next_due <= times.newest
        if is_due and len(unfinished) < rules.concurrent_batches:
            _allocate(connection, rules, times)
            continue
        steps = [
            taken.get(batch.batch_time) or _step(connection, rules, batch, launcher, runs, term) for batch in unfinished
        ]
        if any(step is None for step in steps):
            taken |= {
                batch.batch_time: step
                for batch, step in zip(unfinished, steps, strict=True)
                if isinstance(step, Launch)
            }
            continue
        waits = [step for step in steps if isinstance(step, Wait)]
        if len(unfinished) < rules.concurrent_batches:
            waits.append(Wait(_nothing_due(times)))
        elif is_due:
            waits.append(_queue(rules, times))
        return Steps(
            launches=tuple(step for step in steps if isinstance(step, Launch)),
            waits=tuple(waits),
            next_due_in=times.due_at - times.now if len(unfinished) < rules.concurrent_batches else None,
            behind=is_due,
        )
    return Steps(
        waits=(Wait(f"{MAX_EMPTY_BATCHES_PER_CALL} batches without records completed at once; more follow"),),
        behind=True,
    )


def _allocate(connection: sa.Connection, rules: BatchRules, times: BatchTimes) -> None:
    at = times.newest if rules.merge else times.next_due
    # What the pipeline's row says, read with the times; the rules may be of a moment before.
    declared = rules.declared if times.calendar is not None else None
    ReceivedBlockTracker(connection, rules.pipeline_id).allocate_blocks_to_batch(
        at,
        oldest_time=times.next_due,
        max_records=rules.max_records,
        max_bytes=rules.max_bytes,
        run_empty=rules.run_empty,
        windows=rules.windows,
        window_times=() if declared is None else declared.window_times(at, times.last),
        next_boundary=None if times.calendar is None else times.calendar.next_after(at),
        decided=None if declared is None else declared.decided_times(at),
    )


def _nothing_due(times: BatchTimes) -> str:
    if not times.set_back:
        return f"no batch due; the next is at {times.next_due.isoformat()}"
    return (
        f"no batch due; the next is made at {times.due_at.isoformat()}, for {times.next_due.isoformat()}: the "
        f"database's clock was set back, and is behind the last batch time by {times.last - times.now}. Batches come "
        "half as often, with all that was added, until it has caught up"
    )


def _queue(rules: BatchRules, times: BatchTimes) -> Wait:
    """Return the wait of the intervals behind the batches that are in hand."""
    if times.calendar is None:
        count = (times.newest - times.next_due) // rules.interval + 1
    else:
        count = times.calendar.count(times.next_due, times.newest) + 1
    behind = "the batch before" if rules.concurrent_batches == 1 else f"one of {rules.concurrent_batches} batches"
    what = "in one batch" if rules.merge else "each with its own batch"
    return Wait(
        f"{count} more interval(s), from {times.next_due.isoformat()} to {times.newest.isoformat()}, are due, {what}, "
        f"and wait for {behind} to finish"
    )


def wants_first_launch(batch: BatchRow) -> bool:
    """Return whether the batch's next attempt may start now, and no process has asked for its run yet.

    Then Dagster has no run of that attempt, and there is no need to look for one.
    """
    if batch.launch_attempt == batch.attempt + 1:
        return False
    return batch.state is BatchState.ALLOCATED or (
        batch.state in (BatchState.FAILED, BatchState.BLOCKED) and batch.retry_due
    )


def _step(
    connection: sa.Connection, rules: BatchRules, batch: BatchRow, launcher: str, runs: Runs | None, term: int | None
) -> Launch | Wait | None:
    """Return what an unfinished batch needs; None: it has changed, look again."""
    time = batch.batch_time.isoformat()
    if batch.state in (BatchState.FAILED, BatchState.BLOCKED) and not batch.retry_due:
        return _pause(batch, runs)
    if runs is None:
        if not wants_first_launch(batch):
            return Wait(f"batch {time} is {batch.state.value} and is looked after by the batch sensor")
        return _take(connection, rules, batch.batch_time, Launch(time, batch.attempt + 1), launcher, term)
    running = batch.state is BatchState.RUNNING
    if not running and batch.run_id:
        runs.end_lost(batch.run_id, batch.attempt_error)
    launch = Launch(time, batch.attempt if running else batch.attempt + 1)
    run = runs.by_id(batch.run_id) if running and batch.run_id else runs.of_attempt(launch)
    if run is None and not running:
        return _take(connection, rules, batch.batch_time, launch, launcher, term)
    lost = None
    if run is not None and not run.is_finished:
        # For a running attempt the tracker decides whether it is lost: it watches the process.
        lost = None if running else why_lost(connection, run.run_id) or _why_never_submitted(batch, launch, run)
        if lost is None:
            doing = "running" if running else "starting"
            return Wait(f"batch {time}: attempt {launch.attempt} is {doing} in run {run.run_id}")
        runs.end_lost(run.run_id, lost)
    # The run ended, or is gone, and the driver log has no record of it.
    run_id = (batch.run_id or "") if run is None else run.run_id
    batches.fail_attempt(
        connection,
        pipeline_id=rules.pipeline_id,
        batch_time=batch.batch_time,
        attempt=launch.attempt,
        run_id=run_id,
        error=f"run {run_id} {_ending(run, lost, runs)} before the batch was complete",
        failure=AttemptFailure.LOST,
        max_attempts=rules.max_attempts,
        max_lost_attempts=rules.max_lost_attempts,
    )
    return None


def _why_never_submitted(batch: BatchRow, launch: Launch, run: PipelineRun) -> str | None:
    """Return why Dagster will never start a run that was created for an attempt; None if it still may."""
    age = batch.launch_age if run.status == NOT_STARTED and batch.launch_attempt == launch.attempt else None
    if age is None or age <= SUBMITTED_WITHIN.total_seconds():
        return None
    return "it was created, and never submitted: the process that asked for it was ended meanwhile"


def _ending(run: PipelineRun | None, lost: str | None, runs: Runs) -> str:
    """Return how a run ended that could not record it itself."""
    if run is None:
        return "is gone"
    if lost is not None:
        return f"was lost ({lost})"
    if run.status == CANCELED:
        return "was cancelled in Dagster"
    # It may have failed at its start, for example because its module can't be loaded.
    why = runs.why_failed(run.run_id)
    if why:
        runs.show_cause(run.run_id, why)
    return f"ended as {run.status}" + (f" ({why})" if why else "")


def _pause(batch: BatchRow, runs: Runs | None) -> Wait:
    """Return why the batch has no run, and until when."""
    run = runs.by_id(batch.run_id) if runs is not None and batch.run_id else None
    if run is not None and run.status == CANCELED:
        how = "was cancelled in Dagster, which uses up none of max_attempts"
    elif batch.attempt_state is AttemptState.LOST:
        how = "was lost"
    else:
        how = "is blocked" if batch.state is BatchState.BLOCKED else "failed"
    before = f"; an earlier one said more: {batch.reason}" if batch.reason != batch.attempt_error else ""
    return Wait(
        f"batch {batch.batch_time.isoformat()}: attempt {batch.attempt} {how} ({batch.attempt_error}); the next starts "
        f"after {batch.retry_at}{before}"
    )


def end_expired_runs(connection: sa.Connection, pipeline_id: int, runs: Runs) -> None:
    """End runs in Dagster whose attempt and process ended at least `LEFT_FOR` ago.

    A retry ends the run of the attempt before it. This is for the last attempt of a batch that is given up, and for a
    run that was killed between the batch's completion and its own.
    """
    for run, batch_time, attempt in runs.begun():
        over = batches.attempt_is_over(
            connection,
            pipeline_id=pipeline_id,
            batch_time=batch_time,
            attempt=attempt,
            run_id=run.run_id,
            since=LEFT_FOR,
        )
        if over is not None:
            runs.end_lost(run.run_id, over)


def _take(
    connection: sa.Connection, rules: BatchRules, batch_time: datetime, launch: Launch, launcher: str, term: int | None
) -> Launch | Wait | None:
    answer = take_launch(
        connection,
        pipeline_id=rules.pipeline_id,
        batch_time=batch_time,
        attempt=launch.attempt,
        launcher=launcher,
        term=term,
    )
    if answer.outcome is LaunchOutcome.HELD:
        return Wait(f"batch {launch.batch_time}: the run of attempt {launch.attempt} is asked for by {answer.detail}")
    if answer.outcome is LaunchOutcome.NOT_DUE:
        return None
    if launch.attempt == 1:
        return launch
    committed = {commit.output for commit in commits_of_batch(connection, rules.pipeline_id, batch_time)}
    left = tuple(output for output in rules.outputs if output not in committed)
    # Without one left the run only completes the batch.
    return replace(launch, outputs=left) if committed and left else launch
