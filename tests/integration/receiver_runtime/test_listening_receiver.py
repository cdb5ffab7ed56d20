"""Test a receiver process that listens, on a real driver log and real files."""

from __future__ import annotations

import contextlib
import signal
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import ReceiverRig, exit_code
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


def port_of(rig: ReceiverRig) -> int:
    eventually(lambda: rig.state()[1].startswith("listening on 127.0.0.1:"), "listening")
    return int(rig.state()[1].rpartition(":")[2])


def test_x01_200_connections_while_one_floods_and_a_stop_drains(
    make_rig: Callable[[TcpSource], ReceiverRig],
) -> None:
    rig = make_rig(SocketText(listen="127.0.0.1:0"))
    process = rig.start()
    port = port_of(rig)
    assert rig.state()[0] == "ACTIVE"
    flooding = threading.Event()
    flooding.set()
    flooded = 0

    def flood() -> None:
        nonlocal flooded
        lines = (b"flood" + b"." * 95 + b"\n") * 1000
        with socket.create_connection(("127.0.0.1", port), timeout=60) as flooder:
            while flooding.is_set():
                flooder.sendall(lines)
                flooded += 1000

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    eventually(lambda: rig.records() > 10_000, "the flood")
    with contextlib.ExitStack() as stack:
        senders = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)) for _ in range(200)]
        for n in range(20):
            for number, sender in enumerate(senders):
                sender.sendall(b"%d:%d\n" % (number, n))
        # Everything from the slow senders is read while the flood, which is more than one read can take, goes on.
        slow = {f"{number}:{n}" for number in range(200) for n in range(20)}
        flooding_then = flooded
        eventually(lambda: flooded > flooding_then + 30_000, "more flood")
        flooding.clear()
        thread.join(20)
        eventually(lambda: rig.records() == flooded + len(slow), "every record")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED
    values = rig.values()
    assert sorted(value for value in values if ":" in value) == sorted(slow)
    by_sender: dict[str, list[int]] = {}
    last_slow = 0
    for place, value in enumerate(values):
        if ":" in value:
            last_slow = place
            sender_number, _, n_of_it = value.partition(":")
            by_sender.setdefault(sender_number, []).append(int(n_of_it))
    assert all(numbers == list(range(20)) for numbers in by_sender.values())
    assert last_slow < len(values) - 1000, "the slow ones were heard only when the flood was over"
    assert rig.events() == [ReceiverEventKind.STARTED, ReceiverEventKind.CONNECTED, ReceiverEventKind.STOPPED]


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
