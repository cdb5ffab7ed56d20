"""Test back pressure on a real driver log: batches of known cost in virtual time, receivers steered by their rates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.tracker.rate_controller import STILL_AFTER_SECONDS, RateController
from orchestration.tracker.tracker import Tracker
from tests.support.clock import Clock
from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.attempts import claim_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log
from tracker_store.batches.batches import claim_attempt, claim_replay, complete_batch, complete_replay, fail_attempt
from tracker_store.batches.pipelines import apply_pipeline, apply_stream
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import heartbeat, register_process
from tracker_store.receivers.rates import (
    StreamRate,
    rated_receivers,
    record_stream_rate,
    set_rate_limits,
    stream_rates,
)
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.blocks.blocks import Claim

SECOND = timedelta(seconds=1)


def declare(connection: sa.Connection, name: str, stream_ids: Sequence[int], **settings: object) -> int:
    """Declare a pipeline with these settings, decided up to NOON."""
    limits = {key: settings.pop(key) for key in ("max_records_per_batch",) if key in settings}
    declared = PipelineSettings.model_validate({"backpressure_enabled": True, **settings})
    pipeline_id = apply_pipeline(
        connection,
        name=name,
        declaration={"max_attempts": 3, "streams": [], "settings": declared.model_dump(mode="json"), **limits},
        stream_ids=stream_ids,
        interval=INTERVAL,
    )
    connection.execute(
        sa.text(
            "UPDATE forebay.pipelines SET last_batch_time = :noon WHERE id = :id "
            "AND NOT EXISTS (SELECT FROM forebay.batches b WHERE b.pipeline_id = :id)"
        ),
        {"noon": NOON, "id": pipeline_id},
    )
    return pipeline_id


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Yield a log with two receivers, and a pipeline with back pressure on."""
    log = make_log(connection, receivers=2)
    declare(connection, "words", [log.stream_id])
    return log


@pytest.fixture
def term(log: Log) -> int:
    term = take_leadership(log.connection, seen=read_leadership(log.connection), holder="a test")
    assert term is not None
    return term


def complete(log: Log, batch_time: datetime, *, start: datetime, end: datetime, pipeline_id: int | None = None) -> None:
    """Complete the batch as if it had run from `start` to `end`."""
    pipeline = log.pipeline_id if pipeline_id is None else pipeline_id
    claim_attempt(log.connection, pipeline_id=pipeline, batch_time=batch_time, attempt=1, run_id="run", process_id=1)
    complete_batch(log.connection, pipeline_id=pipeline, batch_time=batch_time, attempt=1, outputs=[])
    values = {"p": pipeline, "t": batch_time, "start": start, "end": end}
    log.connection.execute(
        sa.text(
            "UPDATE forebay.batch_attempts SET started_at = :start, ended_at = :end "
            "WHERE pipeline_id = :p AND batch_time = :t"
        ),
        values,
    )
    log.connection.execute(
        sa.text("UPDATE forebay.batches SET completed_at = :end WHERE pipeline_id = :p AND batch_time = :t"), values
    )


def run(
    log: Log, number: int, *, seconds: float, waited: float = 0.0, pipeline_id: int | None = None, **limits: int
) -> None:
    """Allocate and complete the batch of the interval with this number, from 1."""
    time = NOON + number * INTERVAL
    pipeline = log.pipeline_id if pipeline_id is None else pipeline_id
    ReceivedBlockTracker(log.connection, pipeline).allocate_blocks_to_batch(time, max_records=limits.get("max_records"))
    start = time + timedelta(seconds=waited)
    complete(log, time, start=start, end=start + timedelta(seconds=seconds), pipeline_id=pipeline)


def fill(log: Log, intervals: int, *, records: int = 1000, blocks: int = 1) -> None:
    """Add this number of records in each of the first intervals, from the first receiver, in this number of blocks."""
    log.add_at(
        log.receiver_ids[0],
        *(NOON + n * INTERVAL + (b + 1) * SECOND for n in range(intervals) for b in range(blocks)),
        records=records // blocks,
    )


