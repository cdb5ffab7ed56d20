"""Real receiver processes that are killed, or paused, with stored blocks that are not registered."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from receiver_runtime.block_store.local import LocalBlockStore
from receiver_runtime.block_store.segment import IntactFrame
from receiver_runtime.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import (
    CuttingProxy,
    NumberedSource,
    ReceiverRig,
    eventually,
    exit_code,
)
from tracker_store.checks import check_data
from tracker_store.engine import connect
from tracker_store.schema import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def source() -> Iterator[NumberedSource]:
    made = NumberedSource()
    yield made
    made.close()


@pytest.fixture
def rig(database_url: str, tmp_path: Path, source: NumberedSource) -> Iterator[ReceiverRig]:
    made = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, block_queue_size=5)
    yield made
    made.close()


@pytest.fixture
def proxy(database_url: str) -> Iterator[tuple[CuttingProxy, str]]:
    url = sa.make_url(database_url)
    assert url.port is not None
    made = CuttingProxy(url.port)
    yield made, url.set(host="127.0.0.1", port=made.port).render_as_string(hide_password=False)
    made.close()


def stored(rig: ReceiverRig) -> list[str]:
    """Every record in an intact frame of any file, by epoch and file."""
    store = LocalBlockStore(rig.root / "blocks")
    found: list[str] = []
    for path in sorted(store.segment_paths()):
        for item in store.scan(path):
            if isinstance(item, IntactFrame):
                for batch in store.read_batches(path, item.offset, item.length, item.crc32c):
                    found.extend(batch.column(0).to_pylist())
    return found


def holds_unregistered(rig: ReceiverRig, blocks: int) -> bool:
    store = LocalBlockStore(rig.root / "blocks")
    frames = sum(isinstance(item, IntactFrame) for path in store.segment_paths() for item in store.scan(path))
    [(registered,)] = rig.execute("SELECT count(*) FROM forebay.blocks WHERE segment_id IS NOT NULL")
    return frames >= int(registered) + blocks


def check_each_stored_record_came_out_once(rig: ReceiverRig) -> None:
    values = rig.values()
    assert values == stored(rig)
    numbers = [int(value) for value in values]
    assert numbers == sorted(set(numbers))
    with connect(rig.engine) as connection:
        assert [result for result in check_data(connection) if not result.passed] == []


def test_point_19_what_a_killed_process_had_stored_comes_out_once(
    rig: ReceiverRig, source: NumberedSource, proxy: tuple[CuttingProxy, str]
) -> None:
    between, url = proxy
    process = rig.start(database_url=url)
    eventually(lambda: rig.records() > 50, "50 records")
    between.away = True
    between.cut()
    eventually(lambda: holds_unregistered(rig, 3), "3 blocks that are stored and not registered")
    process.kill()
    process.wait()
    source.sending.clear()
    before, waiting = rig.records(), len(stored(rig))
    assert waiting > before
    second = rig.start()
    eventually(lambda: rig.records() == waiting, "what was stored is registered")
    source.sending.set()
    eventually(lambda: rig.records() > waiting + 50, "and the new process receives")
    second.send_signal(signal.SIGTERM)
    assert exit_code(second) == ExitCode.STOPPED
    check_each_stored_record_came_out_once(rig)
    assert rig.events().count(ReceiverEventKind.SALVAGED) == 1
    assert {state for _, state, _ in rig.segments()} == {"SEALED"}


def test_an_addition_that_is_under_way_while_its_successor_salvages(rig: ReceiverRig, source: NumberedSource) -> None:
    """The server goes on with the statement of a process that was killed: before the claim, or never."""
    process = rig.start()
    eventually(lambda: rig.records() > 50, "50 records")
    with rig.engine.connect() as connection:
        # Additions wait for this lock, behind it the rest of what is stored waits for them.
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("LOCK TABLE forebay.blocks IN SHARE ROW EXCLUSIVE MODE")
        eventually(lambda: holds_unregistered(rig, 3), "3 blocks that are stored and not registered")
        process.kill()
        process.wait()
        source.sending.clear()
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


def test_w21_a_paused_process_that_wakes_up_after_its_segments_were_salvaged(
    rig: ReceiverRig, source: NumberedSource, proxy: tuple[CuttingProxy, str]
) -> None:
    between, url = proxy
    paused = rig.start(database_url=url)
    eventually(lambda: rig.records() > 50, "50 records")
    between.away = True
    between.cut()
    eventually(lambda: holds_unregistered(rig, 3), "3 blocks that are stored and not registered")
    paused.send_signal(signal.SIGSTOP)
    source.sending.clear()
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
