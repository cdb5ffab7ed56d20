"""Test that clean-up and status read what there is to take, and not the history or other receivers (issue 18).

A round of clean-up asks once for many receivers: it reads a few rows of each, and sends no statement for one that has
nothing to take.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest
import sqlalchemy as sa

from orchestration.tracker.clean_up.cleaner import Cleaner
from orchestration.tracker.clean_up.link_cleaner import LinkCleaner, LinksReport
from tests.support.driver_log.attempts import fail_batch
from tests.support.driver_log.filled_log import Read, Size, fill, reading
from tracker_store.batches.batches import claim_attempt, discard_batch
from tracker_store.connection.engine import connect, create_engine
from tracker_store.reports import status
from tracker_store.reports.checks import check_data
from tracker_store.retention import cleanup, history
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forebay.testing.postgres import TestServer

SMALL = Size(batches=200)
#: Ten times as much of everything that is history.
OLD = Size(batches=2000, events=500, segments=5, links=200, keys=5000, dead_letters=200, processes=500)
#: Ten times as many receivers, streams and pipelines.
WIDE = Size(batches=200, receivers=40, streams=20, pipelines=20)
# The trees may be one level higher; nothing is read twice as often.
SOME = 12


def clean_receiver(connection: sa.Connection) -> None:
    cleaned = cleanup.clean_up_receiver(connection, receiver_id=1, threshold=datetime.now(UTC), max_rows=1000)
    # The newest stays, and that of a batch whose time is later than the threshold.
    assert 0 < cleaned.blocks < SMALL.retained


def no_blocks(connection: sa.Connection) -> None:
    threshold = datetime.now(UTC) - timedelta(hours=1)
    cleaned = cleanup.clean_up_receiver(connection, receiver_id=1, threshold=threshold, max_rows=1000)
    assert cleaned.blocks == 0


def no_segments(connection: sa.Connection) -> None:
    assert not cleanup.segments_to_delete(connection, receiver_id=1, restore_window=timedelta(hours=1), limit=100)


def no_offsets(connection: sa.Connection) -> None:
    assert cleanup.clean_up_offsets(connection, stream_id=1, max_rows=5000) == 0


def no_keys(connection: sa.Connection) -> None:
    assert cleanup.clean_up_keys(connection, stream_id=1, window=timedelta(days=7), max_rows=100) == 0


def no_history(connection: sa.Connection) -> None:
    assert history.clean_up_history(connection, pipeline_id=1, keep=timedelta(days=14), max_rows=5000).rows == 0


def no_events(connection: sa.Connection) -> None:
    # The events themselves are looked at by their number: at most max_rows.
    assert history.clean_up_events(connection, keep=timedelta(days=14), max_rows=5).rows == 0


def newest_batches(connection: sa.Connection) -> None:
    assert len(status.batch_stats(connection, limit=20)) == 20


STATEMENTS: dict[str, Callable[[sa.Connection], None]] = {
    "clean_up_receiver": clean_receiver,
    "clean_up_receiver, nothing to take": no_blocks,
    "segments_to_delete": no_segments,
    "clean_up_offsets": no_offsets,
    "clean_up_keys": no_keys,
    "clean_up_history": no_history,
    "clean_up_events": no_events,
    "batch_stats": newest_batches,
}
#: What each row of it costs: a batch of another pipeline at the same time.
GROWS_WITH_PIPELINES = {"batch_stats"}


def cost(server: TestServer, size: Size, statements: Mapping[str, Callable[[sa.Connection], None]]) -> dict[str, Read]:
    """Return what each statement reads in a log of this size; from the sixth call on, when plans are generic."""
    found = {}
    with server.database() as url:
        engine = create_engine(url, application_name="growth")
        with connect(engine) as connection:
            fill(connection, size)
            # Otherwise each call may plan again, and a planner looks at the ends of indexes, which are higher then.
            connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
            assert [check for check in check_data(connection) if not check.passed] == []
            for name, statement in statements.items():
                for _ in range(7):
                    with reading(connection) as read:
                        statement(connection)
                found[name] = read
        engine.dispose()
    return found


@pytest.fixture(scope="module")
def small(postgres_server: TestServer) -> dict[str, Read]:
    return cost(postgres_server, SMALL, STATEMENTS)


def assert_no_growth(before: dict[str, Read], after: dict[str, Read]) -> None:
    grown = {
        name: (before[name], read)
        for name, read in after.items()
        if read.rows > before[name].rows + SOME or read.buffers > 1.5 * before[name].buffers + 3 * SOME
    }
    assert grown == {}


def test_what_clean_up_and_status_read_does_not_grow_with_the_history(
    postgres_server: TestServer, small: dict[str, Read]
) -> None:
    assert_no_growth(small, cost(postgres_server, OLD, STATEMENTS))


def test_a_receivers_clean_up_does_not_grow_with_the_number_of_receivers(
    postgres_server: TestServer, small: dict[str, Read]
) -> None:
    statements = {
        name: statement
        for name, statement in STATEMENTS.items()
        # The next test is about segments: there are enough of them that a scan of all is never the cheapest.
        if name not in GROWS_WITH_PIPELINES | {"segments_to_delete"}
    }
    wide = cost(postgres_server, WIDE, statements)
    # Each receiver looks through the pipelines, for those that read its stream.
    for name in ("clean_up_receiver", "clean_up_receiver, nothing to take"):
        wide[name].rows -= WIDE.pipelines - SMALL.pipelines
    assert_no_growth(small, wide)


def test_a_receivers_segments_are_found_among_those_of_others(
    postgres_server: TestServer, small: dict[str, Read]
) -> None:
    many = replace(WIDE, segments=50)
    few = replace(SMALL, segments=50)
    statements = {"segments_to_delete": no_segments}
    assert_no_growth(cost(postgres_server, few, statements), cost(postgres_server, many, statements))


def quarantined(connection: sa.Connection, length: int) -> datetime:
    """Give pipeline 1 a window of its newest `length` batches, and let its newest batch run."""
    connection.exec_driver_sql(
        "UPDATE forebay.pipelines SET declaration = jsonb_build_object('outputs', jsonb_build_object('counts', "
        "jsonb_build_object('inputs', jsonb_build_array(jsonb_build_object('length_ms', %(length)s * 10000))))) "
        "WHERE id = 1",
        {"length": length},
    )
    time: datetime = connection.exec_driver_sql(
        "UPDATE forebay.batches SET state = 'ALLOCATED', attempt = 0, completed_at = NULL WHERE pipeline_id = 1 "
        "AND batch_time = (SELECT max(batch_time) FROM forebay.batches WHERE pipeline_id = 1) RETURNING batch_time"
    ).scalar_one()
    connection.exec_driver_sql(
        "DELETE FROM forebay.batch_attempts WHERE pipeline_id = 1 AND batch_time = %(time)s", {"time": time}
    )
    claim_attempt(connection, pipeline_id=1, batch_time=time, attempt=1, run_id="run", process_id=1)
    return time


def quarantine(connection: sa.Connection, time: datetime) -> None:
    state = fail_batch(connection, 1, time, run_id="run", error="boom", max_attempts=1)
    assert state is BatchState.QUARANTINED


def test_a_batch_is_quarantined_and_discarded_by_its_receivers_whatever_its_window(postgres_server: TestServer) -> None:
    reads: dict[int, tuple[Read, Read]] = {}
    for blocks in (50, 5000):
        with postgres_server.database() as url:
            engine = create_engine(url, application_name="growth")
            with connect(engine) as connection:
                fill(connection, Size(receivers=2, streams=1, pipelines=1, batches=blocks, retained=blocks))
                time = quarantined(connection, blocks)
                with reading(connection, keep=True) as failing:
                    quarantine(connection, time)
                kept = connection.exec_driver_sql("SELECT count(*) FROM forebay.kept_blocks").scalar_one()
                assert kept == 2 * blocks
                with reading(connection, keep=True) as discarding:
                    assert discard_batch(connection, pipeline_id=1, batch_time=time) == 2 * blocks
                reads[blocks] = failing, discarding
            engine.dispose()
    for before, after in zip(reads[50], reads[5000], strict=True):
        assert_no_growth({"it": before}, {"it": after})


def test_released_blocks_are_deleted_in_bounded_steps_with_their_segments(connection: sa.Connection) -> None:
    blocks = 50
    fill(connection, Size(receivers=2, streams=1, pipelines=1, batches=blocks, retained=blocks))

    def clean(max_rows: int = 1000) -> cleanup.CleanedUp:
        return cleanup.clean_up_receiver(
            connection, receiver_id=1, threshold=datetime.now(UTC) + timedelta(days=1), max_rows=max_rows
        )

    def left() -> int:
        found: int = connection.exec_driver_sql(
            "SELECT count(*) FROM forebay.blocks WHERE receiver_id = 1 AND segment_id IS NOT NULL"
        ).scalar_one()
        return found

    time = quarantined(connection, blocks)
    quarantine(connection, time)
    assert clean().blocks > 0
    assert left() == blocks
    segments = connection.exec_driver_sql("SELECT id, kept_blocks FROM forebay.log_segments WHERE kept_blocks > 0")
    assert [(row.id, row.kept_blocks) for row in segments] == [(SMALL.segments, blocks - 1)], (
        "all but the newest, which is above the low mark"
    )
    discard_batch(connection, pipeline_id=1, batch_time=time)
    calls = 0
    while (cleaned := clean(10)).more:
        calls += 1
        assert left() == blocks - 10 * calls
    assert (left(), cleaned.blocks) == (1, 0)
    for table in ("log_segments WHERE kept_blocks > 0", "kept_ranges WHERE receiver_id = 1"):
        assert connection.exec_driver_sql(f"SELECT count(*) FROM forebay.{table}").scalar_one() == 0
    assert [check for check in check_data(connection) if not check.passed] == []


def test_keys_that_are_kept_past_their_window_are_not_read(postgres_server: TestServer) -> None:
    reads: dict[str, dict[str, Read]] = {}
    for name, size in {"few": SMALL, "many keys": OLD, "wide": WIDE}.items():
        with postgres_server.database() as url:
            engine = create_engine(url, application_name="growth")
            with connect(engine) as connection:
                fill(connection, size)
                connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
                # The receivers became INACTIVE before ten of their stream's keys were stored, and after most others.
                connection.exec_driver_sql("UPDATE forebay.receivers SET since = clock_timestamp() - interval '2 days'")
                connection.exec_driver_sql(
                    "UPDATE forebay.record_keys SET added_at = clock_timestamp() - make_interval(hours => "
                    "CASE WHEN substr(key, 4)::int <= 10 THEN 45 WHEN key = 'key11' THEN 3 ELSE 50 END)"
                )
                connection.exec_driver_sql("VACUUM ANALYZE forebay.record_keys")
                for expected in (10, 0):
                    with reading(connection, keep=True) as read:
                        gone = cleanup.clean_up_keys(connection, stream_id=1, window=timedelta(days=1), max_rows=100)
                    assert gone == expected
                    reads.setdefault(name, {})[f"{gone} keys"] = read
            engine.dispose()
    assert_no_growth(reads["few"], reads["many keys"])
    assert_no_growth(reads["few"], reads["wide"])


#: Of each receiver's five segments four lie before its first block.
FEW_RECEIVERS = Size(receivers=20, streams=10, pipelines=10, events=2, processes=2, dead_letters=2)
MANY_RECEIVERS = replace(FEW_RECEIVERS, receivers=400, streams=80, pipelines=80)
#: Its row, its newest block, its first one twice, its cursor, a range, four segments; its links, and its stream's.
ROWS_OF_A_RECEIVER = 16
#: In no round of a test is it the turn of a receiver, whatever it has.
NEVER = 10**9


def half_cleaned(connection: sa.Connection, size: Size) -> datetime:
    """Clean up half of the receivers of a filled log, and vacuum their blocks; return the threshold of clean-up.

    Such a vacuum leaves the planner a row count that is between those before and after clean-up, but statistics from
    before it. With these, a bitmap of all blocks of a receiver and a sort look cheaper than the first row of an index.
    Autovacuum did this in 1 of 30 runs.
    """
    connection.exec_driver_sql("ALTER TABLE forebay.blocks SET (autovacuum_enabled = off)")
    # Each receiver keeps its marker and three blocks, whenever this runs.
    oldest: datetime = connection.exec_driver_sql(
        "SELECT max(batch_time) - interval '22.5 s' FROM forebay.batches"
    ).scalar_one()
    for receiver_id in range(1, size.receivers // 2 + 1):
        cleaned = cleanup.clean_up_receiver(connection, receiver_id=receiver_id, threshold=oldest, max_rows=1000)
        assert cleaned.blocks > 0
    connection.exec_driver_sql("VACUUM forebay.blocks")
    return oldest


def idle_rounds(server: TestServer, size: Size) -> dict[str, tuple[Read, int]]:
    """Return what a round reads and how many statements it sends, when clean-up has taken all that it may."""
    no_file = Mock(side_effect=AssertionError("no file is deleted"))
    cleaner = Cleaner(no_file, full_scan_rounds=NEVER)
    links = LinkCleaner(full_scan_rounds=NEVER)

    def blocks_round(connection: sa.Connection) -> None:
        report = cleaner.cleanup_old_batches(connection, oldest)
        assert (report.blocks, report.segments, report.history) == (0, 0, 0)

    def links_round(connection: sa.Connection) -> None:
        assert links.clean_up(connection) == LinksReport()

    found = {}
    sent: list[str] = []
    with server.database() as url:
        engine = create_engine(url, application_name="growth")
        sa.event.listen(engine, "before_cursor_execute", lambda *args: sent.append(args[2]))
        with connect(engine) as connection:
            fill(connection, size)
            connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
            oldest = half_cleaned(connection, size)
            assert cleaner.cleanup_old_batches(connection, oldest).blocks > 0
            for name, run in {"blocks": blocks_round, "links": links_round}.items():
                for _ in range(7):
                    with reading(connection) as read:
                        sent.clear()
                        run(connection)
                        statements = len(sent)
                found[name] = read, statements
        engine.dispose()
    return found


def test_an_idle_round_reads_a_few_rows_of_each_receiver_in_as_many_statements_as_for_few(
    postgres_server: TestServer,
) -> None:
    few = idle_rounds(postgres_server, FEW_RECEIVERS)
    many = idle_rounds(postgres_server, MANY_RECEIVERS)
    more = MANY_RECEIVERS.receivers - FEW_RECEIVERS.receivers
    for name, (read, statements) in many.items():
        assert statements == few[name][1], name
        rows = (read.rows + read.entries - few[name][0].rows - few[name][0].entries) / more
        assert rows < ROWS_OF_A_RECEIVER, f"{name}: {read.of} and, of few receivers, {few[name][0].of}"


#: Fifty more blocks of a receiver, all in its newest segment.
ADD_BLOCKS = """
    INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                                segment_id, "offset", length, crc32c)
    SELECT receiver_id, sequence + n, epoch, added_at, records, bytes, total_records + n * records,
           total_bytes + n * bytes, segment_id, "offset" + n * length, length, crc32c
    FROM (SELECT * FROM forebay.blocks WHERE receiver_id = 1 ORDER BY sequence DESC LIMIT 1) AS newest
    CROSS JOIN generate_series(1, 50) AS n
"""


def test_a_look_for_segments_does_not_read_the_blocks_that_wait(postgres_server: TestServer) -> None:
    with postgres_server.database() as url:
        engine = create_engine(url, application_name="growth")
        with connect(engine) as connection:
            fill(connection, MANY_RECEIVERS)
            half_cleaned(connection, MANY_RECEIVERS)
            reads = []
            for _ in range(2):
                with reading(connection) as read:
                    no_segments(connection)
                reads.append(read)
                connection.exec_driver_sql(ADD_BLOCKS)
        engine.dispose()
    assert reads[0].of == reads[1].of
