"""Check that hosts must share a block store: a host that sees another store than the running ones is refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tracker_store.blocks.block_stores import (
    UnsharedBlockStoreError,
    attach_block_store,
    list_block_stores,
    unshared_way_out,
)
from tracker_store.blocks.segments import open_segment
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.agents import forget_host
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    import sqlalchemy as sa


def start(connection: sa.Connection, host: str, *roots: str, slots: int = 4) -> int:
    """Do what `forebay agent` does at its start; return its process."""
    attach_block_store(connection, host=host, roots={root: f"/{root}" for root in roots})
    return register_process(connection, kind=ProcessKind.AGENT, name=host, host=host, pid=1, slots=slots)


def seen(connection: sa.Connection) -> dict[str, list[str]]:
    return {row.host: list(row.roots) for row in list_block_stores(connection)}


def leave_a_segment(connection: sa.Connection, store: str) -> None:
    open_segment(
        connection, receiver_id=1, epoch=1, path=f"of {store}", source_rule="not_sent_again", store=f"other,{store}"
    )


def test_a_host_that_sees_another_store_is_refused_and_told_how_to_fix_it(
    connection: sa.Connection,
) -> None:
    start(connection, "a", "one")
    with pytest.raises(UnsharedBlockStoreError) as refused:
        start(connection, "b", "two")
    assert str(refused.value).startswith(
        "host 'b' sees the block store /two, and host 'a' runs receivers with /one, which is not the same one. "
        "Hosts that have receivers must share a block store. Name one that all of them see in FOREBAY_BLOCK_STORE."
    )
    assert str(refused.value).count("forebay agents forget HOST") == 1
    assert "forebay agents forget a" in unshared_way_out("a")
    assert seen(connection) == {"a": ["one"]}
    start(connection, "b", "one")
    assert seen(connection) == {"a": ["one"], "b": ["one"]}


def test_one_root_in_common_is_enough_so_that_a_store_can_be_moved(connection: sa.Connection) -> None:
    start(connection, "a", "old")
    start(connection, "b", "old", "new")
    start(connection, "a", "new", "old")
    start(connection, "b", "new")
    start(connection, "a", "new")
    with pytest.raises(UnsharedBlockStoreError):
        start(connection, "c", "old")


def test_a_host_that_is_down_counts_while_the_log_names_its_stores_files(connection: sa.Connection) -> None:
    leave_a_segment(connection, "one")
    deregister_process(connection, start(connection, "a", "one"))
    with pytest.raises(UnsharedBlockStoreError, match="host 'a' is not running, and has left blocks in /one"):
        start(connection, "b", "two")
    forget_host(connection, "a")
    start(connection, "b", "two")
    assert seen(connection) == {"b": ["two"]}
    with pytest.raises(DriverLogError, match="no receiver belongs to host 'a'"):
        forget_host(connection, "a")


def test_a_host_that_is_down_and_left_no_files_blocks_no_other(connection: sa.Connection) -> None:
    leave_a_segment(connection, "another")
    deregister_process(connection, start(connection, "a", "one"))
    start(connection, "b", "two")
    with pytest.raises(UnsharedBlockStoreError):
        start(connection, "a", "one")


def test_an_agent_without_slots_requires_no_shared_store(connection: sa.Connection) -> None:
    start(connection, "a", "one", slots=0)
    start(connection, "b", "two")


def test_a_single_host_may_start_with_another_store(connection: sa.Connection) -> None:
    leave_a_segment(connection, "one")
    start(connection, "a", "one")
    start(connection, "a", "two")
    assert seen(connection) == {"a": ["two"]}


def test_one_of_two_hosts_that_start_at_once_with_two_stores_is_refused(
    engine: sa.Engine, connection: sa.Connection
) -> None:
    for host in "ab":
        register_process(connection, kind=ProcessKind.AGENT, name=host, host=host, pid=1, slots=4)

    def attach(host: str) -> bool:
        with connect(engine) as mine:
            try:
                attach_block_store(mine, host=host, roots={f"store of {host}": "/blocks"})
            except UnsharedBlockStoreError:
                return False
            return True

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            connection.exec_driver_sql("DELETE FROM forebay.block_stores")
            assert sorted(threads.map(attach, "ab")) == [False, True]
