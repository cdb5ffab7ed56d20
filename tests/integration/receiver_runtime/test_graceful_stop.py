"""Test that a graceful stop of a receiver process registers everything that it has read."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig, exit_code
from tests.support.machine.unread_bytes import unread_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

_RECORDS = 10_000


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
