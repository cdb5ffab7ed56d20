"""Test that links and keys are cleaned up until nothing is left to take, in bounded transactions (issue 18)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from orchestration.tracker.clean_up.link_cleaner import KEY_WINDOW, LinkCleaner, LinksReport
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.support.driver_log.filled_log import Size, fill
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import DeposedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

SIZE = Size(partitions=3, links=25, keys=45)


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Return a log of two streams whose links are of blocks that are gone, and whose keys are past their window."""
    with connect(engine) as connection:
        fill(connection, SIZE)
        connection.exec_driver_sql("UPDATE forebay.receivers SET low_mark = 1000")
        connection.exec_driver_sql("UPDATE forebay.record_keys SET added_at = added_at - interval '8 days'")
        yield connection


def test_a_stream_without_the_setting_has_the_default_window() -> None:
    assert timedelta(seconds=ReceiverSettings().key_window) == KEY_WINDOW == timedelta(hours=24)


def count(connection: sa.Connection, table: str) -> int:
    found: int = connection.exec_driver_sql(f"SELECT count(*) FROM forebay.{table}").scalar_one()
    return found


def test_one_call_takes_a_backlog_of_many_transactions_and_leaves_each_partitions_position(
    connection: sa.Connection,
) -> None:
    report = LinkCleaner(rows_per_statement=10).clean_up(connection)
    assert report == LinksReport(links=2 * SIZE.partitions * SIZE.links, keys=2 * SIZE.keys)
    assert (count(connection, "block_offsets"), count(connection, "record_keys")) == (2 * SIZE.partitions, 0)
    newest = connection.exec_driver_sql("SELECT DISTINCT to_offset FROM forebay.block_offsets").scalars().all()
    assert newest == [SIZE.links * 10 + 10]


def test_it_ends_when_it_is_stopped_and_the_next_call_goes_on(connection: sa.Connection) -> None:
    asked = iter([False, True])
    report = LinkCleaner(rows_per_statement=10).clean_up(connection, stopped=lambda: next(asked))
    assert report == LinksReport(links=10, keys=10)
    LinkCleaner(rows_per_statement=10).clean_up(connection)
    assert count(connection, "record_keys") == 0


def test_it_changes_nothing_in_the_term_of_another_leader(connection: sa.Connection) -> None:
    before = count(connection, "block_offsets"), count(connection, "record_keys")
    with pytest.raises(DeposedError):
        LinkCleaner().clean_up(connection, term=7)
    assert (count(connection, "block_offsets"), count(connection, "record_keys")) == before
