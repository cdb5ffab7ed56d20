"""Test named readers: cursors of streaming queries, which clean-up respects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, new_segment
from tests.support.polling import eventually
from tracker_store.batches.pipelines import apply_pipeline, apply_stream, list_streams
from tracker_store.batches.readers import (
    attach_reader,
    blocks_between,
    list_readers,
    move_reader,
    newest_positions,
    next_positions,
    remove_reader,
)
from tracker_store.blocks.stream_schemas import schemas_of_stream
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError, NotAppliedError
from tracker_store.retention.cleanup import clean_up_receiver

TIMES = [NOON + timedelta(seconds=n) for n in range(5)]


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Yield a stream with one receiver and no pipeline."""
    made = make_log(connection)
    connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = clock_timestamp()"))
    return made


@pytest.fixture
def receiver_id(log: Log) -> int:
    [receiver_id] = log.receiver_ids
    return receiver_id


def clean_up(log: Log, receiver_id: int) -> int:
    now = datetime.now(UTC)
    return clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=now, max_rows=1000).blocks


def test_a_reader_begins_with_the_earliest_or_after_the_latest(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    earliest = attach_reader(log.connection, name="a", stream="lines")
    assert earliest.positions == {receiver_id: 1}
    latest = attach_reader(log.connection, name="b", stream="lines", start="latest")
    assert latest.positions == {receiver_id: 7}
    # Attached again, it keeps its position, whatever start is given.
    assert attach_reader(log.connection, name="a", stream="lines", start="latest") == earliest


def test_no_reader_has_the_id_of_a_pipeline(log: Log) -> None:
    """Check that a cursor's consumer is one of them, whichever came first."""
    ids = {log.pipeline_id}
    for number in range(3):
        ids.add(attach_reader(log.connection, name=f"r{number}", stream="lines").reader_id)
        ids.add(
            apply_pipeline(
                log.connection,
                name=f"p{number}",
                declaration={"streams": ["lines"]},
                stream_ids=[log.stream_id],
                interval=INTERVAL,
            )
        )
    assert len(ids) == 7


def test_what_a_reader_has_not_read_is_not_cleaned_up_and_what_it_has_is(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    assert clean_up(log, receiver_id) == 0
    move_reader(log.connection, reader.reader_id, {receiver_id: 4})
    assert clean_up(log, receiver_id) == 3
    # A cursor never goes back, so it claims no deleted blocks.
    move_reader(log.connection, reader.reader_id, {receiver_id: 2})
    [lag] = list_readers(log.connection)
    assert (lag.waiting_blocks, lag.waiting_records) == (3, 30)
    assert lag.oldest_added_at == TIMES[2]


def test_a_reader_holds_a_pipelines_blocks_back_too(log: Log, receiver_id: int) -> None:
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET removed_at = NULL"))
    log.add_at(receiver_id, *TIMES)
    log.tracker.allocate_blocks_to_batch(NOON + timedelta(seconds=10))
    log.connection.execute(sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = now()"))
    attach_reader(log.connection, name="a", stream="lines")
    assert clean_up(log, receiver_id) == 0
    remove_reader(log.connection, "a")
    assert clean_up(log, receiver_id) == 5


def test_a_receiver_added_after_the_reader_is_kept_from_its_first_block(log: Log) -> None:
    reader = attach_reader(log.connection, name="a", stream="lines", start="latest")
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=2)
    [second] = log.connection.execute(sa.text("SELECT id FROM forebay.receivers WHERE ordinal = 2")).scalars()
    log.add_at(second, *TIMES)
    assert clean_up(log, second) == 0
    positions = next_positions(log.connection, reader.reader_id, reader.positions)
    assert positions[second] == 7
    assert len(blocks_between(log.connection, reader.reader_id, reader.positions, positions)) == 5


def test_markers_alone_are_nothing_to_read(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    at_end = next_positions(log.connection, reader.reader_id, reader.positions)
    assert at_end == {receiver_id: 7}
    claim_anew(log.connection, receiver_id)
    assert next_positions(log.connection, reader.reader_id, at_end) == at_end
    assert newest_positions(log.connection, reader.reader_id) == {receiver_id: 8}


def test_a_position_never_includes_uncommitted_blocks(log: Log, engine: sa.Engine, receiver_id: int) -> None:
    reader = attach_reader(log.connection, name="a", stream="lines")
    claimed = claim_anew(log.connection, receiver_id)
    segment_id = new_segment(log.connection, claimed, "p")
    add(log.connection, block(claimed, 2, segment_id=segment_id))
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as other, other.begin():
        add(other, block(claimed, 3, segment_id=segment_id))
        assert next_positions(log.connection, reader.reader_id, {}) == {receiver_id: 3}
    assert next_positions(log.connection, reader.reader_id, {}) == {receiver_id: 4}
    found = blocks_between(log.connection, reader.reader_id, {receiver_id: 3}, {receiver_id: 4})
    assert [each.sequence for each in found] == [3]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        # The first sequence is a marker; each block has ten records.
        ({"max_blocks": 1}, 3),
        ({"max_blocks": 3}, 4),
        ({"max_records": 1}, 3),
        ({"max_records": 25}, 4),
        ({"max_records": 50}, 7),
        ({"max_records": 50, "max_blocks": 3}, 4),
    ],
)
def test_limits(log: Log, receiver_id: int, limits: dict[str, int], expected: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    reached = next_positions(log.connection, reader.reader_id, reader.positions, **limits)
    assert reached == {receiver_id: expected}


def test_a_limit_is_shared_by_the_receivers_with_blocks(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=3)
    first, second, _ = log.receiver_ids
    log.add_at(first, *TIMES)
    log.add_at(second, *TIMES)
    reader = attach_reader(connection, name="a", stream="lines")
    reached = next_positions(connection, reader.reader_id, reader.positions, max_records=40)
    assert {reached[first], reached[second]} == {4}


def test_a_position_that_is_cleaned_up_is_a_clear_error(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    move_reader(log.connection, reader.reader_id, {receiver_id: 5})
    assert clean_up(log, receiver_id) == 4
    for ask in (
        lambda: next_positions(log.connection, reader.reader_id, {receiver_id: 2}),
        lambda: blocks_between(log.connection, reader.reader_id, {receiver_id: 2}, {receiver_id: 6}),
    ):
        with pytest.raises(DriverLogError, match=r"blocks 2 to 4 are cleaned up.*new checkpoint"):
            ask()
    # A checkpoint ahead of the cursor is normal: every query has one between two commits.
    assert len(blocks_between(log.connection, reader.reader_id, {receiver_id: 6}, {receiver_id: 7})) == 1


def test_a_receiver_missing_from_a_checkpoint_is_not_read_in_part(log: Log, receiver_id: int) -> None:
    """Check a receiver that was added after the checkpoint, and whose blocks were read and cleaned up since.

    A query on that older checkpoint can't continue.
    """
    reader = attach_reader(log.connection, name="a", stream="lines")
    checkpoint = dict(reader.positions)
    apply_stream(log.connection, name="lines", declaration={"source": {}, "settings": {}}, receivers=2)
    [second] = log.connection.execute(sa.text("SELECT id FROM forebay.receivers WHERE ordinal = 2")).scalars()
    log.add_at(second, *TIMES)
    move_reader(log.connection, reader.reader_id, {second: 4})
    assert clean_up(log, second) == 3
    for ask in (
        lambda: next_positions(log.connection, reader.reader_id, checkpoint),
        lambda: blocks_between(log.connection, reader.reader_id, checkpoint, {receiver_id: 1, second: 7}),
    ):
        with pytest.raises(DriverLogError, match="blocks 1 to 3 are cleaned up"):
            ask()
    remove_reader(log.connection, "a")
    with pytest.raises(DriverLogError, match="cleaned up"):
        attach_reader(log.connection, name="a", stream="lines", positions=checkpoint)
    assert attach_reader(log.connection, name="a", stream="lines").positions == {receiver_id: 1, second: 4}


def test_blocks_deleted_during_the_look_up_are_an_error_and_not_a_shorter_answer(
    log: Log, engine: sa.Engine, receiver_id: int
) -> None:
    """Check a query on a checkpoint older than its reader's cursors, which hold nothing back for it."""
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines", start="latest")
    with connect(engine) as asking:

        def clean_up_first(*arguments: object) -> None:
            if "log_segments" in str(arguments[2]):
                clean_up(log, receiver_id)

        sa.event.listen(asking, "before_cursor_execute", clean_up_first)
        with pytest.raises(DriverLogError, match="cleaned up"):
            blocks_between(asking, reader.reader_id, {receiver_id: 2}, {receiver_id: 7})


def test_a_checkpoint_ahead_of_the_log_is_a_clear_error(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    with pytest.raises(DriverLogError, match="restored from a backup"):
        next_positions(log.connection, reader.reader_id, {receiver_id: 8})


def test_a_removed_reader_resumes_at_its_checkpoint_unless_its_blocks_are_lost(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    remove_reader(log.connection, "a")
    for ask, said in (
        (lambda: next_positions(log.connection, reader.reader_id, {}), "a named reader that was removed"),
        (lambda: move_reader(log.connection, reader.reader_id, {}), "a named reader that was removed"),
        (lambda: remove_reader(log.connection, "a"), "reader 'a' is not in the driver log"),
    ):
        with pytest.raises(DriverLogError, match=said):
            ask()
    again = attach_reader(log.connection, name="a", stream="lines", positions={receiver_id: 3})
    assert again.positions == {receiver_id: 3}
    assert again.reader_id != reader.reader_id
    move_reader(log.connection, again.reader_id, {receiver_id: 6})
    clean_up(log, receiver_id)
    remove_reader(log.connection, "a")
    with pytest.raises(DriverLogError, match="cleaned up"):
        attach_reader(log.connection, name="a", stream="lines", positions={receiver_id: 3})
    assert list_readers(log.connection) == []


def test_a_name_belongs_to_one_stream(log: Log) -> None:
    apply_stream(log.connection, name="others", declaration={"source": {}, "settings": {}}, receivers=1)
    attach_reader(log.connection, name="a", stream="lines")
    with pytest.raises(DriverLogError, match="reads another stream than 'others'"):
        attach_reader(log.connection, name="a", stream="others")
    with pytest.raises(NotAppliedError):
        attach_reader(log.connection, name="a", stream="nothing")


def test_clean_up_waits_for_a_reader_that_is_being_attached(log: Log, engine: sa.Engine, receiver_id: int) -> None:
    import threading  # noqa: PLC0415

    log.add_at(receiver_id, *TIMES)
    log.connection.execute(sa.text("UPDATE forebay.streams SET retention = interval '0'"))
    gone: list[int] = []
    with engine.connect().execution_options(isolation_level="READ COMMITTED") as other:
        with other.begin():
            attach_reader(other, name="a", stream="lines")
            cleaner = threading.Thread(target=lambda: gone.append(clean_up(log, receiver_id)))
            cleaner.start()
            eventually(
                lambda: other.execute(sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one(),
                "the clean-up to wait",
            )
        cleaner.join(30)
    assert gone == [0]


def test_blocks_that_a_removed_reader_had_read_are_not_a_loss(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    reader = attach_reader(log.connection, name="a", stream="lines")
    move_reader(log.connection, reader.reader_id, {receiver_id: 5})
    remove_reader(log.connection, "a")
    log.connection.execute(sa.text("UPDATE forebay.streams SET retention = interval '0'"))
    cleaned = clean_up_receiver(log.connection, receiver_id=receiver_id, threshold=datetime.now(UTC), max_rows=1000)
    # Up to the newest row, which stays: the reader had read three of blocks 2 to 5.
    assert (cleaned.blocks, cleaned.records, cleaned.unread_records) == (5, 40, 10)


def test_a_querys_role_reads_and_moves_its_reader_and_nothing_else(log: Log, receiver_id: int) -> None:
    log.add_at(receiver_id, *TIMES)
    log.connection.execute(sa.text("SET ROLE forebay_reader"))
    try:
        assert [stream.name for stream in list_streams(log.connection)] == ["lines"]
        assert schemas_of_stream(log.connection, log.stream_id) == []
        reader = attach_reader(log.connection, name="a", stream="lines")
        reached = next_positions(log.connection, reader.reader_id, reader.positions, max_records=20)
        assert len(blocks_between(log.connection, reader.reader_id, reader.positions, reached)) == 2
        move_reader(log.connection, reader.reader_id, reached)
        assert newest_positions(log.connection, reader.reader_id) == {receiver_id: 7}
        for statement in (
            "UPDATE forebay.cursors SET next_sequence = 1",
            "UPDATE forebay.readers SET removed_at = now()",
            "DELETE FROM forebay.blocks",
            "SELECT * FROM forebay.batches",
            "INSERT INTO forebay.cursors VALUES (1, 1, 1)",
        ):
            with pytest.raises(ProgrammingError, match="permission denied"):
                log.connection.execute(sa.text(statement))
    finally:
        log.connection.execute(sa.text("RESET ROLE"))
    log.connection.execute(sa.text("SET ROLE forebay_driver"))
    try:
        assert [lag.reader for lag in list_readers(log.connection)] == ["a"]
        remove_reader(log.connection, "a")
    finally:
        log.connection.execute(sa.text("RESET ROLE"))
