from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.sockets.client import NO_MORE_DATA
from receiver_runtime.receivers.sockets.text import SocketTextReceiver
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.receivers.tcp import READ_BYTES
from receiver_runtime.sources.source import Source, SourceError
from tests.unit.receiver_runtime.rig import rig, running
from tests.unit.receiver_runtime.support import eventually
from tracker_store.schema.states import DesiredState, ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Server:
    """A source on its own port; a test accepts connections and sends on them."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(20)
        self.port = int(self._listener.getsockname()[1])
        self._accepted: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection, _ = self._listener.accept()
        connection.settimeout(20)
        self._accepted.append(connection)
        return connection

    def close(self) -> None:
        for connection in [self._listener, *self._accepted]:
            connection.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


def receiver_of(server: Server, **fields: object) -> SocketTextReceiver:
    source = SocketText.model_validate({"host": "127.0.0.1", "port": server.port} | fields)
    receiver = make_receiver(source)
    assert isinstance(receiver, SocketTextReceiver)
    return receiver


def reset(connection: socket.socket) -> None:
    """Close so that the other side sees an error."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_x01_a_sender_that_hangs_up_is_called_again_and_its_last_line_counts(server: Server, tmp_path: Path) -> None:
    with rig(tmp_path, receiver_of(server)) as made:
        with server.accept() as connection:
            connection.sendall(b"one\ntwo\nlast without end")
        with server.accept() as connection:
            connection.sendall(b"three\n")
            eventually(lambda: len(made.values()) == 4)
        assert made.values() == ["one", "two", "last without end", "three"]
        assert (ReceiverEventKind.RESTARTED, NO_MORE_DATA, "") in made.reporter.events
        assert made.dead_letters() == []


def test_x01_a_broken_connection_keeps_whole_lines_and_the_rest_becomes_a_dead_letter(
    server: Server, tmp_path: Path
) -> None:
    with rig(tmp_path, receiver_of(server)) as made:
        connection = server.accept()
        connection.sendall(b"whole\nbrok")
        eventually(lambda: made.values() == ["whole"])
        reset(connection)
        server.accept().sendall(b"next\n")
        eventually(lambda: made.values() == ["whole", "next"])
        assert made.dead_letters() == [("truncated", 0, b"brok")]
        assert any(message == "Error receiving data" for _, message, _ in made.reporter.events)


def test_a_stop_in_mid_stream_drains_the_lines_read_so_far(server: Server, tmp_path: Path) -> None:
    with rig(tmp_path, receiver_of(server), block_interval="60s") as made:
        connection = server.accept()
        connection.sendall(b"".join(b"%d\n" % n for n in range(10_000)) + b"mid")
        eventually(lambda: made.supervisor.block_path.generator._buffer.records == 10_000)
        assert made.stop().drained
        assert made.values() == [str(n) for n in range(10_000)]
        assert made.dead_letters() == [("truncated", 0, b"mid")]
        assert connection.recv(1) == b""


def test_a_pause_closes_the_connection_and_a_resume_opens_another(server: Server, tmp_path: Path) -> None:
    with rig(tmp_path, receiver_of(server)) as made:
        connection = server.accept()
        made.log.desired[1] = DesiredState.PAUSED
        assert connection.recv(1) == b""
        made.log.desired[1] = DesiredState.RUNNING
        server.accept().sendall(b"again\n")
        eventually(lambda: made.values() == ["again"])


def test_an_empty_stream_makes_no_block_and_is_connected_again(server: Server, tmp_path: Path) -> None:
    with rig(tmp_path, receiver_of(server)) as made:
        for _ in range(3):
            server.accept().close()
        server.accept()
        assert made.log.chain(1) == []
        assert made.rows.paths == {}


