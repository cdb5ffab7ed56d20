"""Test the views for people: what they show, and that reading them costs what their comments say."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, add, block, claim_anew, make_log, seal
from tracker_store.batches.batches import claim_attempt, complete_batch
from tracker_store.batches.outputs import commit_output
from tracker_store.blocks.blocks import ORIGIN, OffsetLink, open_partition
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters
from tracker_store.blocks.segments import CodecSum, left_segments, open_segment
from tracker_store.receivers.receivers import report_event
from tracker_store.reports.streaming_statistics import StreamCodec, stream_codecs
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.states import LinkKind, ReceiverEventKind
from tracker_store.views import VIEWS

SECOND = timedelta(seconds=1)


def rows(connection: sa.Connection, query: str, **values: object) -> list[sa.RowMapping]:
    return list(connection.execute(sa.text(query), values).mappings())


def plan(connection: sa.Connection, query: str, **values: object) -> list[dict[str, Any]]:
    """Return the nodes of the plan as it was executed."""
    [[tree]] = connection.execute(sa.text(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {query}"), values).scalars()
    found: list[dict[str, Any]] = []
    waiting = [tree["Plan"]]
    while waiting:
        node = waiting.pop()
        found.append(node)
        waiting += node.get("Plans", [])
    return found


def run_batch(log: Log) -> None:
    at: dict[str, Any] = {"pipeline_id": log.pipeline_id, "batch_time": NOON + INTERVAL, "attempt": 1}
    claim_attempt(log.connection, **at, run_id="run-1", process_id=1)
    commit_output(log.connection, **at, output="counts", location="somewhere", rows=1)
    complete_batch(log.connection, **at, outputs=["counts"])


def test_the_driver_log_tells_all_four_kinds_in_one_order_of_time(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    claimed = log.add_at(receiver, NOON + SECOND, NOON + 2 * SECOND, NOON + 3 * SECOND)
    report_event(
        connection, receiver_id=receiver, epoch=claimed.epoch, kind=ReceiverEventKind.CONNECTED, message="to 127.0.0.1"
    )
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    run_batch(log)
    clean_up_receiver(connection, receiver_id=receiver, threshold=NOON + 2 * INTERVAL, max_rows=100)
    seen = rows(connection, "SELECT * FROM forebay.driver_log ORDER BY at, first_sequence")
    assert [(row["event"], row["first_sequence"], row["last_sequence"], row["records"]) for row in seen] == [
        ("epoch claimed", 1, 1, 0),
        ("block added", 4, 4, 10),
        ("receiver CONNECTED", None, None, None),
        ("batch allocated", None, None, 30),
        ("cleaned up", 1, 3, 20),
    ]
    assert {row["stream"] for row in seen if row["source"] != "batches"} == {"lines"}
    assert [(row["pipeline"], row["batch_time"]) for row in seen if row["source"] == "batches"] == [
        ("words", NOON + INTERVAL)
    ]


def test_a_span_of_the_driver_log_is_the_views_own_rows(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    one, two = log.receiver_ids
    log.add_at(one, *(NOON + n * SECOND for n in range(20)))
    log.add_at(two, *(NOON + n * SECOND for n in range(5, 9)))
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    run_batch(log)
    clean_up_receiver(connection, receiver_id=one, threshold=NOON + 2 * INTERVAL, max_rows=5)
    report_event(connection, receiver_id=two, epoch=1, kind=ReceiverEventKind.ERROR, message="refused")
    far = NOON + timedelta(days=36500)
    for since, until in [
        (NOON, NOON + 3 * SECOND),
        (NOON + 4 * SECOND, NOON + 12 * SECOND),
        (NOON + 30 * SECOND, far),
        (NOON - INTERVAL, far),
        (NOON + 6 * SECOND, NOON + 6 * SECOND),
    ]:
        expected = rows(
            connection,
            "SELECT * FROM forebay.driver_log WHERE at >= :since AND at < :until "
            "ORDER BY at, receiver_id, first_sequence",
            since=since,
            until=until,
        )
        found = rows(connection, "SELECT * FROM forebay.driver_log_between(:since, :until)", since=since, until=until)
        assert found == expected


def fill(connection: sa.Connection, receiver: int, blocks: int) -> None:
    """Insert blocks one second apart from NOON, after a marker; directly into the table, for speed."""
    claimed = claim_anew(connection, receiver)
    connection.execute(
        sa.text(
            "INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, "
            'total_bytes, segment_id, "offset", length, crc32c) '
            "SELECT :r, n, :e, CAST(:noon AS timestamptz) + n * interval '1 s', 1, 10, n - 1, 10 * (n - 1), 1, "
            "n, 10, n "
            "FROM generate_series(2, :blocks) AS n"
        ),
        {"r": receiver, "e": claimed.epoch, "noon": NOON, "blocks": blocks},
    )
    connection.execute(
        sa.text("UPDATE forebay.blocks SET added_at = :noon WHERE receiver_id = :r AND sequence = 1"),
        {"noon": NOON, "r": receiver},
    )
    connection.execute(sa.text("ANALYZE forebay.blocks"))


def test_the_cost_of_a_span_depends_on_its_rows_and_not_on_the_length_of_the_log(connection: sa.Connection) -> None:
    log = make_log(connection)
    [receiver] = log.receiver_ids
    fill(connection, receiver, 20_000)
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    before = rows(connection, "SELECT * FROM pg_stat_user_tables WHERE relname = 'blocks'")[0]
    found = rows(
        connection,
        "SELECT * FROM forebay.driver_log_between(:since, :until)",
        since=NOON + 500 * SECOND,
        until=NOON + 510 * SECOND,
    )
    assert [row["first_sequence"] for row in found] == list(range(500, 510))
    connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
    after = rows(connection, "SELECT * FROM pg_stat_user_tables WHERE relname = 'blocks'")[0]
    assert after["seq_scan"] == before["seq_scan"]
    assert after["idx_tup_fetch"] - before["idx_tup_fetch"] < 100


def test_the_driver_log_of_one_receiver_is_read_by_its_key(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    fill(connection, receiver, 20_000)
    nodes = plan(
        connection,
        "SELECT * FROM forebay.driver_log WHERE receiver_id = :r AND first_sequence BETWEEN 100 AND 110",
        r=receiver,
    )
    on_blocks = [node for node in nodes if node.get("Relation Name") == "blocks"]
    assert [node["Node Type"] for node in on_blocks] in (["Index Scan"], ["Bitmap Heap Scan"])


def test_the_waiting_blocks_of_each_pipeline(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND, NOON + INTERVAL + SECOND, NOON + INTERVAL + 2 * SECOND)
    query = "SELECT pipeline, stream, sequence, records, path FROM forebay.unallocated_blocks ORDER BY sequence"
    assert [row["sequence"] for row in rows(connection, query)] == [2, 3, 4]
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    seen = rows(connection, query)
    assert [(row["pipeline"], row["stream"], row["sequence"], row["records"]) for row in seen] == [
        ("words", "lines", 3, 10),
        ("words", "lines", 4, 10),
    ]
    assert all(row["path"].startswith(f"{receiver}/") for row in seen)
    [lag] = rows(connection, "SELECT * FROM forebay.stream_lag")
    assert (lag["waiting_blocks"], lag["waiting_records"], lag["waiting_bytes"]) == (2, 20, 200)


def test_the_blocks_of_a_batch_with_their_handles(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    for receiver in log.receiver_ids:
        log.add_at(receiver, NOON + SECOND, NOON + 2 * SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    seen = rows(
        connection,
        "SELECT * FROM forebay.batch_blocks WHERE pipeline_id = :p AND batch_time = :t ORDER BY receiver_id, sequence",
        p=log.pipeline_id,
        t=NOON + INTERVAL,
    )
    assert [(row["ordinal"], row["sequence"], row["kept"]) for row in seen] == [
        (1, 2, False),
        (1, 3, False),
        (2, 2, False),
        (2, 3, False),
    ]
    expected = log.tracker.get_blocks_of_batch(NOON + INTERVAL)
    assert [(b.path, b.handle.offset, b.handle.length, b.handle.crc32c) for b in expected] == [
        (row["path"], row["offset"], row["length"], row["crc32c"]) for row in seen
    ]
    assert {row["batch_time"] - row["added_at"] > timedelta(0) for row in seen} == {True}


def test_a_batch_s_delays_add_up_and_an_empty_one_has_none(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    run_batch(log)
    log.tracker.allocate_blocks_to_batch(NOON + 3 * INTERVAL, oldest_time=NOON + 2 * INTERVAL)
    ran, empty = rows(connection, "SELECT * FROM forebay.batch_stats ORDER BY batch_time")
    assert ran["scheduling_delay"] == ran["processing_started_at"] - ran["batch_time"]
    assert ran["processing_time"] == ran["completed_at"] - ran["processing_started_at"]
    assert ran["total_delay"] == ran["scheduling_delay"] + ran["processing_time"]
    assert (ran["records"], ran["blocks"], ran["run_id"]) == (10, 2, "run-1")
    assert (empty["state"], empty["reason"]) == ("COMPLETED", "no records")
    assert [empty[name] for name in ("scheduling_delay", "processing_time", "total_delay")] == [None, None, None]
    assert empty["oldest_time"] == NOON + 2 * INTERVAL


def test_the_delay_of_merged_intervals_counts_from_the_oldest(connection: sa.Connection, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON + SECOND)
    log.tracker.allocate_blocks_to_batch(NOON + 4 * INTERVAL, oldest_time=NOON + INTERVAL)
    claim_batch(connection, log.pipeline_id, NOON + 4 * INTERVAL, run_id="run-1", process_id=1)
    [stats] = rows(connection, "SELECT * FROM forebay.batch_stats")
    assert stats["scheduling_delay"] == stats["processing_started_at"] - (NOON + INTERVAL)


def test_the_progress_of_each_source_partition(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    claimed = claim_anew(connection, receiver)
    for partition in ("0", "1"):
        open_partition(connection, receiver_id=receiver, source="orders", partition=partition, start_offset=500)

    def link(partition: str, start: int, end: int, kind: LinkKind, generation: int = 0) -> OffsetLink:
        return OffsetLink("orders", partition, generation, start, end, kind)

    first = block(claimed, 2)
    links = (link("0", 500, 510, LinkKind.BLOCK), link("0", 510, 530, LinkKind.LOST))
    assert add(connection, type(first)(**{**fields(first), "links": links})).outcome == "added"
    second = block(claimed, 3)
    links = (link("0", ORIGIN, 7, LinkKind.ORIGIN, 1), link("0", 7, 9, LinkKind.BLOCK, 1))
    assert add(connection, type(second)(**{**fields(second), "links": links})).outcome == "added"
    seen = rows(connection, "SELECT * FROM forebay.source_progress ORDER BY partition")
    assert [
        (r["stream"], r["source"], r["partition"], r["generation"], r["position"], r["kind"], r["lost_records"])
        for r in seen
    ] == [("lines", "orders", "0", 1, 9, "block", 20), ("lines", "orders", "1", 0, 500, "origin", 0)]
    assert [(r["sequence"], r["added_at"] is None) for r in seen] == [(3, False), (0, True)]


def fields(value: object) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}  # type: ignore[attr-defined]


def test_the_storage_of_each_receiver(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    one, two = log.receiver_ids
    claimed = log.add_at(one, NOON + SECOND, NOON + 2 * SECOND)
    [segment] = connection.execute(sa.text("SELECT id FROM forebay.log_segments")).scalars()
    log.add_at(one, NOON + 3 * SECOND)
    seal(connection, segment, 4321)
    parts = [StoredDeadLetter("too large", part, 50, block(claimed, 50 + part).handle) for part in range(2)]
    add_dead_letters(connection, parts, receiver_id=one, epoch=claimed.epoch)
    used, unused = rows(connection, "SELECT * FROM forebay.storage_usage ORDER BY ordinal")
    assert (used["blocks"], used["records"], used["bytes"]) == (5, 30, 300)
    assert (used["open_segments"], used["sealed_segments"], used["segment_bytes"]) == (1, 1, 4321)
    assert (used["dead_letters"], used["dead_letter_bytes"], used["dropped_dead_letters"]) == (1, 100, 0)
    group = StoredDeadLetter("odd", 0, 40, block(claimed, 60).handle, letters=4, dropped=5, dropped_bytes=50)
    add_dead_letters(connection, [group], receiver_id=one, epoch=claimed.epoch)
    used, _ = rows(connection, "SELECT * FROM forebay.storage_usage ORDER BY ordinal")
    assert (used["dead_letters"], used["dead_letter_bytes"], used["dropped_dead_letters"]) == (5, 140, 5)
    [status, _] = rows(connection, "SELECT * FROM forebay.receiver_status ORDER BY ordinal")
    # With those that were counted and not kept.
    assert status["dead_letters"] == 10
    assert (unused["receiver_id"], unused["blocks"], unused["segment_bytes"]) == (two, 0, 0)


def test_the_codecs_of_stored_blocks(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=2)
    one, two = log.receiver_ids

    def seal_another(receiver: int, number: int, *codecs: CodecSum) -> int:
        segment = open_segment(
            connection, receiver_id=receiver, epoch=1, path=f"{receiver}/{number}", source_rule="not_sent_again"
        )
        for _ in range(2):
            seal(connection, segment, 1000, codecs)
        return segment

    def uncompressed() -> list[int]:
        used = rows(connection, "SELECT * FROM forebay.storage_usage ORDER BY ordinal")
        return [row["uncompressed_bytes"] for row in used]

    assert rows(connection, "SELECT * FROM forebay.stream_status")[0]["uncompressed_share"] is None
    # Of one that is salvaged, it is not known.
    seal_another(one, 1)
    assert (uncompressed(), stream_codecs(connection)) == ([0, 0], [])
    first = seal_another(one, 2, CodecSum("lz4", 3, 300), CodecSum("none", 4, 600))
    seal_another(one, 3, CodecSum("none", 1, 100))
    seal_another(two, 1, CodecSum("lz4", 10, 1000))
    assert uncompressed() == [700, 0]
    assert stream_codecs(connection) == [StreamCodec("lines", "lz4", 13, 1300), StreamCodec("lines", "none", 5, 700)]
    assert rows(connection, "SELECT * FROM forebay.stream_status")[0]["uncompressed_share"] == 0.35
    # What is deleted uses the disk no more, and was stored.
    connection.execute(sa.text("UPDATE forebay.log_segments SET state = 'DELETING' WHERE id = :id"), {"id": first})
    connection.execute(sa.text("DELETE FROM forebay.log_segments WHERE id = :id"), {"id": first})
    assert uncompressed() == [100, 0]
    assert rows(connection, "SELECT * FROM forebay.stream_status")[0]["uncompressed_share"] == 0.35


def test_segments_that_no_process_will_salvage_are_reported(connection: sa.Connection) -> None:
    """Check segments left by a dead process of a receiver that runs nowhere; those of a running one do not matter."""
    log = make_log(connection, receivers=2)
    one, two = log.receiver_ids
    for receiver in (one, two):
        log.add_at(receiver, NOON + SECOND)
    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE'"))

    def left() -> list[int]:
        used = rows(connection, "SELECT * FROM forebay.storage_usage ORDER BY ordinal")
        return [row["left_segments"] for row in used]

    assert (left(), left_segments(connection)) == ([0, 0], [])
    # The first receiver is killed and taken over by a process that could not read what was left.
    claim_anew(connection, one)
    connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE'"))
    assert (left(), left_segments(connection)) == ([1, 0], [])
    connection.execute(
        sa.text("UPDATE forebay.receivers SET state = 'INACTIVE', removed_at = clock_timestamp() WHERE id = :r"),
        {"r": two},
    )
    assert left() == [1, 1]
    assert [(found.receiver_id, found.segments, found.removed) for found in left_segments(connection)] == [
        (two, 1, True)
    ]


def test_k07_k08_the_last_error_is_kept_with_its_time(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    query = "SELECT last_error, last_error_at FROM forebay.receiver_status"
    [quiet] = rows(connection, query)
    assert (quiet["last_error"], quiet["last_error_at"]) == (None, None)
    for kind, message in [
        (ReceiverEventKind.ERROR, "first"),
        (ReceiverEventKind.ERROR, "second"),
        (ReceiverEventKind.STOPPED, "by an operator"),
    ]:
        report_event(connection, receiver_id=receiver, epoch=1, kind=kind, message=message)
    [status] = rows(connection, query)
    assert status["last_error"] == "second"
    times = connection.execute(sa.text("SELECT at FROM forebay.receiver_events WHERE message = 'second'")).scalar_one()
    assert status["last_error_at"] == times


def test_the_last_block_is_not_the_marker_of_a_process_that_began_later(connection: sa.Connection, log: Log) -> None:
    receiver = log.receiver_ids[0]
    last = "SELECT last_block_at FROM forebay.{} WHERE last_block_at IS NOT NULL"
    claim_anew(connection, receiver)
    views = ("receiver_status", "stream_status")
    assert [connection.execute(sa.text(last.format(view))).scalars().all() for view in views] == [[], []]
    log.add_at(receiver, NOON)
    claim_anew(connection, receiver)
    assert [connection.execute(sa.text(last.format(view))).scalars().all() for view in views] == [[NOON], [NOON]]


def test_no_view_and_no_column_is_without_a_comment(connection: sa.Connection) -> None:
    silent = rows(
        connection,
        "SELECT c.relname, a.attname FROM pg_class c "
        "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        "WHERE c.relnamespace = 'forebay'::regnamespace AND c.relkind IN ('r', 'v') AND c.relname <> 'alembic_version' "
        "AND (obj_description(c.oid) IS NULL OR col_description(c.oid, a.attnum) IS NULL)",
    )
    assert silent == []


def test_every_column_of_a_view_is_described_in_its_order(connection: sa.Connection) -> None:
    for name, view in VIEWS.items():
        columns = connection.execute(
            sa.text(
                "SELECT attname FROM pg_attribute WHERE attrelid = CAST(:name AS regclass) AND attnum > 0 "
                "ORDER BY attnum"
            ),
            {"name": f"forebay.{name}"},
        ).scalars()
        assert list(columns) == list(view.columns), name
