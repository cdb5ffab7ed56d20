"""Check with the database's clock set: no block is in two batches or in none, and no pipeline stands still.

A test can't set a server's clock: in its database `clock_timestamp()` is another function, whose time stands still
unless the test moves it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

import pytest
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_schedule import SENSOR_LAUNCHER, BatchRules, next_steps
from orchestration.declarations.apply import apply
from tests.support.driver_log.attempts import fail_batch
from tests.support.driver_log.log import add, block, claim_anew, new_segment
from tracker_store.batches import batches
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import BatchTimes, ReceivedBlockTracker, batch_times
from tracker_store.batches.retry import LONGEST
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import BatchState, ProcessKind

INTERVAL = timedelta(seconds=10)
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def make_clock_settable(connection: sa.Connection) -> None:
    """Let every function, default and statement of this connection use the clock that `set_clock` moves."""
    run = connection.exec_driver_sql
    run("CREATE TABLE forebay.clock AS SELECT pg_catalog.clock_timestamp() AS time")
    run(
        "CREATE FUNCTION forebay.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
        "'SELECT time FROM forebay.clock'"
    )
    for (function,) in run(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'forebay'::regnamespace"
    ).all():
        # A schema that is not in the search path is searched first: then the server's clock would be found.
        run(f"ALTER FUNCTION {function} SET search_path = forebay, pg_catalog, pg_temp")
    for table, column in run(
        "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'forebay' "
        "AND column_default LIKE 'clock_timestamp()'"
    ).all():
        run(f"ALTER TABLE forebay.{table} ALTER {column} SET DEFAULT forebay.clock_timestamp()")
    run("SET search_path = forebay, pg_catalog")


class System:
    """An applied pipeline on one receiver, whose sensor ticks on request and whose runs succeed at once."""

    def __init__(self, connection: sa.Connection, catch_up: Literal["each", "merge"]) -> None:
        make_clock_settable(connection)
        self.connection = connection
        pipeline = Pipeline("words", interval=INTERVAL, catch_up=catch_up)
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        pipeline.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
        apply(connection, [pipeline])
        self.row = get_pipeline(connection, "words")
        self.pipeline_id = self.row.pipeline_id
        self.rules = BatchRules.of_row(self.row)
        [placement] = placements(connection)
        self._claimed = claim_anew(connection, placement.receiver_id)
        self._sequence = self._claimed.sequence
        self._segment = new_segment(connection, self._claimed, "1/1")

    def receive(self) -> None:
        """Add a block now."""
        self._sequence += 1
        add(self.connection, block(self._claimed, self._sequence, segment_id=self._segment))

    def set_clock(self, by: timedelta) -> None:
        """Set the clock forward, or back."""
        self.connection.execute(sa.text("UPDATE forebay.clock SET time = time + CAST(:by AS interval)"), {"by": by})

    def pass_time(self, by: timedelta = INTERVAL) -> None:
        """Let this time pass: a correct clock has moved by as much."""
        self.set_clock(by)

    def times(self) -> BatchTimes:
        return batch_times(self.connection, self.pipeline_id)

    def tick(self) -> int:
        """Allocate and run what is due; return how many batches had records."""
        made = 0
        while (steps := next_steps(self.connection, self.rules, launcher=SENSOR_LAUNCHER, runs=None)).launches:
            for launch in steps.launches:
                process_id = register_process(self.connection, kind=ProcessKind.BATCH_RUN, name="r", host="h", pid=1)
                whose: dict[str, Any] = {
                    "pipeline_id": self.pipeline_id,
                    "batch_time": datetime.fromisoformat(launch.batch_time),
                    "attempt": launch.attempt,
                }
                batches.claim_attempt(self.connection, **whose, run_id="run", process_id=process_id)
                batches.complete_batch(self.connection, **whose, outputs=[])
                made += 1
        self.reason = steps.reason
        return made

    def check_each_block_is_in_one_batch(self) -> None:
        held = self.connection.execute(
            sa.text(
                "SELECT count(a.batch_time) FROM forebay.blocks b LEFT JOIN forebay.batch_allocations a "
                "ON a.receiver_id = b.receiver_id AND b.sequence <@ a.sequences GROUP BY b.receiver_id, b.sequence"
            )
        ).scalars()
        assert set(held) == {1}


@pytest.fixture(params=["each", "merge"])
def system(connection: sa.Connection, request: pytest.FixtureRequest) -> System:
    return System(connection, request.param)


def start(system: System) -> None:
    """Run two batches, and leave the clock in the middle of an interval."""
    times = system.times()
    system.set_clock(times.newest + INTERVAL + INTERVAL / 2 - times.now)
    for _ in range(2):
        system.receive()
        system.pass_time()
        assert system.tick() == 1


@pytest.mark.parametrize("by", [10 * SECOND, HOUR, timedelta(days=400)], ids=["10 s", "1 h", "400 days"])
def test_a_clock_set_back_does_not_delay_batches_by_as_long(system: System, by: timedelta) -> None:
    start(system)
    system.set_clock(-by)
    made = 0
    for _ in range(6):
        system.receive()
        made += system.tick()
        system.pass_time()
    assert made >= 3
    for _ in range(2):
        system.pass_time()
        system.tick()
    system.check_each_block_is_in_one_batch()


def test_batch_times_ahead_of_the_clock_come_half_as_often_until_it_catches_up(system: System) -> None:
    start(system)
    system.set_clock(-6 * INTERVAL)
    before = system.times()
    assert system.tick() == 0
    assert "the database's clock was set back, and is behind the last batch time by" in system.reason
    made = []
    for _ in range(20):
        system.receive()
        system.pass_time()
        made.append(system.tick())
    times = system.times()
    assert before.last - before.now > 5 * INTERVAL
    assert timedelta(0) <= times.now - times.last < 2 * INTERVAL
    assert made[:8] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert made[-6:] == [1] * 6
    system.check_each_block_is_in_one_batch()


def test_a_pipeline_without_a_batch_while_the_clock_was_ahead_gets_the_blocks_of_then(system: System) -> None:
    """Check blocks whose times are later than the batch times: they must not wait until the clock gets there again."""
    start(system)
    system.set_clock(HOUR)
    system.receive()
    system.set_clock(-HOUR)
    system.receive()
    system.pass_time()
    assert system.tick() == 1
    system.check_each_block_is_in_one_batch()


def test_a_clock_set_forward_doubles_nothing_and_leaves_nothing_behind(system: System) -> None:
    start(system)
    system.receive()
    system.set_clock(HOUR)
    system.receive()
    system.pass_time()
    assert system.tick() == (1 if system.rules.merge else 2)
    system.check_each_block_is_in_one_batch()


def test_a_failed_batch_is_tried_again_though_the_clock_was_set_back(system: System) -> None:
    start(system)
    system.receive()
    system.pass_time()
    [launch] = next_steps(system.connection, system.rules, launcher=SENSOR_LAUNCHER, runs=None).launches
    fail_batch(
        system.connection,
        system.pipeline_id,
        datetime.fromisoformat(launch.batch_time),
        launch.attempt,
        run_id="r",
        error="boom",
        pauses=[LONGEST],
    )

    def state() -> tuple[BatchState, bool]:
        [row] = batches.unfinished_batches(system.connection, system.pipeline_id, limit=2)
        return row.state, row.retry_due

    assert state() == (BatchState.FAILED, False)
    system.set_clock(-HOUR)
    assert state() == (BatchState.FAILED, True)


def test_a_future_time_is_refused_except_the_next_one_of_a_clock_that_was_set_back(system: System) -> None:
    tracker = ReceivedBlockTracker(system.connection, system.pipeline_id)
    start(system)
    next_due = system.times().next_due
    for step, refused in [
        (timedelta(0), next_due),
        (timedelta(0), next_due + INTERVAL),
        (-HOUR, next_due + INTERVAL),
        # The next batch time is accepted at once, although no clock shows it.
        (timedelta(0), None),
        (timedelta(0), next_due + INTERVAL),
        (INTERVAL, next_due + INTERVAL),
    ]:
        system.set_clock(step)
        if refused is None:
            tracker.allocate_blocks_to_batch(next_due)
        else:
            with pytest.raises(DriverLogError, match="has not come"):
                tracker.allocate_blocks_to_batch(refused)
    system.pass_time()
    tracker.allocate_blocks_to_batch(next_due + INTERVAL)
