"""Pushes batches: the leading tracker launches the next run itself, without waiting for a sensor's tick.

Dagster's sensors tick every 5 s. So batches of intervals below 10 s are pushed at their boundary, any batch whose
boundary had passed when the batch before it finished, and a batch's next attempt when it is due. It decides nothing:
what is due is ``batch_schedule``'s to say, and a launch is taken in the driver log before Dagster is asked. The run has
the key and the tags of one that the batch sensor launches, so that the sensor, which stays the catch-up, never makes a
second.

In an instance that Forebay did not set up there is no pusher. It must never launch for a sensor that a person has
stopped, nor for code whose declaration is not the one that is applied, nor ask for an attempt's run twice: what has no
answer, and what needs a look at Dagster's runs is the sensor's.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol

import structlog

from orchestration.batch_schedule import (
    PUSHED_BELOW,
    BatchRules,
    declaration_fingerprint,
    next_steps,
    sensor_name,
    stands_still,
    wants_first_launch,
)
from orchestration.tracker.dagster_client import DagsterError, DagsterUnansweredError
from tracker_store.batches import unfinished_batches
from tracker_store.engine import connect
from tracker_store.launches import release_launch
from tracker_store.leadership import DeposedError
from tracker_store.outage import SURVIVED, Outage
from tracker_store.pipelines import list_pipelines, list_streams
from tracker_store.received_block_tracker import batch_times

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from orchestration.batch_schedule import Launch
    from orchestration.tracker.dagster_client import BatchSensor
    from tracker_store.pipelines import PipelineRow

# Nothing is due: how often it looks for new pipelines, and whether it leads.
IDLE_SECONDS = 1.0
# A boundary has passed and a batch runs: how often it looks whether it has finished.
BEHIND_SECONDS = 0.1
# Of an interval that is not pushed at its boundary: so long the sensor's tick, which waits for it, has the precedence.
SENSOR_FIRST = timedelta(seconds=1)
# What is known of the sensors is asked for again, and is not gone by.
SENSORS_SECONDS = 2.0
SENSORS_LIMIT_SECONDS = 6.0
FIRST_PAUSE_SECONDS = 1.0
# A request that is refused costs milliseconds; while Dagster's code server starts again, a longer pause is all delay.
LONGEST_PAUSE_SECONDS = 5.0
# So long after it was taken a launch is still asked for: with the request's own bound its lease is not over by then.
ASK_WITHIN_SECONDS = 5.0
# At one boundary many pipelines may have a batch.
REQUESTS_AT_ONCE = 4

log = structlog.get_logger(__name__)


class Dagster(Protocol):
    """What is asked of Dagster; see ``dagster_client``."""

    def batch_sensors(self) -> dict[str, BatchSensor]:
        """Every batch sensor by name."""

    def launch(self, sensor: BatchSensor, pipeline: str, launch: Launch) -> str:
        """Launch a batch's run; returns the run's id."""


class LateLaunchError(DagsterError):
    """Dagster was not asked: the lease of the launch may be over before it answers."""


@dataclass(frozen=True, slots=True)
class _Push:
    """A launch that was taken, and where it goes; `taken_at` is before that, by the pusher's clock."""

    rules: BatchRules
    batch_time: datetime
    launch: Launch
    sensor: BatchSensor
    taken_at: float


def _is_unlaunched(connection: sa.Connection, rules: BatchRules) -> bool:
    """Return whether a batch waits whose run nobody has asked for: its attempt failed, or its launcher was killed."""
    return any(
        wants_first_launch(batch)
        for batch in unfinished_batches(connection, rules.pipeline_id, limit=rules.concurrent_batches)
    )


class BatchPusher:
    """Pushes for one tracker, in a thread of its own: it delays no turn of the tracker's."""

    def __init__(
        self, engine: sa.Engine, dagster: Dagster, *, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Work on the driver log behind `engine`; `name` is the tracker's, for people; `clock` is monotonic."""
        self._engine = engine
        self._dagster = dagster
        self._name = name
        self._clock = clock
        self._sensors: dict[str, BatchSensor] = {}
        self._sensors_at: float | None = None
        self._paused_until = 0.0
        self._pause = FIRST_PAUSE_SECONDS

    def run(self, stop: threading.Event, term: Callable[[], int | None]) -> None:
        """Push until `stop`, while `term` gives one: the term in which the tracker leads."""
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
        """Push what is due; returns after how many seconds there may be more. Raises DeposedError."""
        wait = IDLE_SECONDS
        due: list[tuple[PipelineRow, BatchRules]] = []
        pipelines = [row for row in list_pipelines(connection) if stands_still(row) is None]
        for row in pipelines:
            rules = BatchRules.of_row(row)
            times = batch_times(connection, rules.pipeline_id)
            due_in = times.due_at - times.now
            if rules.interval >= PUSHED_BELOW:
                due_in += SENSOR_FIRST
            if due_in <= timedelta(0) or _is_unlaunched(connection, rules):
                due.append((row, rules))
            else:
                wait = min(wait, due_in.total_seconds() + 0.001)
        short = any(row.interval < PUSHED_BELOW for row in pipelines)
        if self._clock() < self._paused_until or not (due or short):
            return wait
        # Asked in time, so that a boundary need not wait for the answer.
        if not self._know_sensors(SENSORS_LIMIT_SECONDS if due else SENSORS_SECONDS):
            return wait
        pushes: list[_Push] = []
        for row, rules in due:
            taken, look_again_in = self._take(connection, row, rules, term)
            pushes += taken
            wait = min(wait, look_again_in)
        self._push(connection, pushes, term)
        return wait

    def _know_sensors(self, limit_seconds: float) -> bool:
        """Whether it is known which sensors run, by an answer that is younger than the limit."""
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
        self, connection: sa.Connection, row: PipelineRow, rules: BatchRules, term: int
    ) -> tuple[list[_Push], float]:
        """The launches of a pipeline that are this tracker's now, and after how many seconds there may be more."""
        sensor = self._sensors.get(sensor_name(row.name))
        streams = {stream.name: stream.declaration for stream in list_streams(connection)}
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
            self._failed(answer)
            if not isinstance(answer, DagsterUnansweredError):
                release_launch(
                    connection,
                    pipeline_id=push.rules.pipeline_id,
                    batch_time=push.batch_time,
                    attempt=push.launch.attempt,
                    launcher=self._launcher(term),
                )

    def _launch(self, push: _Push) -> str | DagsterError:
        if (late := self._clock() - push.taken_at) > ASK_WITHIN_SECONDS:
            return LateLaunchError(f"{push.launch.run_key} of {push.rules.pipeline} was taken {late:.1f} s ago")
        try:
            return self._dagster.launch(push.sensor, push.rules.pipeline, push.launch)
        except DagsterError as error:
            return error

    def _launcher(self, term: int) -> str:
        return f"tracker {self._name} in term {term}"

    def _failed(self, error: DagsterError) -> None:
        """Leave everything to the sensor for a while, for longer each time."""
        if self._pause == FIRST_PAUSE_SECONDS:
            log.warning("can't push to Dagster; the batch sensor goes on", error=str(error), kind=type(error).__name__)
        self._sensors_at = None
        self._paused_until = self._clock() + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE_SECONDS)

    def _succeeded(self) -> None:
        self._pause = FIRST_PAUSE_SECONDS
