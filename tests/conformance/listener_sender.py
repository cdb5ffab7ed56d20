"""Send to listening receivers over TCP, for the conformance suite, and know what may be lost.

It works like a log shipper: while nothing listens, its messages wait in its queue, and it forgets what it has written
to a connection. So from some message on, messages on a connection that the receiver ended (by a stop, a kill, or
because another process replaced it) may be lost; everything else must come.
"""

from __future__ import annotations

import contextlib
import select
import socket
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tests.conformance.forwarding_sender import ForwardingSender
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.testing.source_rig import SourceRig

_LOOK_SECONDS = 0.02
_MESSAGES_AT_ONCE = 25

_LISTENING = sa.text(
    "SELECT DISTINCT ON (receiver_id) receiver_id, message FROM forebay.receiver_events "
    "WHERE kind = 'CONNECTED' AND message LIKE 'listening on %' ORDER BY receiver_id, id DESC"
)


@dataclass(eq=False)
class ListenerConnection:
    """Hold one connection to a receiver."""

    socket: socket.socket
    port: int
    messages: list[bytes] = field(default_factory=list)
    #: Written, but not yet accepted by the kernel.
    out: bytes = b""
    #: Whether the receiver ended the connection, or another process replaced the receiver.
    lossy: bool = False

    def is_alive(self) -> bool:
        try:
            return self.socket.recv(1) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False

    def push(self) -> bool:
        """Write as much as the kernel accepts; return False when the receiver is gone."""
        try:
            while self.out:
                self.out = self.out[self.socket.send(self.out) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


class ListenerSender(ForwardingSender[bytes, ListenerConnection]):
    """See the module. A subclass says what its messages are."""

    def _close_sockets(self) -> None:
        for connection in self._connections:
            connection.socket.close()

    @abstractmethod
    def _framed(self, message: bytes) -> bytes:
        """Return what is written to a connection for a message."""

    @abstractmethod
    def _message_of(self, row: Mapping[str, Any]) -> bytes:
        """Return the message that a row holds."""

    def _connected(self, port: int) -> socket.socket:
        """Return a socket that is connected to a receiver. Raises OSError."""
        return socket.create_connection(("127.0.0.1", port), timeout=5)

    def _may_send(self, receiver: int, connection: ListenerConnection) -> bool:
        """Return whether a receiver may be sent more now."""
        return True

    def all_came(self, rig: SourceRig) -> bool:
        with self._lock:
            if self._queue or any(connection.out for connection in self._open.values()):
                return False
            if not any(connection.is_alive() for connection in self._open.values()):
                # Nothing may be left to send, but the process that was started last may not have begun.
                return False
            sure = [message for one in self._connections if not one.lossy for message in one.messages]
        if rig.registered() < len(sure):
            return False
        came = {self._message_of(row) for row in rig.rows()}
        return came.issuperset(sure)

    def check(self, rig: SourceRig) -> None:
        """Check what came, and from whom."""
        self._check_tails(self._message_of(row) for row in rig.rows())
        assert {row["sender"] for row in rig.rows()} <= {"127.0.0.1"}
        assert rig.failed_checks() == []

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._done.is_set():
            with self._lock:
                if self._is_away:
                    self._leave()
                else:
                    self._find_receivers()
                    self._forward()
                sockets = [connection.socket for connection in self._open.values() if connection.out]
            select.select([], sockets, [], _LOOK_SECONDS) if sockets else self._done.wait(_LOOK_SECONDS)

    def _leave(self) -> None:
        """Close each connection once the kernel has all its bytes: it sends them even if a process dies."""
        for receiver, connection in list(self._open.items()):
            if not connection.push():
                self._lose(receiver)
            elif not connection.out:
                self._open.pop(receiver).socket.close()

    def _find_receivers(self) -> None:
        with connect(self._engine) as asking:
            found = [(row.receiver_id, int(row.message.rpartition(":")[2])) for row in asking.execute(_LISTENING)]
        for receiver, port in found:
            known = self._open.get(receiver)
            if known is not None and (known.port != port or not known.is_alive()):
                self._lose(receiver)
                known = None
            if known is None:
                with contextlib.suppress(OSError):
                    made = self._connected(port)
                    made.setblocking(False)  # noqa: FBT003  the standard library's own
                    self._open[receiver] = ListenerConnection(made, port)
                    self._connections.append(self._open[receiver])

    def _lose(self, receiver: int) -> None:
        connection = self._open.pop(receiver)
        connection.lossy = True
        connection.out = b""
        connection.socket.close()

    def _forward(self) -> None:
        """Send a few messages to each receiver that has taken the previous ones."""
        progress = True
        while progress:
            progress = False
            for receiver, connection in list(self._open.items()):
                if not connection.out and self._queue and self._may_send(receiver, connection):
                    count = min(_MESSAGES_AT_ONCE, len(self._queue))
                    messages = [self._queue.popleft() for _ in range(count)]
                    connection.messages += messages
                    connection.out = b"".join(map(self._framed, messages))
                    progress = True
                if not connection.push():
                    self._lose(receiver)
