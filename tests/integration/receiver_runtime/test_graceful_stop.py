"""Test the data in a receiver process: a graceful stop registers all of it, and it never exceeds its limit."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig, exit_code
from tests.support.machine.unread_bytes import unread_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORDS = 10_000
_MIB = 2**20


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(60)
        yield made


def declare(database_url: str, root: Path, listener: socket.socket, **settings: object) -> ReceiverRig:
    source = SocketText(host="127.0.0.1", port=listener.getsockname()[1]).model_dump(mode="json")
    return ReceiverRig.make(database_url, root, source, **settings)


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux what the receiver has read")
def test_s04_k12_sigterm_with_10000_records_in_the_buffer_registers_each_once(
    database_url: str, tmp_path: Path, listener: socket.socket
) -> None:
    rig = declare(database_url, tmp_path / "receiver", listener, block_interval="60s")
    try:
        process = rig.start()
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"".join(b"%d\n" % n for n in range(_RECORDS)))
            eventually(lambda: unread_bytes(listener.getsockname()[1]) == 0, "the receiver's reading")
            # Everything is in the buffer, and the next block is a minute away.
            assert rig.records() == 0
            process.send_signal(signal.SIGTERM)
            assert exit_code(process) == ExitCode.STOPPED, rig.logs()
        assert rig.values() == [str(n) for n in range(_RECORDS)]
        assert rig.state() == ("INACTIVE", "SIGTERM")
    finally:
        rig.close()


class EndlessSource:
    """Send lines as fast as they are read, until it is closed."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.sent = 0
        self.closed = False
        self._lines = b"".join(b"%099d\n" % n for n in range(640))
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closed = True
        self._thread.join(30)

    def _send(self) -> None:
        connection, _ = self._listener.accept()
        lines = memoryview(self._lines)
        with connection, contextlib.suppress(OSError):
            connection.settimeout(0.2)
            while not self.closed:
                with contextlib.suppress(TimeoutError):
                    # Continue where the last send ended: it may have sent only a part.
                    self.sent += connection.send(lines[self.sent % len(lines) :])


def settles(figure: EndlessSource, seconds: float) -> bool:
    """Return whether the source sends nothing more for this many seconds."""
    before = figure.sent
    time.sleep(seconds)
    return figure.sent == before


@pytest.mark.skipif(sys.platform == "win32", reason="a receiver process ends by a signal")
def test_w05_w16_w17_a_source_without_end_fills_a_bounded_memory_while_the_driver_log_is_away(
    database_url: str, tmp_path: Path, listener: socket.socket
) -> None:
    queue, block = 8, 4 * _MIB
    rig = declare(
        database_url,
        tmp_path / "receiver",
        listener,
        block_queue_size=queue,
        max_block_bytes="4MiB",
        block_interval="1s",
    )
    proxy = CuttingProxy(database_url)
    source = EndlessSource(listener)
    try:
        process = rig.start(database_url=through(database_url, proxy.port))
        eventually(lambda: rig.records() > 0, "a first block")
        watched = psutil.Process(process.pid)
        # Of the code, which a forked process shares with the one that has loaded it, and of the first block.
        at_first = watched.memory_info().rss
        proxy.away = True
        proxy.cut()
        highest = 0

        def is_full() -> bool:
            nonlocal highest
            highest = max(highest, watched.memory_info().rss)
            return settles(source, 0.5)

        sent_before = source.sent
        eventually(is_full, "the end of reading")
        # As much again waits on disk, stored and not registered; the rest is in the kernel's buffers.
        assert source.sent - sent_before <= (2 * queue + 5) * block + 16 * _MIB
        assert highest - at_first <= (queue + 5) * block + 48 * _MIB
        # None of it is lost, and reading continues.
        proxy.away = False
        held = rig.records()
        eventually(lambda: rig.records() > held + queue * block // 100, "what waited, and more")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()
        values = rig.values()
        cycle = [f"{n:099d}" for n in range(640)]
        assert all(value == cycle[n % 640] for n, value in enumerate(values)), "a line is missing or came twice"
    finally:
        source.close()
        proxy.close()
        rig.close()
