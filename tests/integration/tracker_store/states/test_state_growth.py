"""Test that what a batch with a state costs the driver log does not grow with the versions that are stored."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.support.driver_log.filled_log import Read, reading
from tests.support.driver_log.log import INTERVAL
from tests.support.driver_log.stated_log import OUTPUT, StatedLog, batch_time, make_stated_log
from tracker_store.batches import state_versions
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect, create_engine
from tracker_store.retention.state_files import state_versions_to_delete

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.testing.postgres import TestServer

FEW, MANY = 200, 2000
SOME = 12  # the trees may be one level higher

_FILL = """
    WITH numbers AS (
        SELECT n, CAST(:first AS timestamptz) + n * interval '10 s' AS at FROM generate_series(0, :n) AS n
    ), versions AS (
        INSERT INTO forebay.state_versions (pipeline_id, output, batch_time, attempt, ordinal, read_batch_time,
            read_attempt, schema_version, schema, buckets, folder, frames, bytes, created_at, committed_at)
        SELECT :p, :o, at, 1, n + 1, CASE WHEN n > 0 THEN at - interval '10 s' END, CASE WHEN n > 0 THEN 1 END, 1, '{}',
            4, 'f' || n, jsonb_build_array(jsonb_build_array(0, 'p' || n, 0, 1, 1, 1, n % 32 = 0, NULL)), 1,
            clock_timestamp() - interval '2 h', clock_timestamp() - interval '2 h' + n * interval '1 s'
        FROM numbers
    ), made AS (
        INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, attempt, records, bytes, blocks,
            completed_at)
        SELECT :p, at, at, 'COMPLETED', 1, 0, 0, 0, clock_timestamp() FROM numbers
    ), commits AS (
        INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location, rows, state_attempt)
        SELECT :p, :o, at, 1, '/1', 1, 1 FROM numbers
    )
    INSERT INTO forebay.state_heads (pipeline_id, output, batch_time, attempt, schema_version, schema, buckets)
    SELECT :p, :o, at, 1, 1, '{}', 4 FROM numbers WHERE n = :n
"""


def filled(connection: sa.Connection, versions: int) -> StatedLog:
    """Make a log with a state of as many versions; a replay forward may begin at any of them."""
    stated = make_stated_log(connection)
    connection.execute(
        sa.text(_FILL), {"first": batch_time(1), "n": versions - 1, "p": stated.pipeline_id, "o": OUTPUT}
    )
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :last, retention = interval '1 year' * 10"),
        {"last": batch_time(versions)},
    )
    stated.allocate(versions + 1)
    stated.claim(batch_time(versions + 1))
    connection.exec_driver_sql("ANALYZE")
    connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
    return stated


def cost(server: TestServer, versions: int) -> dict[str, Read]:
    """Return what each statement reads, with plans that are generic."""
    found = {}
    with server.database() as url:
        engine = create_engine(url, application_name="growth")
        with connect(engine) as connection:
            stated = filled(connection, versions)
            time, head = batch_time(versions + 1), VersionKey(batch_time(versions), 1)

            def whole_batch() -> None:
                stated.begin(time, 1, head)
                stated.note(time, 1)
                stated.commit(time, 1)

            def begin_and_note() -> None:
                stated.begin(time, 1, head)
                stated.note(time, 1)

            statements: dict[str, Callable[[], object]] = {
                "state_to_read": lambda: stated.to_read(time),
                "begin and note": begin_and_note,
                "begin, note and commit": whole_batch,
                "chain": lambda: state_versions.chain(connection, **stated.where, version=head),
                "nothing to delete": lambda: state_versions_to_delete(
                    connection, restore_window=timedelta(hours=1), keep=timedelta(days=14), limit=100
                ),
                "allocate an empty interval": lambda: stated.log.tracker.allocate_blocks_to_batch(time + INTERVAL),
            }
            for name, statement in statements.items():
                for _ in range(7):
                    with reading(connection) as read:
                        statement()
                found[name] = read
        engine.dispose()
    return found


def test_a_batch_with_a_state_costs_the_same_however_many_versions_are_stored(postgres_server: TestServer) -> None:
    few, many = cost(postgres_server, FEW), cost(postgres_server, MANY)
    grown = {
        name: (few[name], read)
        for name, read in many.items()
        if read.rows + read.entries > few[name].rows + few[name].entries + SOME
        or read.buffers > 1.5 * few[name].buffers + 3 * SOME
    }
    assert grown == {}