def rates(log: Log) -> list[float | None]:
    return [receiver.rate_limit for receiver in rated_receivers(log.connection)]


def tick(log: Log, term: int) -> None:
    """Tick a controller without memory: its whole state is in the driver log."""
    RateController(Clock()).tick(log.connection, term=term)


@dataclass
class Source:
    """Receivers in virtual time: each adds one block per second, of what the source has and the rate allows."""

    log: Log
    claims: list[Claim]
    next_sequence: int
    process_id: int
    per_second: int

    def second(self, time: datetime) -> int:
        """Receive the second that begins at `time`; return the number of records received."""
        steered = {
            response.receiver_id: response.rate_limit
            for response in heartbeat(
                self.log.connection, process_id=self.process_id, receiver_ids=self.log.receiver_ids
            )
        }
        came = 0
        for claimed in self.claims:
            limit = steered[claimed.receiver_id]
            share = self.per_second // len(self.claims)
            records = share if limit is None else min(share, int(limit))
            add(self.log.connection, block(claimed, self.next_sequence, records=records))
            self.log._backdate(claimed.receiver_id, self.next_sequence, time)
            came += records
        self.next_sequence += 1
        return came


def test_c03_a_pipeline_that_is_slower_than_its_source_settles(log: Log, term: int) -> None:
    """Check with 1 ms per record and 2,000 records per second: twice what the batches can process."""
    claims = [claim_anew(log.connection, receiver_id) for receiver_id in log.receiver_ids]
    for claimed in claims:
        log._backdate(claimed.receiver_id, claimed.sequence, NOON)
    process_id = register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1)
    source = Source(log, claims, claims[0].sequence + 1, process_id, per_second=2000)
    intervals = 40
    came = [0] * intervals
    delays: list[float] = []
    running: tuple[datetime, datetime, datetime] | None = None
    free = NOON
    next_batch = NOON + INTERVAL
    for second in range(intervals * 10):
        now = NOON + second * SECOND
        while True:
            if running is not None and running[2] <= now:
                complete(log, running[0], start=running[1], end=running[2])
                tick(log, term)
                free, running = running[2], None
            elif running is None and next_batch <= now:
                log.tracker.allocate_blocks_to_batch(next_batch)
                records = sum(allocated.records for allocated in ranges_of_batch(log.tracker, next_batch))
                start = max(next_batch, free)
                delays.append((start - next_batch).total_seconds())
                running = (next_batch, start, start + timedelta(milliseconds=records))
                next_batch += INTERVAL
            else:
                break
        came[second // 10] += source.second(now)
    assert len(delays) > 30
    assert max(delays) == max(delays[:10]), "the scheduling delay stops growing within 10 batches"
    assert delays[-1] <= 1
    for records in came[-10:]:
        assert records / 10 == pytest.approx(1000, rel=0.1)
    [decided] = stream_rates(log.connection)
    assert decided.rate_limit == pytest.approx(1000, rel=0.1)


def test_c03_the_first_batch_sets_no_rate_and_the_second_one_for_each_receiver(log: Log, term: int) -> None:
    fill(log, 3)
    run(log, 1, seconds=5)
    tick(log, term)
    assert rates(log) == [None, None]
    run(log, 2, seconds=10, waited=2)
    tick(log, term)
    # 200/s, then 100/s after a wait of 2 s, which is 20: 200 - 100 - 0.2 * 20 = 96, but at least 100.
    assert rates(log) == [50.0, 50.0]
    [response, _] = heartbeat(
        log.connection,
        process_id=register_process(log.connection, kind=ProcessKind.RECEIVER, name="r", host="h", pid=1),
        receiver_ids=log.receiver_ids,
    )
    assert response.rate_limit == 50.0


def test_c03_k10_a_receiver_that_is_not_there_yet_starts_with_its_rate(engine: sa.Engine, log: Log, term: int) -> None:
    """Check this because the original lost a rate that was sent before the receiver had registered."""
    fill(log, 2)
    for number in (1, 2):
        run(log, number, seconds=1)
        tick(log, term)
    assert rates(log) == [500.0, 500.0]
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=4)
    register_process(log.connection, kind=ProcessKind.AGENT, name="a", host="a", pid=1, slots=9)
    log.connection.execute(sa.text("UPDATE forebay.leadership SET holder = NULL"))
    Tracker(engine, heartbeat_limit_seconds=10, clock=Clock()).tick(log.connection)
    assert rates(log) == [250.0] * 4
    assert {placement.state.value for placement in placements(log.connection)} == {"SCHEDULED"}


