"""Push batches: the leading tracker launches the next run itself, without waiting for a sensor's tick.

Dagster's sensors tick every 5 s. So the pusher launches batches of intervals below 10 s at their boundary, any batch
whose boundary had passed when the batch before it finished, and a batch's next attempt when it is due. It decides
nothing: ``batch_schedule`` decides what is due, and a launch is recorded in the driver log before Dagster is asked. The
run has the run key and the tags of a run that the batch sensor launches, so that the sensor, which catches up on what
was not pushed, never launches a second one.

The pusher runs only in an instance created by `forebay up`. It must never launch for a sensor that a person has
stopped, nor for code whose declaration is not the applied one, nor request an attempt's run twice: launches without an
answer, and those that need a look at Dagster's runs, are left to the sensor.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.batches.batch_schedule import (
    PUSHED_BELOW,
    BatchRules,
    declaration_fingerprint,
    next_steps,
    pause_reason,
    sensor_name,
    wants_first_launch,
)
from orchestration.dagster_instance.dagster_client import DagsterError, DagsterUnansweredError, RunNotStartedError
from tracker_store.batches.batches import fail_attempt, unfinished_batches
from tracker_store.batches.launches import release_launch
from tracker_store.batches.pipelines import pipelines_by_id, stream_declarations
from tracker_store.batches.received_block_tracker import due_pipelines
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.receivers.leadership import DeposedError
from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

    from orchestration.batches.batch_schedule import Launch
    from orchestration.dagster_instance.dagster_client import BatchSensor, DagsterClient
    from tracker_store.batches.pipelines import PipelineRow
    from tracker_store.batches.received_block_tracker import DuePipelines

# While nothing is due: seconds between looks for new pipelines and for the leadership.
IDLE_SECONDS = 1.0
# While a boundary has passed and the batch before it still runs: seconds between looks whether it has finished.
BEHIND_SECONDS = 0.1
# Head start of the sensor at the boundary of a long interval (10 s or more): it is pushed only after this time.
SENSOR_FIRST = timedelta(seconds=1)
# Age in seconds at which the list of sensors is read again ahead of time, and at which it is too old to launch by.
SENSORS_SECONDS = 2.0
SENSORS_LIMIT_SECONDS = 6.0
# Pause after a failure, doubled each time.
FIRST_PAUSE_SECONDS = 1.0
# A refused request costs milliseconds; a longer pause would only add delay once Dagster's code server is up again.
LONGEST_PAUSE_SECONDS = 5.0
# Oldest launch, in seconds since it was recorded, that is still requested: with the request's own timeout (5 s) it is
# answered before its lease ends.
ASK_WITHIN_SECONDS = 5.0
# Requests in parallel, because many pipelines may have a batch at the same boundary.
REQUESTS_AT_ONCE = 4

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Push:
    """Hold a recorded launch and its sensor; `taken_at` is read before it is recorded, on the pusher's clock."""

    rules: BatchRules
    batch_time: datetime
    launch: Launch
    sensor: BatchSensor
    taken_at: float


def _is_unlaunched(connection: sa.Connection, rules: BatchRules) -> bool:
    """Return whether a batch waits whose run was never requested: its attempt failed, or its launcher was killed."""
    return any(
        wants_first_launch(batch)
        for batch in unfinished_batches(connection, rules.pipeline_id, limit=rules.concurrent_batches)
    )


