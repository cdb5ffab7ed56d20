"""Test limits of a batch and the blocks of a window (J05; notes 29): a limit cuts a range, and never stops it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.driver_log.allocated_ranges import ranges_of_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, claim_anew, make_log
from tracker_store.batches.batches import get_batch
from tracker_store.batches.pipelines import apply_stream
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from datetime import datetime

T1, T2, T3, T4, T5 = (NOON + n * INTERVAL for n in (1, 2, 3, 4, 5))
SECOND = timedelta(seconds=1)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    return make_log(connection, receivers=2)


def seconds(first: int, last: int) -> list[datetime]:
    """Return a time in each second of the first interval from `first` to `last`."""
    return [NOON + n * SECOND for n in range(first, last + 1)]


def allocate(
    log: Log, time: datetime, *, records: int | None = None, nbytes: int | None = None
) -> list[tuple[int, int, int]]:
    """Return the batch's ranges as (first, last, records), in the order of receivers."""
    log.tracker.allocate_blocks_to_batch(time, max_records=records, max_bytes=nbytes)
    return [(r.first, r.last, r.records) for r in ranges_of_batch(log.tracker, time)]


def test_j05_a_batch_takes_whole_blocks_up_to_its_records(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 5))
    assert allocate(log, T1, records=25) == [(1, 3, 20)]
    assert allocate(log, T2, records=30) == [(4, 6, 30)]
    assert allocate(log, T3, records=30) == []


def test_j05_a_batch_takes_whole_blocks_up_to_its_bytes(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 5))
    assert allocate(log, T1, nbytes=299) == [(1, 3, 20)]
    assert allocate(log, T2, nbytes=300) == [(4, 6, 30)]


def test_j05_the_smaller_of_two_limits_decides(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 6))
    assert allocate(log, T1, records=100, nbytes=200) == [(1, 3, 20)]
    assert allocate(log, T2, records=10, nbytes=10_000) == [(4, 4, 10)]


def test_j05_a_limit_that_holds_everything_cuts_nothing(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 5))
    assert allocate(log, T1, records=50) == [(1, 6, 50)]


def test_j05_the_cut_at_t_holds_within_a_limit(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(8, 12))
    assert allocate(log, T1, records=40) == [(1, 3, 20)]
    assert allocate(log, T2, records=40) == [(4, 6, 30)]


@pytest.mark.parametrize("limit", ["records", "nbytes"])
def test_a_limit_below_one_block_takes_one_block(log: Log, limit: str) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 3))
    log.add_at(log.receiver_ids[1], *seconds(1, 2))
    got = [allocate(log, time, **{limit: 1}) for time in (T1, T2, T3, T4)]
    assert got == [[(1, 2, 10), (1, 2, 10)], [(3, 3, 10), (3, 3, 10)], [(4, 4, 10)], []]


def test_a_limit_of_zero_takes_one_block(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 2))
    assert allocate(log, T1, records=0) == [(1, 2, 10)]


def test_a_marker_does_not_count_as_a_block(log: Log) -> None:
    """Check claims before the first block: the range includes that block, whatever the limit."""
    receiver_id = log.receiver_ids[0]
    claim_anew(log.connection, receiver_id)
    claim_anew(log.connection, receiver_id)
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON})
    log.add_at(receiver_id, *seconds(1, 2))
    assert allocate(log, T1, records=1) == [(1, 4, 10)]
    assert allocate(log, T2, records=1) == [(5, 5, 10)]


def test_at_least_one_block_does_not_take_a_block_of_the_next_interval(log: Log) -> None:
    receiver_id = log.receiver_ids[0]
    claim_anew(log.connection, receiver_id)
    log.connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :at"), {"at": NOON})
    log.add_at(receiver_id, T1 + SECOND)
    assert allocate(log, T1, records=1) == [(1, 1, 0)]
    batch = get_batch(log.connection, log.pipeline_id, T1)
    assert batch is not None
    assert (batch.state, batch.records, batch.blocks) == (BatchState.COMPLETED, 0, 1)
    assert allocate(log, T2, records=1) == [(2, 3, 10)]


