"""Check that senders that hold connections and send nothing do not keep other senders out."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from forebay_contrib.syslog.declaration import Syslog
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.unit.receiver_runtime.receivers.sockets.test_listener import is_closed, port_of
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver


def text_receiver(**fields: object) -> Receiver:
    return make_receiver(SocketText.model_validate({"listen": "127.0.0.1:0"} | fields))


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(host, 0))


def is_refused(port: int) -> bool:
    """Return whether a new connection is closed: a reset can come before `connect` has seen that it is open."""
    try:
        with connect(port) as connection:
            return is_closed(connection)
    except ConnectionResetError:
        return True


def is_taken(made: Rig, port: int, line: bytes, host: str = "127.0.0.1") -> bool:
    """Send a line on a new connection, which may be refused; return whether it is stored."""
    with contextlib.suppress(OSError), connect(port, host) as connection:
        connection.sendall(line + b"\n")
        connection.shutdown(socket.SHUT_WR)
        is_closed(connection)
    return line.decode() in made.values()


def test_silent_connections_give_their_places_to_senders(tmp_path: Path) -> None:
    with (
        rig(tmp_path, text_receiver(max_connections=50, connect_timeout="300ms")) as made,
        contextlib.ExitStack() as stack,
    ):
        port = port_of(made)
        for _ in range(50):
            # The last of them are refused: one peer may not have all places.
            with contextlib.suppress(ConnectionResetError):
                stack.enter_context(connect(port))
        eventually(lambda: is_taken(made, port, b"let in"), "a place")
        assert any("it was silent, and a new one needed its place" in message for _, message, _ in made.reporter.events)


def test_the_sender_that_was_silent_for_longest_goes_and_its_unfinished_record_is_kept(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver(max_connections=2, idle_timeout="400ms")) as made:
        port = port_of(made)
        with connect(port) as first, connect(port) as second:
            first.sendall(b"one\nunfin")
            eventually(lambda: made.values() == ["one"])
            second.sendall(b"two\n")
            eventually(lambda: made.values() == ["one", "two"])
            eventually(lambda: is_taken(made, port, b"three"), "a place")
            assert is_closed(first)
            eventually(lambda: made.dead_letters() == [("truncated", 0, b"unfin")])
            second.sendall(b"still here\n")
            eventually(lambda: "still here" in made.values())


def test_a_silent_connection_stays_open_while_there_are_places(tmp_path: Path) -> None:
    with rig(tmp_path, text_receiver(max_connections=3, connect_timeout="1ms", idle_timeout="1ms")) as made:
        port = port_of(made)
        with connect(port) as silent:
            for line in (b"a", b"b", b"c"):
                eventually(lambda line=line: is_taken(made, port, line))  # type: ignore[misc]
            silent.sendall(b"after all\n")
            eventually(lambda: "after all" in made.values())


def test_one_peer_leaves_places_to_others(tmp_path: Path) -> None:
    source = Syslog(listen="127.0.0.1:0", transports=("tcp",), max_connections=10, max_connections_per_peer=2)
    with rig(tmp_path, make_receiver(source)) as made, contextlib.ExitStack() as stack:
        port = port_of(made)
        for _ in range(2):
            stack.enter_context(connect(port))
        assert is_refused(port)
        eventually(
            lambda: any("which is max_connections_per_peer" in message for _, message, _ in made.reporter.events)
        )
        stack.enter_context(connect(port, "127.0.0.2")).sendall(b"<1>from another\n")
        eventually(lambda: made.log.chain(1))
