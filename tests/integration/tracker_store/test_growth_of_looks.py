"""Test that what people and agents look at costs what it shows, and never what the log has in its history."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import sqlalchemy as sa

from orchestration.tracker.http.streaming_progress import StreamingProgress
from tests.support.driver_log.filled_receivers import fill
from tests.support.driver_log.log import INTERVAL, NOON, make_log
from tests.support.postgres.counted_statements import counted
from tests.support.postgres.statement_cost import NestedStatement, buffers, nodes_of, visited_rows
from tracker_store.batches.batches import end_of_run
from tracker_store.batches.scaling import record_scaling, scaling_decisions
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements_on_agent
from tracker_store.reports.status import pipeline_status, pipeline_status_with, processing_times, stream_lag
from tracker_store.schema.states import AttemptState

LOOKS = ("receiver_status", "stream_lag", "pipeline_status", "storage_usage", "reader_lag")
# The history that is added between two looks: a year of some tables, for a few receivers.
HISTORY = (
    """
    INSERT INTO forebay.processes (kind, name, host, pid, ended_at)
    SELECT 'batch run', 'words', 'h', n, clock_timestamp()
    FROM generate_series(1, 5000) AS n
    """,
    """
    INSERT INTO forebay.receiver_events (receiver_id, epoch, at, kind, message)
    SELECT r.id, 1, CAST(:noon AS timestamptz) - n * interval '1 min', 'CONNECTED', 'm'
    FROM forebay.receivers r, generate_series(1, 500) AS n
    """,
    """
    INSERT INTO forebay.cleanup_events (receiver_id, sequences, blocks, records, bytes, at)
    SELECT r.id, '[1,2)', 1, 1, 1, CAST(:noon AS timestamptz) - n * interval '1 min'
    FROM forebay.receivers r, generate_series(1, 500) AS n
    """,
    """
    INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks, allocated_at,
        completed_at)
    SELECT p.id, t, t, 'COMPLETED', 1, 1, 1, t, t
    FROM forebay.pipelines p, generate_series(1, 5000) AS n,
        LATERAL (SELECT CAST(:noon AS timestamptz) - n * interval '1 min') AS at(t)
    """,
    """
    INSERT INTO forebay.log_segments (receiver_id, epoch, path, source_rule, state, length)
    SELECT r.id, 1, r.id || '/' || n, 'not_sent_again', 'SEALED', 100
    FROM forebay.receivers r, generate_series(1, 500) AS n
    """,
    """
    INSERT INTO forebay.dead_letters (receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, crc32c)
    SELECT r.id, 1, 'odd', 0, 10, r.id, n, 10, 1
    FROM forebay.receivers r, generate_series(1, 500) AS n
    """,
)


def add_history(connection: sa.Connection, *statements: str) -> None:
    for statement in statements or HISTORY:
        connection.execute(sa.text(statement), {"noon": NOON})
    connection.exec_driver_sql("VACUUM ANALYZE")


def test_a_look_does_not_grow_with_the_history(connection: sa.Connection) -> None:
    make_log(connection, receivers=20)
    fill(connection, blocks=20)
    # Each receiver has a row in storage_totals from the beginning on.
    connection.exec_driver_sql("INSERT INTO forebay.storage_totals (receiver_id) SELECT id FROM forebay.receivers")
    connection.exec_driver_sql("VACUUM ANALYZE")
    before = {view: nodes_of(connection, f"SELECT * FROM forebay.{view}") for view in LOOKS}
    add_history(connection)
    fill(connection, blocks=2_000)
    connection.exec_driver_sql("VACUUM ANALYZE")
    after = {view: nodes_of(connection, f"SELECT * FROM forebay.{view}") for view in LOOKS}
    visited = {view: (visited_rows(before[view]), visited_rows(after[view])) for view in LOOKS}
    assert {view: counts for view, counts in visited.items() if counts[1] > 2 * counts[0] + 200} == {}
    # An index may have got a level more.
    read = {view: (buffers(before[view]), buffers(after[view])) for view in LOOKS}
    assert {view: counts for view, counts in read.items() if counts[1] > 3 * counts[0] + 100} == {}


def test_the_last_block_is_found_behind_any_number_of_markers(connection: sa.Connection) -> None:
    make_log(connection, receivers=5)
    fill(connection, blocks=20)
    connection.exec_driver_sql("VACUUM ANALYZE")
    views = ("receiver_status", "stream_status")
    before = {view: nodes_of(connection, f"SELECT * FROM forebay.{view}") for view in views}
    add_history(
        connection,
        """
        INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes)
        SELECT b.receiver_id, b.sequence + n, n + 1, b.added_at + n * interval '1 min', 0, 0, b.total_records,
            b.total_bytes
        FROM forebay.blocks b, generate_series(1, 2000) AS n
        WHERE b.sequence = 20 AND CAST(:noon AS timestamptz) IS NOT NULL
        """,
    )
    for view in views:
        query = f"SELECT * FROM forebay.{view}"
        times = connection.execute(sa.text(query)).mappings()
        assert {row["last_block_at"] for row in times} == {NOON + timedelta(seconds=20)}
        after = nodes_of(connection, query)
        # 11 steps of a search, each with a few nodes; the markers are 2,000.
        assert visited_rows(after) < visited_rows(before[view]) + 5 * 100
        assert buffers(after) < buffers(before[view]) + 5 * 100


def test_a_look_grows_with_what_it_shows_and_no_faster(connection: sa.Connection) -> None:
    visited = []
    for receivers in (40, 320):
        make_log(connection, receivers=receivers)
        fill(connection, blocks=20)
        connection.exec_driver_sql("VACUUM ANALYZE")
        visited.append({view: visited_rows(nodes_of(connection, f"SELECT * FROM forebay.{view}")) for view in LOOKS})
    few, many = visited
    assert {view: (few[view], many[view]) for view in LOOKS if many[view] > 12 * few[view] + 100} == {}


def test_the_newest_processing_times_cost_no_history(connection: sa.Connection) -> None:
    for number in range(20):
        make_log(connection, pipeline=f"words{number}", stream=f"lines{number}")
    add_history(connection, HISTORY[3].replace("5000", "1000"))
    connection.exec_driver_sql("""
        INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks, allocated_at,
            completed_at, attempt)
        SELECT p.id, t, t, 'COMPLETED', 1, 1, 1, t, t + interval '2 s', 1
        FROM forebay.pipelines p, LATERAL (SELECT date_trunc('second', clock_timestamp()) - interval '20 s') AS at(t)
    """)
    connection.exec_driver_sql("""
        INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, kind, run_id, state, started_at, ended_at)
        SELECT b.pipeline_id, b.batch_time, 1, 'run', 'run', 'SUCCEEDED', b.batch_time, b.completed_at
        FROM forebay.batches b
    """)
    connection.exec_driver_sql("UPDATE forebay.batches SET attempt = 1")
    connection.exec_driver_sql("VACUUM ANALYZE")
    with counted(connection) as sent:
        found = processing_times(connection, seconds=60)
    assert [row.times for row in found] == [[timedelta(seconds=2)]] * 20
    [query] = sent.queries
    assert visited_rows(nodes_of(connection, query.replace(":", "\\:"))) <= 20 * 100  # the history has 1,000 each


def test_decisions_about_spark_cost_ten_batches_of_each_pipeline(connection: sa.Connection) -> None:
    for number in range(5):
        log = make_log(connection, pipeline=f"words{number}", stream=f"lines{number}")
        record_scaling(
            connection,
            pipeline_id=log.pipeline_id,
            ratio=0.5,
            batches=600,
            executors=1,
            batch_drivers=1,
            applied=False,
            reason="as before",
        )
    connection.exec_driver_sql("""
        INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks, allocated_at,
            completed_at, attempt)
        SELECT p.id, t, t, 'COMPLETED', 1, 1, 1, t, t, 1
        FROM forebay.pipelines p, generate_series(1, 1000) AS n,
            LATERAL (SELECT clock_timestamp() - n * interval '100 ms') AS at(t)
    """)
    connection.exec_driver_sql("VACUUM ANALYZE")
    with counted(connection) as sent:
        assert {decision.newest_batches for decision in scaling_decisions(connection)} == {10}
    [query] = sent.queries
    assert visited_rows(nodes_of(connection, query.replace(":", "\\:"))) <= 5 * 100


def test_a_long_replay_that_runs_is_looked_at_without_its_attempts(connection: sa.Connection) -> None:
    log = make_log(connection)
    add_history(connection)
    connection.exec_driver_sql(
        "INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, run_id, kind, state, ended_at) "
        "SELECT pipeline_id, batch_time, 1, 'r', 'replay', 'SUCCEEDED', batch_time FROM forebay.batches"
    )
    connection.exec_driver_sql(
        "INSERT INTO forebay.batch_attempts (pipeline_id, batch_time, attempt, run_id, kind) "
        "SELECT pipeline_id, max(batch_time), 2, 'r', 'replay' FROM forebay.batches GROUP BY pipeline_id"
    )
    connection.exec_driver_sql("VACUUM ANALYZE")

    def end() -> tuple[AttemptState, str] | None:
        first = NOON - timedelta(days=30)
        return end_of_run(
            connection, pipeline_id=log.pipeline_id, run_id="r", first=first, last=NOON, since=timedelta(0)
        )

    with counted(connection) as looked:
        assert end() is None
    [query] = looked.queries
    assert visited_rows(nodes_of(connection, query)) <= 10
    connection.exec_driver_sql(
        "UPDATE forebay.batch_attempts SET state = 'LOST', ended_at = clock_timestamp() WHERE state = 'RUNNING'"
    )
    assert end() == (AttemptState.LOST, "")


def test_the_lag_of_many_pipelines_does_not_compare_each_with_every_stream(connection: sa.Connection) -> None:
    visited = []
    for number in (10, 80):
        for stream in range(number):
            make_log(connection, pipeline=f"words{stream}", stream=f"lines{stream}")
        connection.exec_driver_sql("VACUUM ANALYZE")
        visited.append(visited_rows(nodes_of(connection, "SELECT * FROM forebay.stream_lag")))
    assert visited[1] <= 12 * visited[0] + 100, visited


def test_a_span_of_the_log_reads_no_history(connection: sa.Connection) -> None:
    log = make_log(connection, receivers=20)
    fill(connection, blocks=20)

    def look() -> tuple[int, int]:
        connection.exec_driver_sql("VACUUM ANALYZE")
        statement = NestedStatement(
            connection,
            "driver_log_between",
            begins="WITH RECURSIVE search",
            variables={
                "from_time": ("timestamptz", f"'{NOON + timedelta(days=1)}'"),
                "to_time": ("timestamptz", f"'{NOON + timedelta(days=2)}'"),
            },
        )
        nodes = statement.nodes()
        return visited_rows(nodes), buffers(nodes)

    before = look()
    add_history(connection)
    fill(connection, blocks=2_000)
    # Markers of many claims, below the low mark.
    connection.execute(
        sa.text("""
            UPDATE forebay.blocks
            SET segment_id = NULL, "offset" = NULL, length = NULL, crc32c = NULL, records = 0, bytes = 0
            WHERE receiver_id = :id AND sequence < 1000
        """),
        {"id": log.receiver_ids[0]},
    )
    connection.execute(
        sa.text("UPDATE forebay.receivers SET low_mark = 999 WHERE id = :id"), {"id": log.receiver_ids[0]}
    )
    after = look()
    assert after[0] <= 2 * before[0] + 100
    assert after[1] <= 3 * before[1] + 100


def test_the_markers_of_the_cleaned_up_part_are_found_from_any_time_on(connection: sa.Connection) -> None:
    log = make_log(connection)
    [receiver] = log.receiver_ids
    for claim in range(6):
        log.add_at(receiver, NOON + claim * INTERVAL, NOON + claim * INTERVAL + timedelta(seconds=1))
    connection.execute(
        sa.text("DELETE FROM forebay.blocks WHERE sequence <= 8 AND segment_id IS NOT NULL"), {"id": receiver}
    )
    connection.execute(sa.text("UPDATE forebay.receivers SET low_mark = 8"))
    for first in range(-1, 7):
        for last in range(-1, 8):
            values = {"since": NOON + first * INTERVAL, "until": NOON + last * INTERVAL}
            columns = "at, event, first_sequence"
            found = connection.execute(
                sa.text(f"SELECT {columns} FROM forebay.driver_log_between(:since, :until)"), values
            ).all()
            expected = connection.execute(
                sa.text(f"""
                    SELECT {columns}
                    FROM forebay.driver_log
                    WHERE at >= :since AND at < :until
                    ORDER BY at, receiver_id, first_sequence
                """),
                values,
            ).all()
            assert found == expected


def test_an_agent_s_poll_reads_its_own_receivers_only(engine: sa.Engine, connection: sa.Connection) -> None:
    visited = []
    for receivers in (20, 1_000):
        log = make_log(connection, receivers=receivers)
        connection.execute(
            sa.text("UPDATE forebay.receivers SET state = 'ACTIVE', agent_id = 7 WHERE id <= :last"),
            {"last": log.receiver_ids[4]},
        )
        connection.exec_driver_sql("VACUUM ANALYZE forebay.receivers")
        sent: list[str] = []

        def note(*event: object, sent: list[str] = sent) -> None:
            sent.append(str(event[2]))

        sa.event.listen(engine, "before_cursor_execute", note)
        assert len(placements_on_agent(connection, 7)) == 5
        sa.event.remove(engine, "before_cursor_execute", note)
        [statement] = sent
        visited.append(visited_rows(nodes_of(connection, statement.replace("%(agent)s", ":agent"), agent=7)))
    assert visited[1] <= visited[0] + 20, visited


def test_sums_of_storage_are_those_of_the_rows(connection: sa.Connection) -> None:
    make_log(connection, receivers=3)
    add_history(connection)

    def sums() -> list[tuple[int, ...]]:
        return [
            tuple(row)
            for row in connection.execute(
                sa.text("""
                    SELECT receiver_id, sealed_segments, deleting_segments, segment_bytes, dead_letters,
                        dead_letter_bytes, dropped_dead_letters
                    FROM forebay.storage_totals
                    ORDER BY receiver_id
                """)
            )
        ]

    def counted() -> list[tuple[int, ...]]:
        return [
            tuple(row)
            for row in connection.execute(
                sa.text("""
                    SELECT r.id, g.sealed, g.deleting, g.bytes, d.letters, d.bytes, d.dropped
                    FROM forebay.receivers r,
                        LATERAL (
                            SELECT count(*) FILTER (WHERE state = 'SEALED') AS sealed,
                                count(*) FILTER (WHERE state = 'DELETING') AS deleting,
                                coalesce(sum(length), 0) AS bytes
                            FROM forebay.log_segments
                            WHERE receiver_id = r.id
                        ) AS g,
                        LATERAL (
                            SELECT coalesce(sum(letters) FILTER (WHERE part = 0), 0) AS letters,
                                coalesce(sum(bytes), 0) AS bytes, coalesce(sum(dropped), 0) AS dropped
                            FROM forebay.dead_letters
                            WHERE receiver_id = r.id
                        ) AS d
                    ORDER BY r.id
                """)
            )
        ]

    assert sums() == counted()
    for statement in (
        "UPDATE forebay.log_segments SET state = 'DELETING' WHERE id % 3 = 0",
        "UPDATE forebay.log_segments SET receiver_id = receiver_id % 3 + 1 WHERE id % 5 = 0",
        "DELETE FROM forebay.log_segments WHERE state = 'DELETING' AND id % 2 = 0",
        """
        INSERT INTO forebay.dead_letters (receiver_id, epoch, reason, part, bytes, segment_id, "offset", length, crc32c,
            letters, dropped)
        VALUES (1, 1, 'large', 1, 7, 9, 9, 7, 1, 1, 0), (2, 1, 'many', 0, 8, 9, 10, 8, 1, 4, 5)
        """,
        "DELETE FROM forebay.dead_letters WHERE id % 4 = 0",
        "DELETE FROM forebay.dead_letters",
        "DELETE FROM forebay.log_segments",
    ):
        connection.exec_driver_sql(statement.replace("%", "%%"))
        assert sums() == counted(), statement
    assert {row[1:] for row in sums()} == {(0, 0, 0, 0, 0, 0)}


def test_the_status_of_pipelines_from_lags_is_that_of_the_view(connection: sa.Connection) -> None:
    for number in range(3):
        make_log(connection, pipeline=f"words{number}", stream=f"lines{number}", receivers=2)
    fill(connection, blocks=20)
    add_history(connection)
    connection.exec_driver_sql(
        "UPDATE forebay.batches SET state = 'RUNNING', completed_at = NULL WHERE pipeline_id = 2"
    )
    connection.exec_driver_sql("DELETE FROM forebay.batches WHERE pipeline_id = 3")
    connection.exec_driver_sql("UPDATE forebay.pipelines SET state = 'STOPPED' WHERE id = 1")
    # One transaction would not do: both read the clock. Their spans differ by what the second one took.
    view = pipeline_status(connection)
    shared = pipeline_status_with(connection, stream_lag(connection))
    assert [replace(row, lag=None, holds_back_for=None, due_for=None) for row in shared] == [
        replace(row, lag=None, holds_back_for=None, due_for=None) for row in view
    ]
    assert [row.due_for is None for row in view] == [True, False, False]
    assert any(row.waiting_records for row in view)
    for before, after in zip(view, shared, strict=True):
        for name in ("lag", "holds_back_for", "due_for"):
            first, second = getattr(before, name), getattr(after, name)
            assert (first is None) == (second is None)
            assert first is None or timedelta(minutes=-1) < second - first < timedelta(minutes=1)


def test_a_look_at_progress_sends_as_many_statements_for_many_pipelines_as_for_one(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    sent: list[str] = []

    def note(*event: object) -> None:
        sent.append(str(event[2]))

    counts = []
    for number in (1, 20):
        for stream in range(number):
            make_log(connection, pipeline=f"words{number}_{stream}", stream=f"lines{number}_{stream}")
        connection.execute(sa.text(HISTORY[3].replace("5000", "5")), {"noon": NOON - number * timedelta(days=1)})
        clock = iter(range(0, 100, 10))
        progress = StreamingProgress(lambda clock=clock: float(next(clock)))  # type: ignore[misc]
        progress.poll(lambda: connect(engine))
        sa.event.listen(engine, "before_cursor_execute", note)
        progress.poll(lambda: connect(engine))
        sa.event.remove(engine, "before_cursor_execute", note)
        counts.append(len(sent))
        sent.clear()
    assert counts[0] == counts[1] < 20