def test_a_trailing_marker_is_in_the_range_within_the_limit(log: Log) -> None:
    receiver_id = log.receiver_ids[0]
    log.add_at(receiver_id, *seconds(1, 2))
    claim_anew(log.connection, receiver_id)
    log.connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = :at WHERE sequence = 4"), {"at": NOON + 3 * SECOND}
    )
    log.add_at(receiver_id, *seconds(4, 5))
    assert allocate(log, T1, records=20) == [(1, 5, 20)]
    assert allocate(log, T2, records=20) == [(6, 7, 20)]


def test_each_receiver_with_blocks_gets_an_equal_share(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 9))
    log.add_at(log.receiver_ids[1], *seconds(1, 3))
    assert allocate(log, T1, records=40) == [(1, 3, 20), (1, 3, 20)]
    assert allocate(log, T2, records=40) == [(4, 5, 20), (4, 4, 10)]
    # A receiver on its own has the whole limit.
    assert allocate(log, T3, records=40) == [(6, 9, 40)]


def test_a_receiver_whose_blocks_are_all_after_the_cut_gets_no_share(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 4))
    log.add_at(log.receiver_ids[1], T1 + SECOND)
    assert allocate(log, T1, records=40) == [(1, 5, 40)]


def test_a_limited_pipeline_falls_behind_and_loses_nothing(log: Log) -> None:
    log.add_at(log.receiver_ids[0], *seconds(1, 9))
    seen: list[int] = []
    for time in (T1, T2, T3, T4, T5):
        assert allocate(log, time, records=20)
        seen += [b.sequence for b in log.tracker.get_blocks_of_batch(time)]
    assert seen == list(range(2, 11))
    assert not log.tracker.has_unallocated_blocks()


# -- windows -----------------------------------------------------------------------------------------------------------


def window(log: Log, time: datetime, intervals: int, stream_id: int | None = None) -> list[tuple[int, int]]:
    blocks = log.tracker.get_blocks_of_window_and_stream(time, intervals * INTERVAL, stream_id or log.stream_id)
    return [(b.receiver_id, b.sequence) for b in blocks]


def test_a_window_has_the_batches_of_its_length_that_end_with_its_batch(log: Log) -> None:
    first, second = log.receiver_ids
    log.add_at(first, NOON + SECOND, T1 + SECOND, T2 + SECOND, T3 + SECOND)
    log.add_at(second, T1 + 2 * SECOND, T2 + 2 * SECOND)
    for time in (T1, T2, T3, T4):
        log.tracker.allocate_blocks_to_batch(time)
    assert window(log, T3, 1) == [(first, 4), (second, 3)]
    assert window(log, T3, 2) == [(first, 3), (first, 4), (second, 2), (second, 3)]
    assert window(log, T3, 9) == [(first, 2), (first, 3), (first, 4), (second, 2), (second, 3)]
    assert window(log, T5, 2) == [(first, 5)]


def test_a_window_over_merged_batches_has_each_block_once(log: Log) -> None:
    [first, _] = log.receiver_ids
    log.add_at(first, NOON + SECOND, T1 + SECOND, T2 + SECOND)
    log.tracker.allocate_blocks_to_batch(T2, oldest_time=T1)
    log.tracker.allocate_blocks_to_batch(T3)
    assert window(log, T3, 2) == [(first, 2), (first, 3), (first, 4)]
    assert window(log, T3, 1) == [(first, 4)]


def test_a_window_is_of_one_stream(log: Log) -> None:
    other = apply_stream(log.connection, name="other", declaration={"source": {}, "settings": {}}, receivers=1)
    log.connection.execute(
        sa.text("UPDATE forebay.pipelines SET stream_ids = CAST(:streams AS bigint[])"),
        {"streams": [log.stream_id, other]},
    )
    [receiver_id] = log.connection.execute(
        sa.text("SELECT id FROM forebay.receivers WHERE stream_id = :s"), {"s": other}
    ).scalars()
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.add_at(receiver_id, NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(T1)
    assert window(log, T1, 1) == [(log.receiver_ids[0], 2)]
    assert window(log, T1, 1, other) == [(receiver_id, 2)]