class BatchPusher:
    """Push the batches of one tracker, in a thread of its own, so that no tick of the tracker is delayed."""

    def __init__(
        self, engine: sa.Engine, dagster: DagsterClient, *, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Work on the driver log behind `engine`; `name` is the tracker's, shown to people; `clock` is monotonic."""
        self._engine = engine
        self._dagster = dagster
        self._name = name
        self._clock = clock
        self._sensors: dict[str, BatchSensor] = {}
        self._sensors_at: float | None = None
        self._paused_until = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def run(self, stop: threading.Event, term: Callable[[], int | None]) -> None:
        """Push until `stop`, while `term` returns a term, which is while the tracker leads."""
        outage = Outage("the batch pusher", self._clock)
        wait = 0.0
        while not stop.wait(wait):
            wait = IDLE_SECONDS
            leading = term()
            if leading is None:
                continue
            try:
                with connect(self._engine) as connection:
                    wait = self.turn(connection, leading)
            except DeposedError:
                log.info("pushes nothing: another tracker leads", term=leading)
            except SURVIVED as error:
                outage.failed(error)
            else:
                outage.answered()

    def turn(self, connection: sa.Connection, term: int) -> float:
        """Push what is due, and return the seconds until there may be more. Raises DeposedError."""
        wait = IDLE_SECONDS
        found = due_pipelines(connection, short_below=PUSHED_BELOW, delay=SENSOR_FIRST)
        if found.next_due_in is not None:
            wait = min(wait, found.next_due_in.total_seconds() + 0.001)
        # Declarations are read of those pipelines alone: they are large, and most pipelines have nothing to do.
        due = self._due(connection, found) if found.due or found.unlaunched else []
        if self._clock() < self._paused_until or not (due or found.any_short):
            return wait
        # Read ahead of time, so that no boundary waits for the answer.
        if not self._know_sensors(SENSORS_LIMIT_SECONDS if due else SENSORS_SECONDS):
            return wait
        pushes: list[_Push] = []
        streams = self._streams(connection, [row for row, _ in due])
        for row, rules in due:
            taken, look_again_in = self._take(connection, row, rules, streams, term)
            pushes += taken
            wait = min(wait, look_again_in)
        self._push(connection, pushes, term)
        return wait

    def _due(self, connection: sa.Connection, found: DuePipelines) -> list[tuple[PipelineRow, BatchRules]]:
        rows = [
            (row, BatchRules.of_row(row))
            for row in pipelines_by_id(connection, sorted(found.due | found.unlaunched))
            if pause_reason(row) is None
        ]
        return [
            (row, rules) for row, rules in rows if row.pipeline_id in found.due or _is_unlaunched(connection, rules)
        ]

    def _streams(self, connection: sa.Connection, rows: Sequence[PipelineRow]) -> Mapping[str, Mapping[str, Any]]:
        """Return the declarations of the streams that these pipelines read, by name, in one statement."""
        ids = {stream_id for row in rows if sensor_name(row.name) in self._sensors for stream_id in row.stream_ids}
        return stream_declarations(connection, ids) if ids else {}

    def _know_sensors(self, limit_seconds: float) -> bool:
        """Return whether the list of sensors is younger than the limit, after reading it again if it was not."""
        if self._sensors_at is not None and self._clock() - self._sensors_at < limit_seconds:
            return True
        try:
            self._sensors = self._dagster.batch_sensors()
        except DagsterError as error:
            self._failed(error)
            return False
        self._sensors_at = self._clock()
        return True

    def _take(
        self,
        connection: sa.Connection,
        row: PipelineRow,
        rules: BatchRules,
        streams: Mapping[str, Mapping[str, Any]],
        term: int,
    ) -> tuple[list[_Push], float]:
        """Record the launches that are due for a pipeline; return them and the seconds until there may be more."""
        sensor = self._sensors.get(sensor_name(row.name))
        if (
            sensor is None
            or not sensor.is_running
            or sensor.declaration != declaration_fingerprint(row.declaration, streams)
        ):
            return [], IDLE_SECONDS
        now = self._clock()
        steps = next_steps(connection, rules, launcher=self._launcher(term), runs=None, term=term)
        pushes = [
            _Push(rules, datetime.fromisoformat(launch.batch_time), launch, sensor, now) for launch in steps.launches
        ]
        return pushes, BEHIND_SECONDS if steps.behind else 0.0

    def _push(self, connection: sa.Connection, pushes: Sequence[_Push], term: int) -> None:
        if not pushes:
            return
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="push") as pool:
            answers = list(pool.map(self._launch, pushes))
        for push, answer in zip(pushes, answers, strict=True):
            if isinstance(answer, str):
                log.info("batch pushed", pipeline=push.rules.pipeline, batch=push.launch.run_key, run_id=answer)
                self._succeeded()
                continue
            if isinstance(answer, RunNotStartedError):
                self._end_unstarted(connection, push, answer, term)
                continue
            self._failed(answer)
            if not isinstance(answer, DagsterUnansweredError):
                release_launch(
                    connection,
                    pipeline_id=push.rules.pipeline_id,
                    batch_time=push.batch_time,
                    attempt=push.launch.attempt,
                    launcher=self._launcher(term),
                )

    def _end_unstarted(self, connection: sa.Connection, push: _Push, error: RunNotStartedError, term: int) -> None:
        """End the attempt of a run that never starts: the batch's next attempt need not wait until it is missed."""
        log.warning("a batch's run was not started", batch=push.launch.run_key, run_id=error.run_id, error=str(error))
        fail_attempt(
            connection,
            pipeline_id=push.rules.pipeline_id,
            batch_time=push.batch_time,
            attempt=push.launch.attempt,
            run_id=error.run_id,
            error=f"run {error.run_id} was lost (Dagster made it and could not start it: {error})",
            failure=AttemptFailure.LOST,
            max_attempts=push.rules.max_attempts,
            max_lost_attempts=push.rules.max_lost_attempts,
            term=term,
        )

    def _launch(self, push: _Push) -> str | DagsterError:
        if (late := self._clock() - push.taken_at) > ASK_WITHIN_SECONDS:
            return DagsterError(f"{push.launch.run_key} of {push.rules.pipeline} was taken {late:.1f} s ago")
        try:
            return self._dagster.launch(push.sensor, push.rules.pipeline, push.launch)
        except DagsterError as error:
            return error

    def _launcher(self, term: int) -> str:
        return f"tracker {self._name} in term {term}"

    def _failed(self, error: DagsterError) -> None:
        """Pause, and so leave all launches to the sensor; the pause is longer each time."""
        if self._pause == FIRST_PAUSE_SECONDS:
            log.warning("can't push to Dagster; the batch sensor goes on", error=str(error), kind=type(error).__name__)
        self._sensors_at = None
        self._paused_until = self._clock() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def _succeeded(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
