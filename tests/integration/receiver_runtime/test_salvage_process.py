"""Test real receiver processes that are killed, or paused, with stored blocks that are not registered."""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.killed_process import (
    check_each_stored_record_came_out_once,
    hold_unregistered,
    holds_unregistered,
    kill_and_take_over,
    stored,
)
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tracker_store.connection.engine import connect
from tracker_store.reports.checks import check_data
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def rig(database_url: str, tmp_path: Path, source: NumberedSource) -> Iterator[ReceiverRig]:
    made = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, block_queue_size=5)
    yield made
    made.close()


@pytest.fixture
def proxy(database_url: str) -> Iterator[tuple[CuttingProxy, str]]:
    made = CuttingProxy(database_url)
    yield made, through(database_url, made.port)
    made.close()


def test_blocks_stored_by_a_killed_process_come_out_once(
    rig: ReceiverRig, source: NumberedSource, proxy: tuple[CuttingProxy, str]
) -> None:
    kill_and_take_over(rig, source, proxy)


@pytest.mark.parametrize("gone", ["a", "b"])
def test_on_two_replicas_blocks_stored_by_a_killed_process_come_out_once(
    database_url: str, tmp_path: Path, source: NumberedSource, proxy: tuple[CuttingProxy, str], gone: str
) -> None:
    """Check the same on two replicas, one of which is gone when the successor looks."""
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, block_queue_size=5)
    rig.roots = f"{tmp_path / 'a'},{tmp_path / 'b'}"

    def lose() -> None:
        shutil.rmtree(tmp_path / gone)
        (tmp_path / gone).mkdir()

    try:
        kill_and_take_over(rig, source, proxy, before_the_next=lose)
    finally:
        rig.close()


_SLOW_STORE = """
import pathlib, time
from receiver_runtime.block_store.stores.local import LocalBlockStore
scan = LocalBlockStore.scan
def scan_when_told(self, path):
    while not pathlib.Path({gate!r}).exists():
        time.sleep(0.01)
    return scan(self, path)
LocalBlockStore.scan = scan_when_told
"""


def test_a_long_salvage_keeps_its_lease(rig: ReceiverRig, proxy: tuple[CuttingProxy, str], tmp_path: Path) -> None:
    """Check that heartbeats continue while the store is slow, and that nothing is received before the salvage ends."""
    between, url = proxy
    process = rig.start(database_url=url)
    hold_unregistered(rig, between)
    process.kill()
    process.wait(60)
    waiting = len(stored(rig))
    gate = tmp_path / "now"
    slow = rig.start(first=_SLOW_STORE.format(gate=str(gate)))

    def heartbeat() -> int:
        found = rig.execute(
            "SELECT heartbeat FROM forebay.processes WHERE pid = :p AND ended_at IS NULL ORDER BY id DESC LIMIT 1",
            p=slow.pid,
        )
        return int(found[0].heartbeat) if found else 0

    eventually(lambda: len(rig.epochs()) == 2, "its claim")
    # Before its claim the server may have continued with an addition of the killed process.
    before = rig.records()
    # More than half of the time after which the leader considers a process dead.
    least = heartbeat() + 6
    eventually(lambda: heartbeat() >= least, "its heartbeats")
    assert (rig.records(), ReceiverEventKind.SALVAGED in rig.events()) == (before, False)
    gate.touch()
    eventually(lambda: rig.records() > waiting, "what was stored is registered, and more is received")
    slow.send_signal(signal.SIGTERM)
    assert exit_code(slow) == ExitCode.STOPPED
    check_each_stored_record_came_out_once(rig)


def test_an_addition_in_progress_while_its_successor_salvages(rig: ReceiverRig, source: NumberedSource) -> None:
    """Check that the server completes the statement of a killed process before the claim, or never."""
    process = rig.start()
    eventually(lambda: rig.records() > 50, "50 records")
    with rig.engine.connect() as connection:
        # Additions wait for this lock; the other stored blocks wait behind them.
        connection.exec_driver_sql("BEGIN")
        # No timeout, however long the successor takes to start.
        connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql("LOCK TABLE forebay.blocks IN SHARE ROW EXCLUSIVE MODE")
        eventually(lambda: holds_unregistered(rig, 3), "3 blocks that are stored and not registered")
        process.kill()
        process.wait(60)
        source.pause()
        waiting = len(stored(rig))
        rig.start()
        eventually(
            lambda: rig.execute(
                "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%forebay.claim%'"
            ),
            "the successor's claim waits too",
        )
        connection.exec_driver_sql("COMMIT")
    eventually(lambda: rig.records() == waiting, "what was stored is registered")
    check_each_stored_record_came_out_once(rig)


def test_w21_a_paused_process_that_resumes_after_its_segments_were_salvaged(
    rig: ReceiverRig, source: NumberedSource, proxy: tuple[CuttingProxy, str]
) -> None:
    between, url = proxy
    paused = rig.start(database_url=url)
    hold_unregistered(rig, between)
    paused.send_signal(signal.SIGSTOP)
    source.pause()
    rig.assign(2)
    rig.start(assignment=2)
    eventually(lambda: ReceiverEventKind.SALVAGED in rig.events(), "its blocks are salvaged")
    eventually(lambda: rig.state()[0] == "ACTIVE", "the successor receives")
    between.away = False
    paused.send_signal(signal.SIGCONT)
    assert exit_code(paused) == ExitCode.FENCED
    [(detail,)] = rig.execute("SELECT detail FROM forebay.receiver_events WHERE kind = 'FENCED'")
    assert "that are stored and not registered by it" in detail
    values = [int(value) for value in rig.values()]
    assert values == sorted(set(values))
    with connect(rig.engine) as connection:
        assert [result for result in check_data(connection) if not result.passed] == []
