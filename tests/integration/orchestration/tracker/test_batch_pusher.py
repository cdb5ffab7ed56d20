"""Test the pusher on a real driver log: what it launches, and what it leaves to the batch sensor."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_schedule import declaration_fingerprint
from orchestration.dagster_defs.sensors.batch_sensor import tick
from orchestration.dagster_instance.dagster_client import (
    BatchSensor,
    DagsterClient,
    DagsterError,
    DagsterUnansweredError,
    DagsterUnreachableError,
    LaunchRefusedError,
    RunNotStartedError,
)
from orchestration.declarations.apply import apply
from orchestration.tracker.batch_pusher import BatchPusher
from tests.integration.orchestration.boundaries import complete_launched, is_in_time
from tests.support.commands.run_program import run_program
from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.driver_log.log import Log, oldest_unfinished_batch
from tests.support.polling import eventually, joined
from tests.support.postgres.counted_statements import counted
from tracker_store.batches import batches
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import batch_times
from tracker_store.receivers.leadership import DeposedError, read_leadership, take_leadership
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from orchestration.batches.batch_schedule import Launch

INTERVAL = timedelta(minutes=10)
SECOND = timedelta(seconds=1)


class FakeDagster(DagsterClient):
    """A Dagster that knows the sensor of `pipeline` and records the launches; with `error` it raises that instead."""

    def __init__(self, pipeline: Pipeline, *, is_running: bool = True) -> None:
        super().__init__("http://127.0.0.1:1")
        streams = {stream.name: stream.declaration() for stream in pipeline.streams}
        fingerprint = declaration_fingerprint(pipeline.declaration(), streams)
        name = f"{pipeline.name}_batches"
        self.sensors = {name: BatchSensor(name, "forebay", "__repository__", is_running, fingerprint)}
        self.launched: list[str] = []
        self.error: DagsterError | None = None

    def batch_sensors(self) -> dict[str, BatchSensor]:
        return self.sensors

    def launch(self, sensor: BatchSensor, pipeline: str, launch: Launch) -> str:
        if self.error is not None:
            raise self.error
        assert (sensor.name, pipeline) == ("words_batches", "words")
        self.launched.append(launch.run_key)
        return "the-run"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def declare(interval: timedelta = INTERVAL, **arguments: object) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval=interval, **arguments)  # type: ignore[arg-type]
    pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    return pipeline


def behind(connection: sa.Connection, pipeline: Pipeline, boundaries: int = 1) -> list[datetime]:
    """Apply the pipeline as if its last batch was `boundaries` intervals ago, each with a block; return those due."""
    apply(connection, [pipeline])
    row = get_pipeline(connection, pipeline.name)

    def times_are_past() -> bool:
        times = batch_times(connection, row.pipeline_id)
        return 2 * SECOND < times.now - times.newest < INTERVAL - 30 * SECOND

    eventually(times_are_past, "a moment that is not just after a boundary, nor just before one", seconds=60)
    newest = batch_times(connection, row.pipeline_id).newest
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :at"), {"at": newest - boundaries * INTERVAL}
    )
    times = [newest - n * INTERVAL for n in reversed(range(boundaries))]
    log = Log(connection, row.stream_ids[0], row.pipeline_id, [p.receiver_id for p in placements(connection)])
    log.add_at(log.receiver_ids[0], *(time - SECOND for time in times))
    return times


def one_due(connection: sa.Connection) -> tuple[Pipeline, datetime, FakeDagster]:
    """Return a pipeline, its one batch time that is due, and a Dagster that runs its sensor."""
    pipeline = declare()
    [time] = behind(connection, pipeline)
    return pipeline, time, FakeDagster(pipeline)


def lead(connection: sa.Connection, holder: str = "a") -> int:
    term = take_leadership(connection, seen=read_leadership(connection), holder=holder)
    assert term is not None
    return term


def pusher(engine: sa.Engine, dagster: FakeDagster, name: str = "a") -> BatchPusher:
    return BatchPusher(engine, dagster, name=name)


def test_a_batch_that_is_due_is_pushed_once_and_the_sensor_waits_for_its_run(
    engine: sa.Engine, connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline, time, dagster = one_due(connection)
    pushing, term = pusher(engine, dagster), lead(connection)
    pushing.turn(connection, term)
    pushing.turn(connection, term)
    assert dagster.launched == [f"{time.isoformat()}:1"]
    steps = tick(connection, pipeline, instance)
    assert not steps.launches
    assert "is asked for by tracker a in term" in steps.reason


def test_a_batch_that_the_sensor_launched_first_is_not_pushed(
    engine: sa.Engine, connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline, _time, dagster = one_due(connection)
    assert tick(connection, pipeline, instance).launches
    pusher(engine, dagster).turn(connection, lead(connection))
    assert dagster.launched == []


def test_the_next_batch_is_pushed_when_the_one_before_completes(engine: sa.Engine, connection: sa.Connection) -> None:
    pipeline = declare()
    first, second = behind(connection, pipeline, 2)
    dagster = FakeDagster(pipeline)
    pushing, term = pusher(engine, dagster), lead(connection)
    assert pushing.turn(connection, term) < 1, "there is more behind it"
    row = get_pipeline(connection, pipeline.name)
    claim_batch(connection, row.pipeline_id, first, run_id="the-run", process_id=1)
    pushing.turn(connection, term)
    assert dagster.launched == [f"{first.isoformat()}:1"]
    batches.complete_batch(connection, pipeline_id=row.pipeline_id, batch_time=first, attempt=1, outputs=[])
    pushing.turn(connection, term)
    assert dagster.launched == [f"{first.isoformat()}:1", f"{second.isoformat()}:1"]


def test_a_deposed_tracker_launches_nothing(engine: sa.Engine, connection: sa.Connection) -> None:
    """Check a tracker that still believes that it leads: two trackers that take the same turn launch one run."""
    _pipeline, _time, dagster = one_due(connection)
    old = lead(connection, "a")
    new = lead(connection, "b")
    with pytest.raises(DeposedError):
        pusher(engine, dagster, "a").turn(connection, old)
    assert dagster.launched == []
    pusher(engine, dagster, "b").turn(connection, new)
    assert len(dagster.launched) == 1


def test_a_tracker_deposed_between_its_launch_and_the_answer_makes_no_second_run(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    _pipeline, _time, dagster = one_due(connection)
    pusher(engine, dagster, "a").turn(connection, lead(connection, "a"))
    pusher(engine, dagster, "b").turn(connection, lead(connection, "b"))
    assert len(dagster.launched) == 1


def test_a_webserver_that_is_away_leaves_the_batch_to_the_sensor_at_once(
    engine: sa.Engine, connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline, time, dagster = one_due(connection)
    dagster.error = DagsterUnreachableError("refused")
    pushing, term = pusher(engine, dagster), lead(connection)
    pushing.turn(connection, term)
    [launch] = tick(connection, pipeline, instance).launches
    assert launch.batch_time == time.isoformat()
    # The pusher sends the webserver no further request for a while.
    dagster.error = None
    pushing.turn(connection, term)
    assert dagster.launched == []


def test_a_run_that_dagster_could_not_start_costs_its_attempt_and_no_time(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    _pipeline, time, dagster = one_due(connection)
    dagster.error = RunNotStartedError("PythonError: the server closed the connection", "r9")
    pushing, term = pusher(engine, dagster), lead(connection)
    pushing.turn(connection, term)
    [attempt] = batches.attempts_of_batch(connection, get_pipeline(connection, "words").pipeline_id, time)
    assert (attempt.state, attempt.run_id) == (AttemptState.LOST, "r9")
    dagster.error = None
    pushing.turn(connection, term)
    assert dagster.launched == [f"{time.isoformat()}:2"]


def test_without_an_answer_the_sensor_looks_before_it_launches_and_not_before_the_lease_is_over(
    engine: sa.Engine, connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline, time, dagster = one_due(connection)
    dagster.error = DagsterUnansweredError("timed out")
    pusher(engine, dagster).turn(connection, lead(connection))
    assert not tick(connection, pipeline, instance).launches
    connection.execute(sa.text("UPDATE forebay.batches SET launched_at = launched_at - interval '16 s'"))
    # The request did arrive: its run exists, with the key's tags.
    run = instance.add_run(
        dg.DagsterRun(
            job_name="words_batch",
            status=dg.DagsterRunStatus.STARTING,
            tags={
                "forebay/pipeline": "words",
                "forebay/batch_time": time.isoformat(),
                "forebay/attempt": "1",
            },
        )
    )
    steps = tick(connection, pipeline, instance)
    assert not steps.launches
    assert run.run_id in steps.reason
    instance.delete_run(run.run_id)
    assert len(tick(connection, pipeline, instance).launches) == 1


@pytest.mark.parametrize("why", ["stopped", "unknown", "other code"])
def test_nothing_is_pushed_if_the_sensor_does_not_run_the_applied_code(
    engine: sa.Engine, connection: sa.Connection, why: str
) -> None:
    pipeline = declare()
    behind(connection, pipeline)
    dagster = FakeDagster(declare(max_attempts=9) if why == "other code" else pipeline, is_running=why != "stopped")
    if why == "unknown":
        dagster.sensors = {}
    pusher(engine, dagster).turn(connection, lead(connection))
    assert dagster.launched == []
    row = get_pipeline(connection, pipeline.name)
    assert oldest_unfinished_batch(connection, row.pipeline_id) is None


def test_the_next_attempt_at_a_batch_is_pushed_once_when_it_is_due(
    engine: sa.Engine, connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline, time, dagster = one_due(connection)
    pushing, term = pusher(engine, dagster), lead(connection)
    pushing.turn(connection, term)
    row = get_pipeline(connection, pipeline.name)
    fail_batch(connection, row.pipeline_id, time, run_id="the-run", error="x", pauses=[timedelta(minutes=4)])
    pushing.turn(connection, term)
    assert dagster.launched == [f"{time.isoformat()}:1"], "it is not due"
    connection.execute(sa.text("UPDATE forebay.batches SET retry_at = clock_timestamp()"))
    pushing.turn(connection, term)
    pushing.turn(connection, term)
    assert dagster.launched == [f"{time.isoformat()}:1", f"{time.isoformat()}:2"]
    assert "is asked for by tracker a" in tick(connection, pipeline, instance).reason


def test_an_attempt_that_the_sensor_has_launched_is_not_pushed(
    engine: sa.Engine, connection: sa.Connection, instance: dg.DagsterInstance
) -> None:
    pipeline = declare()
    [time] = behind(connection, pipeline)
    assert tick(connection, pipeline, instance).launches
    row = get_pipeline(connection, pipeline.name)
    fail_batch(connection, row.pipeline_id, time, run_id="the-run", error="x")
    assert [launch.attempt for launch in tick(connection, pipeline, instance).launches] == [2]
    # Whatever happened to that run: looking for it in Dagster is the sensor's task.
    connection.execute(sa.text("UPDATE forebay.batches SET launched_at = launched_at - interval '1 hour'"))
    dagster = FakeDagster(pipeline)
    pusher(engine, dagster).turn(connection, lead(connection))
    assert dagster.launched == []


def test_a_short_interval_is_pushed_at_its_boundary(engine: sa.Engine, connection: sa.Connection) -> None:
    """Check what docs/how-to/intervals.md says: under 0.2 s late, in the median of nine batches."""
    pipeline = declare(SECOND, run_empty_batches=True)
    apply(connection, [pipeline])
    dagster = FakeDagster(pipeline)
    pushing, term, stop = pusher(engine, dagster), lead(connection), threading.Event()
    thread = threading.Thread(target=pushing.run, args=(stop, lambda: term))
    thread.start()

    def are_pushed_in_time() -> bool:
        complete_launched(connection)
        # While this machine is busy with something else, later batches are looked at.
        return is_in_time(connection, "launched_at")

    try:
        eventually(are_pushed_in_time, "nine batches launched at their boundaries", seconds=120)
    finally:
        stop.set()
        joined(thread)
    assert dagster.launched


def test_j01_the_pusher_waits_for_exactly_the_next_boundary(engine: sa.Engine, connection: sa.Connection) -> None:
    """Check the wait itself, however busy the machine is: a fixed pause would be at a boundary only by chance."""
    pipeline = declare(SECOND)
    apply(connection, [pipeline])
    pushing, term = pusher(engine, FakeDagster(pipeline)), lead(connection)
    row = get_pipeline(connection, pipeline.name)

    def due_in() -> float:
        times = batch_times(connection, row.pipeline_id)
        return (times.due_at - times.now).total_seconds()

    waits: list[float] = []

    def are_measured() -> bool:
        before, wait, after = due_in(), pushing.turn(connection, term), due_in()
        # Unless a boundary has passed meanwhile.
        if 0 < after < before:
            assert after <= wait <= before + 0.002
            waits.append(wait)
        return len(waits) >= 20 and max(waits) - min(waits) > 0.5

    eventually(are_measured, "waits at many moments of an interval")


def test_j08_a_process_without_any_file_goes_on_with_what_was_pending(
    engine: sa.Engine, connection: sa.Connection, database_url: str, tmp_path: Path
) -> None:
    """Check that there is no checkpoint: another process, in an empty home, needs the driver log alone."""
    pipeline = declare()
    first, second = behind(connection, pipeline, 2)
    pusher(engine, FakeDagster(pipeline)).turn(connection, lead(connection))
    pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
    claim_batch(connection, pipeline_id, first, run_id="the-run", process_id=1)
    fail_batch(connection, pipeline_id, first, run_id="the-run", error="x")

    def launched_by_another_process() -> str:
        done = run_program(
            [sys.executable, "-c", _LAUNCHES, database_url],
            env={"PATH": os.environ["PATH"], "FOREBAY_HOME": str(tmp_path)},
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert launched_by_another_process() == f"{first.isoformat()}:2"
    claim_batch(connection, pipeline_id, first, 2, run_id="another", process_id=1)
    batches.complete_batch(connection, pipeline_id=pipeline_id, batch_time=first, attempt=2, outputs=[])
    assert launched_by_another_process() == f"{second.isoformat()}:1"
    assert list(tmp_path.iterdir()) == []


_LAUNCHES = """
import sys
from orchestration.batches.batch_schedule import BatchRules, next_steps
from tracker_store.connection.engine import connect, create_engine
from tracker_store.batches.pipelines import get_pipeline
with connect(create_engine(sys.argv[1], application_name="another process")) as connection:
    rules = BatchRules.of_row(get_pipeline(connection, "words"))
    print(*[launch.run_key for launch in next_steps(connection, rules, launcher="another", runs=None).launches])