def test_c03_a_batch_counts_once_and_a_replay_not_at_all(log: Log, term: int) -> None:
    fill(log, 3)
    for number in (1, 2):
        run(log, number, seconds=5)
        tick(log, term)
    [before] = stream_rates(log.connection)
    tick(log, term)
    # As a replay would leave the batch if it ever changed it: an older batch that ended now.
    log.connection.execute(
        sa.text("UPDATE forebay.batches SET completed_at = :end WHERE batch_time = :time"),
        {"time": NOON + INTERVAL, "end": NOON + 9 * INTERVAL},
    )
    tick(log, term)
    assert stream_rates(log.connection) == [before]


def test_c03_a_quarantined_batch_that_a_replay_completes_says_nothing(log: Log, term: int) -> None:
    fill(log, 3)
    for number in (1, 2):
        run(log, number, seconds=5)
        tick(log, term)
    [before] = stream_rates(log.connection)
    third = NOON + 3 * INTERVAL
    log.tracker.allocate_blocks_to_batch(third)
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": third}
    claim_attempt(log.connection, **at, attempt=1, run_id="run", process_id=1)
    fail_attempt(log.connection, **at, attempt=1, run_id="run", error="no", max_attempts=1, pauses=[timedelta(0)])
    number = claim_replay(log.connection, **at, run_id="replay", process_id=1, reach=timedelta(0))
    complete_replay(log.connection, **at, attempt=number, outputs=[], due=[])
    tick(log, term)
    [after] = stream_rates(log.connection)
    assert after == replace(before, batch_time=third)


def test_c03_batches_completed_without_a_leader_count_each_in_order(log: Log, term: int) -> None:
    fill(log, 6)
    run(log, 1, seconds=5)
    tick(log, term)
    for number in range(2, 7):
        run(log, number, seconds=2 + number, waited=number)
    tick(log, term)
    [at_once] = stream_rates(log.connection)
    # The same batches, with a tick after each.
    log.connection.execute(
        sa.text(
            "UPDATE forebay.stream_rates SET batch_time = :noon, latest_at = NULL, latest_rate = NULL, "
            "latest_error = NULL, rate_limit = NULL"
        ),
        {"noon": NOON},
    )
    log.connection.execute(sa.text("CREATE TABLE public.later AS SELECT * FROM forebay.batches"))
    log.connection.execute(sa.text("UPDATE forebay.batches SET state = 'ALLOCATED', completed_at = NULL"))
    for number in range(1, 7):
        log.connection.execute(
            sa.text(
                "UPDATE forebay.batches b SET state = l.state, completed_at = l.completed_at FROM public.later l "
                "WHERE l.batch_time = b.batch_time AND b.batch_time = :time"
            ),
            {"time": NOON + number * INTERVAL},
        )
        tick(log, term)
    assert stream_rates(log.connection) == [at_once]


