"""Test a real receiver process whose block store is unmounted while it runs, and before it starts."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.agent.store_attachment import attach
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tests.support.machine.mounts import Mount

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def source() -> Iterator[NumberedSource]:
    made = NumberedSource(pause=0.002)
    yield made
    made.close()


def told(rig: ReceiverRig, message: str) -> str:
    """Return the newest event's detail; empty if there is none."""
    rows = rig.execute("SELECT detail FROM forebay.receiver_events WHERE message = :m ORDER BY id", m=message)
    return rows[-1].detail if rows else ""


def stored_records(mount: Mount) -> int:
    """Return the number of records in all blocks on the unmounted disk."""
    disk = LocalBlockStore(mount.disk)
    items = [item for path in disk.segment_paths() for item in disk.scan(path)]
    return sum(item.header.records for item in items if isinstance(item, IntactFrame))


def test_an_unmounted_store_takes_nothing_and_receiving_continues_when_it_is_back(
    database_url: str, tmp_path: Path, source: NumberedSource
) -> None:
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, segment_interval="100ms")
    mount = Mount(tmp_path / "blocks")
    rig.roots = str(mount.root)
    attach(rig.engine, host=socket.gethostname(), block_store=rig.roots, stop=threading.Event())
    try:
        process = rig.start()
        eventually(lambda: rig.has_records(50), "50 records")

        mount.unmount()
        eventually(lambda: "not mounted?" in rig.state()[1], "the reason")
        assert rig.state()[0] == "ACTIVE"
        assert str(mount.root) in rig.state()[1]
        # Events are written after the reason.
        eventually(lambda: told(rig, "a block could not be stored, it is tried again"), "the event")
        assert f"{mount.root} can't be reached (not mounted?" in told(
            rig, "a block could not be stored, it is tried again"
        )
        held, segments = stored_records(mount), len(rig.segments())
        eventually(lambda: rig.records() == held, "what was stored before is registered")
        sent = source.sent
        eventually(lambda: source.sent > sent + 100, "more from the source")
        assert (rig.records(), stored_records(mount), len(rig.segments()), mount.below) == (held, held, segments, [])
        mount.mount()
        eventually(lambda: rig.has_records(held + 50), "it goes on")
        eventually(lambda: "not mounted?" not in rig.state()[1], "the reason is gone")

        source.pause()
        eventually(lambda: rig.records() == source.sent, "everything that was sent")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()

        mount.unmount()
        rig.assign(2)
        process = rig.start(2)
        eventually(lambda: told(rig, "the block store is not there, waiting for it"), "the event")
        assert f"{mount.root} can't be reached (not mounted?" in rig.state()[1]
        assert mount.below == []
        mount.mount()
        held = rig.records()
        source.sending.set()
        eventually(lambda: rig.has_records(held + 50), "it begins")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()
        values = [int(value) for value in rig.values()]
        # A line that the source sent into the first process's connection is lost, as with any plain socket.
        assert values[:held] == list(range(held))
        assert sorted(set(values)) == values
    finally:
        rig.close()


def test_a_receiver_that_waits_for_its_store_can_be_stopped(
    database_url: str, tmp_path: Path, source: NumberedSource
) -> None:
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port)
    mount = Mount(tmp_path / "blocks")
    rig.roots = str(mount.root)
    attach(rig.engine, host=socket.gethostname(), block_store=rig.roots, stop=threading.Event())
    mount.unmount("nothing")
    try:
        process = rig.start()
        eventually(lambda: told(rig, "the block store is not there, waiting for it"), "the event")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()
        assert not mount.root.exists()
    finally:
        rig.close()