"""


def test_a_tracker_without_leadership_pushes_nothing(engine: sa.Engine, connection: sa.Connection) -> None:
    _pipeline, _time, dagster = one_due(connection)
    asked, stop = threading.Event(), threading.Event()

    def term() -> None:
        asked.set()

    thread = threading.Thread(target=pusher(engine, dagster).run, args=(stop, term))
    thread.start()
    assert asked.wait(30)
    stop.set()
    joined(thread)
    assert dagster.launched == []


class SlowDagster(FakeDagster):
    """A Dagster that takes six seconds for each request."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(pipeline)
        self.now = 0.0

    def launch(self, sensor: BatchSensor, pipeline: str, launch: Launch) -> str:
        self.now += 6
        return super().launch(sensor, pipeline, launch)


def test_a_launch_that_could_not_be_requested_in_time_is_given_back_and_not_requested_late(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    """Check this because the batch sensor launches it when its lease is over: an attempt would have two runs."""
    pipeline = declare(concurrent_batches=8)
    times = behind(connection, pipeline, 8)
    dagster = SlowDagster(pipeline)
    BatchPusher(engine, dagster, name="a", clock=lambda: dagster.now).turn(connection, lead(connection))
    row = get_pipeline(connection, pipeline.name)
    waiting = batches.unfinished_batches(connection, row.pipeline_id, limit=8)
    given_back = [batch.batch_time for batch in waiting if batch.launch_attempt is None]
    # Four requests are made at once.
    assert 1 <= len(dagster.launched) <= 4
    assert sorted([*dagster.launched, *(f"{time.isoformat()}:1" for time in given_back)]) == [
        f"{time.isoformat()}:1" for time in times
    ]


def test_requests_to_a_dagster_that_refuses_back_off(
    engine: sa.Engine, connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check with a read-only webserver, for example: it reports which sensors run, and launches nothing."""
    _pipeline, _time, dagster = one_due(connection)
    now = 0.0
    refused: list[float] = []

    def refuse(*_: object) -> str:
        refused.append(now)
        raise LaunchRefusedError("UnauthorizedError")

    monkeypatch.setattr(dagster, "launch", refuse)
    pushing, term = BatchPusher(engine, dagster, name="a", clock=lambda: now), lead(connection)
    while now < 60:
        pushing.turn(connection, term)
        now += 0.5
    assert len(refused) < 16


def _turn_of_many(engine: sa.Engine, connection: sa.Connection, pipelines: int) -> tuple[int, int]:
    """Add idle pipelines until there are that many, each with its stream; count what a turn with one due sends."""
    connection.execute(
        sa.text("""
            INSERT INTO forebay.streams (name, declaration)
            SELECT 'idle-' || n, '{"source": {}, "settings": {}}'
            FROM generate_series(1, :pipelines) AS n
            ON CONFLICT DO NOTHING
        """),
        {"pipelines": pipelines},
    )
    connection.execute(
        sa.text("""
            INSERT INTO forebay.pipelines (name, declaration, stream_ids, batch_interval, last_batch_time)
            SELECT s.name, '{"max_attempts": 3, "streams": []}', ARRAY[s.id], interval '10 minutes', clock_timestamp()
            FROM forebay.streams s
            WHERE s.name LIKE 'idle-%'
            ON CONFLICT DO NOTHING
        """)
    )
    pipeline = declare()
    behind(connection, pipeline)
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = clock_timestamp() WHERE name LIKE 'idle-%'")
    )
    dagster = FakeDagster(pipeline)
    term = lead(connection)
    with counted(connection) as sent:
        pusher(engine, dagster).turn(connection, term)
    assert len(dagster.launched) == 1
    for table in ("batches", "batch_allocations", "cursors"):
        connection.execute(sa.text(f"DELETE FROM forebay.{table}"))
    return sent.sizes


def test_a_turn_costs_what_is_due_whatever_the_number_of_pipelines_and_streams(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    few = _turn_of_many(engine, connection, 10)
    assert _turn_of_many(engine, connection, 1_000) == few
    statements, rows = few
    assert statements <= 15
    assert rows <= 15


def test_many_pipelines_that_are_due_share_one_look_at_their_streams(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    pipeline = declare()
    behind(connection, pipeline)
    connection.execute(
        sa.text("""
            INSERT INTO forebay.pipelines (name, declaration, stream_ids, batch_interval, last_batch_time)
            SELECT 'words-' || n, declaration, stream_ids, batch_interval, last_batch_time
            FROM forebay.pipelines, generate_series(1, 50) AS n
        """)
    )
    dagster = FakeDagster(pipeline)
    [sensor] = dagster.sensors.values()
    # Of an older declaration, so that nothing is launched for them.
    dagster.sensors |= {f"words-{n}_batches": replace(sensor, declaration="older") for n in range(1, 51)}
    term = lead(connection)
    with counted(connection) as sent:
        pusher(engine, dagster).turn(connection, term)
    assert len(dagster.launched) == 1
    assert sum("forebay.streams" in statement for statement in sent.statements) == 1
    assert len(sent.statements) <= 15