def test_c03_the_slowest_pipeline_with_back_pressure_decides(log: Log, term: int) -> None:
    slow = declare(log.connection, "slow", [log.stream_id])
    free = declare(log.connection, "free", [log.stream_id], backpressure_enabled=False)
    fill(log, 2, records=10_000)
    for number in (1, 2):
        run(log, number, seconds=5)
        run(log, number, seconds=8, pipeline_id=slow)
        run(log, number, seconds=10, pipeline_id=free)
    tick(log, term)
    assert {rate.pipeline_id: rate.rate_limit for rate in stream_rates(log.connection)} == {
        log.pipeline_id: None,
        slow: None,
    }
    # The first look at a pipeline is at its newest batch; so one more batch for each.
    fill_from = NOON + 2 * INTERVAL + SECOND
    log.add_at(log.receiver_ids[0], fill_from, records=10_000)
    run(log, 3, seconds=5)
    run(log, 3, seconds=8, pipeline_id=slow)
    tick(log, term)
    assert rates(log) == [625.0, 625.0]
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp() WHERE id = :id"), {"id": slow}
    )
    tick(log, term)
    assert rates(log) == [1000.0, 1000.0]
    declare(log.connection, "words", [log.stream_id], backpressure_enabled=False)
    tick(log, term)
    assert rates(log) == [None, None]


def test_c03_w18_a_pipeline_that_stands_still_holds_nobody_up_until_it_goes_on(log: Log, term: int) -> None:
    fill(log, 4)
    clock = Clock()
    controller = RateController(clock)

    def look(seconds: float) -> list[float | None]:
        for _ in range(round(seconds)):
            clock.now += 1
            controller.tick(log.connection, term=term)
        return rates(log)

    for number in (1, 2):
        run(log, number, seconds=5)
        look(1)
    assert look(STILL_AFTER_SECONDS - 5) == [100.0, 100.0]
    assert look(10) == [None, None]
    assert [rate.expired for rate in stream_rates(log.connection)] == [True]
    # A new leader keeps that: it has seen nothing move.
    controller = RateController(clock)
    assert look(3) == [None, None]
    log.tracker.allocate_blocks_to_batch(NOON + 3 * INTERVAL)
    assert look(1) == [100.0, 100.0]
    # A batch that runs for an hour is not a standstill.
    claim_batch(log.connection, log.pipeline_id, NOON + 3 * INTERVAL, run_id="run", process_id=1)
    assert {tuple(look(1)) for _ in range(round(2 * STILL_AFTER_SECONDS))} == {(100.0, 100.0)}


def test_c03_what_a_limit_left_behind_counts(log: Log, term: int) -> None:
    declare(log.connection, "words", [log.stream_id], max_records_per_batch=1000)
    fill(log, 3, records=3000, blocks=3)
    run(log, 1, seconds=2, max_records=1000)
    tick(log, term)
    run(log, 2, seconds=2, max_records=1000)
    tick(log, term)
    # 500/s; after the second batch 4,000 records of the first two intervals wait: 8 s, 400, a fifth of which is 80.
    assert [rate.rate_limit for rate in stream_rates(log.connection)] == [420.0]


def test_a_controller_without_leadership_decides_nothing(log: Log, term: int) -> None:
    fill(log, 3)
    for number in (1, 2):
        run(log, number, seconds=5)
        tick(log, term)
    before, limits = stream_rates(log.connection), rates(log)
    assert take_leadership(log.connection, seen=read_leadership(log.connection), holder="another") == term + 1
    run(log, 3, seconds=9, waited=9)
    tick(log, term)
    assert set_rate_limits(log.connection, term=term, rates={log.receiver_ids[0]: 1.0}) == "deposed"
    assert record_stream_rate(log.connection, term=term, decision=replace(before[0], expired=True)) == "deposed"
    assert (stream_rates(log.connection), rates(log)) == (before, limits)
    tick(log, term + 1)
    assert stream_rates(log.connection) != before


def test_a_decision_for_an_older_or_the_same_batch_changes_nothing(log: Log, term: int) -> None:
    newer = StreamRate(log.pipeline_id, log.stream_id, NOON + INTERVAL, NOON, 5.0, 1.0, 5.0, expired=False)
    older = replace(newer, batch_time=NOON, rate_limit=9.0)
    assert record_stream_rate(log.connection, term=term, decision=newer) == "recorded"
    assert record_stream_rate(log.connection, term=term, decision=older) == "reckoned before"
    assert record_stream_rate(log.connection, term=term, decision=newer) == "reckoned before"
    assert stream_rates(log.connection) == [newer]