def test_a_missing_source_is_reported_and_waited_for(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        # The port is bound without listening: connections are refused, and no other process can take it.
        receiver = make_receiver(SocketText(host="127.0.0.1", port=port))
        with rig(tmp_path, receiver) as made:
            eventually(lambda: len(made.reporter.events) >= 3)
            assert f"Error connecting to 127.0.0.1:{port}" in made.reporter.reasons[-1]
            # All events are of one kind, so the reporter counts them instead of writing each.
            assert {event[:2] for event in made.reporter.events} == {
                (ReceiverEventKind.RESTARTED, f"Error connecting to 127.0.0.1:{port}")
            }
            unused.listen()
            connection, _ = unused.accept()
            with connection:
                connection.sendall(b"here now\n")
                eventually(lambda: made.values() == ["here now"])


def test_bad_input_becomes_dead_letters_and_the_rest_of_the_stream_is_kept(server: Server, tmp_path: Path) -> None:
    large = b"L" * 3000
    stream = b"a\r\n\n\x00b\x00\n\xff\xfe\n" + large + b"\nc" + b"\n" + "ü\n".encode() + b"\xc3\nlast"
    with rig(tmp_path, receiver_of(server, max_record_bytes=1000)) as made:
        with server.accept() as connection:
            for at in range(0, len(stream), 7):
                connection.sendall(stream[at : at + 7])
        server.accept()
        eventually(lambda: len(made.values()) == 6)
        assert made.values() == ["a", "", "\x00b\x00", "c", "ü", "last"]
        # Those of one read are together by their reason.
        assert sorted(made.dead_letters()) == [
            ("invalid_encoding", 0, b"\xc3"),
            ("invalid_encoding", 0, b"\xff\xfe"),
            ("record_too_large", 0, large),
        ]
        assert all(receiver_event[0] is not ReceiverEventKind.ERROR for receiver_event in made.reporter.events)


def test_w16_small_blocks_bound_what_is_held_though_one_read_is_many_of_them(server: Server, tmp_path: Path) -> None:
    queue, block = 10, 2**16
    held_before = pa.total_allocated_bytes()
    with rig(tmp_path, receiver_of(server), block_queue_size=queue, max_block_bytes="64KiB") as made:
        made.log.away = True
        connection = server.accept()
        connection.settimeout(1.0)
        # Use data that compression does not make much smaller.
        lines = random.Random(5).randbytes(2**20).hex(b"\n", 50).encode() + b"\n"
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 100 * len(lines):
                sent += connection.send(lines[sent % len(lines) :])
        assert sent < 30 * len(lines)
        eventually(lambda: made.supervisor.block_path.generator.waiting_blocks >= queue - 5)
        # It holds the queue, one block on its way in and one on its way out, and one read as bytes, lines and pieces.
        assert pa.total_allocated_bytes() - held_before <= queue * block + 2 * READ_BYTES
        made.log.away = False
        connection.settimeout(20)
        rounds = sent // len(lines) + 1
        connection.sendall(lines[sent % len(lines) :])
        eventually(lambda: sum(item.records for item in made.log.chain(1)) == rounds * lines.count(b"\n"))
        assert max(item.bytes for item in made.log.chain(1)) <= block + 4_096
        assert made.values() == lines.decode().splitlines() * rounds


def test_on_stop_may_be_called_twice_and_before_a_connection(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        receiver = make_receiver(SocketText(host="127.0.0.1", port=unused.getsockname()[1]))
        with running(tmp_path, receiver) as made:
            made.stop()
            receiver.on_stop()


def test_a_stop_does_not_wait_for_an_unresponsive_host(tmp_path: Path) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        # When the queue is full, the kernel answers no further connection.
        waiting = [socket.socket() for _ in range(3)]
        for connection in waiting:
            connection.settimeout(0)
            connection.connect_ex(full.getsockname())
        receiver = make_receiver(SocketText(host="127.0.0.1", port=full.getsockname()[1], connect_timeout=60))
        with running(tmp_path, receiver) as made:
            assert made.stop().drained
        for connection in waiting:
            connection.close()


def test_a_stop_of_an_idle_receiver_leaves_no_thread(server: Server, tmp_path: Path) -> None:
    with rig(tmp_path, receiver_of(server)) as made:
        server.accept()
        eventually(lambda: made.reporter.reasons)
        made.stop()
    eventually(lambda: not [t for t in threading.enumerate() if t.name.endswith(str(server.port))])


def test_a_source_without_a_receiver_is_named() -> None:
    class Pigeon(Source):
        kind: str = "pigeon"

    with pytest.raises(SourceError, match="pigeon"):
        make_receiver(Pigeon())
