"""Test a receiver process that listens, on a real driver log and real files."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig
from tests.support.machine.held_ports import held_port
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from receiver_runtime.receivers.sockets.tcp_source import TcpSource


@pytest.fixture
def make_rig(database_url: str, tmp_path: Path) -> Iterator[Callable[[TcpSource], ReceiverRig]]:
    made: list[ReceiverRig] = []

    def make(source: TcpSource) -> ReceiverRig:
        made.append(
            ReceiverRig.make(database_url, tmp_path / "receiver", source.model_dump(mode="json"), block_interval="20ms")
        )
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def test_x02_a_killed_receiver_listens_on_its_port_again_at_once(
    make_rig: Callable[[TcpSource], ReceiverRig],
) -> None:
    with held_port() as port:
        rig = make_rig(RawSocket(listen=f"127.0.0.1:{port}"))
        for round_number in range(1, 3):
            process = rig.start()
            eventually(lambda n=round_number: len(rig.epochs()) == n, "the claim")  # type: ignore[misc]
            eventually(lambda: _accepts(port), "listening")
            with socket.create_connection(("127.0.0.1", port), timeout=60) as sender:
                sender.sendall(struct.pack(">i", 3) + b"\xff\x00%d" % round_number)
                eventually(lambda n=round_number: rig.records() == n, "the record")  # type: ignore[misc]
                # A connection is open, which the kernel then keeps for a while.
                process.kill()
                process.wait(60)
    values: list[object] = list(rig.values())
    assert values == [b"\xff\x001", b"\xff\x002"]
    assert ReceiverEventKind.RESTARTED not in rig.events()


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
