"""Test that what a batch with a state costs the driver log does not grow with the versions that are stored."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tests.support.driver_log.filled_log import Read, reading
from tests.support.driver_log.log import INTERVAL
from tests.support.driver_log.stated_log import batch_time, filled_stated_log
from tracker_store.batches import state_versions
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect, create_engine
from tracker_store.retention.state_files import state_versions_to_delete

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.testing.postgres import TestServer

FEW, MANY = 200, 2000
SOME = 12  # the trees may be one level higher


def cost(server: TestServer, versions: int) -> dict[str, Read]:
    """Return what each statement reads, with plans that are generic."""
    found = {}
    with server.database() as url:
        engine = create_engine(url, application_name="growth")
        with connect(engine) as connection:
            stated = filled_stated_log(connection, versions)
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
