"""ZeroMQ for the conformance suite: a sender with a socket for each receiver, which knows what may be lost.

Receivers listen, each at a port of its own, and the sender shares its messages out among those that are there. Nothing
is acknowledged, so what was given to the socket of a receiver that closed its connection (by a stop, a kill, or being
fenced) may be lost from some message on; everything else must come.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
import zmq
from zmq.utils.monitor import recv_monitor_message

from forebay_contrib.zeromq.declaration import ZeroMQ
from tests.conformance.forwarding_sender import ForwardingSender
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from forebay.testing.source_rig import SourceRig

_LOOK_SECONDS = 0.02
_MESSAGES_AT_ONCE = 25
_LINGER_MILLISECONDS = 20_000
# Longer than a test. Not -1: with it, libzmq 4.3.5 may never end its context, once a peer has closed its connection in
# the middle of a large message.
_NEVER_MILLISECONDS = 600_000
_WATCHED = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED | zmq.Event.CLOSED

_LISTENING = sa.text(
    "SELECT DISTINCT ON (receiver_id) receiver_id, id, message FROM forebay.receiver_events "
    "WHERE kind = 'CONNECTED' AND message LIKE 'listening on %' ORDER BY receiver_id, id DESC"
)

Message = tuple[bytes, ...]


@dataclass(eq=False)
class _Connection:
    """To one receiver; never made again once it is gone, since its port may be another's by then."""

    socket: zmq.Socket[bytes]
    monitor: zmq.Socket[bytes]
    #: In which the receiver said where it listens.
    event: int
    messages: list[Message] = field(default_factory=list)
    is_there: bool = False
    #: Did the receiver end it, or another take the receiver's place?
    lossy: bool = False

    @classmethod
    def open(cls, context: zmq.Context[zmq.Socket[bytes]], kind: int, endpoint: str, event: int) -> _Connection:
        socket = context.socket(kind)
        socket.reconnect_ivl = _NEVER_MILLISECONDS
        if kind == zmq.XPUB:
            # It waits where a PUB drops.
            socket.xpub_nodrop = True
        monitor = socket.get_monitor_socket(_WATCHED)
        socket.connect(endpoint)
        return cls(socket, monitor, event)

    def look(self) -> bool:
        """Note what became of it; False when the receiver is gone."""
        while self.monitor.poll(0):
            if recv_monitor_message(self.monitor)["event"] != zmq.Event.HANDSHAKE_SUCCEEDED:
                return False
            self.is_there = self.socket.type == zmq.PUSH
        if not self.is_there and self.socket.type == zmq.XPUB and self.socket.poll(0):
            # The subscription. Nothing goes out before it.
            self.is_there = self.socket.recv()[:1] == b"\1"
        return True

    def push(self, message: Message) -> bool:
        """Whether there was room."""
        with contextlib.suppress(zmq.Again):
            self.socket.send_multipart(message, zmq.NOBLOCK)
            self.messages.append(message)
            return True
        return False

    def close(self, linger: int = 0) -> None:
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(linger)


class ZeroMQSender(ForwardingSender[Message, _Connection]):
    """See the module. ``socket`` is the receivers'."""

    def __init__(self, database_url: str, socket: str) -> None:
        self._socket = socket
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # Events that are no longer true: nothing listens there.
        self._ended: set[int] = set()
        super().__init__(database_url)

    def _close_sockets(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._context.destroy(linger=0)

    def source(self, **changes: Any) -> ZeroMQ:  # noqa: ANN401  fields of the source
        return ZeroMQ(**{"endpoints": "tcp://127.0.0.1:*", "socket": self._socket, "bind": True, **changes})

    def _numbered(self, number: int) -> Message:
        body = b"message %d" % number
        return (body,) if number % 3 else (b"topic", body, b"more")

    def send_odd(self) -> int:
        """Nothing, no text, many frames, and nearly the largest."""
        odd: list[Message] = [(b"",), (b"", b""), (b"\xff\0",), (b"n", *[b"f"] * 500), (b"", b"x" * 1_000_000)]
        return self._send_all(odd)

    def all_came(self, rig: SourceRig) -> bool:
        with self._lock:
            if self._queue or not any(connection.is_there for connection in self._open.values()):
                # Nothing may be left to send; but the process that was started last may not have begun.
                return False
            sure = {message for one in self._connections if not one.lossy for message in one.messages}
        return rig.registered() >= len(sure) and sure <= {_message(row) for row in rig.rows()}

    def check(self, rig: SourceRig) -> None:
        """Check what came, and the columns."""
        self._check_tails(map(_message, rig.rows()))
        for row in rig.rows():
            assert (row["topic"] is not None) == (self._socket == "sub" and len(_message(row)) > 1)
        assert rig.failed_checks() == []

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._done.wait(_LOOK_SECONDS):
            with self._lock:
                self._find_receivers()
                if self._is_away:
                    self._leave()
                else:
                    self._forward()

    def _leave(self) -> None:
        for receiver in list(self._open):
            self._open.pop(receiver).close(_LINGER_MILLISECONDS)

    def _find_receivers(self) -> None:
        for receiver, connection in list(self._open.items()):
            if not connection.look():
                self._lose(receiver)
        if self._is_away:
            return
        with connect(self._engine) as asking:
            found = list(asking.execute(_LISTENING))
        for receiver, event, message in found:
            known = self._open.get(receiver)
            if known is not None and known.event != event:
                self._lose(receiver)
                known = None
            if known is None and event not in self._ended:
                kind = zmq.PUSH if self._socket == "pull" else zmq.XPUB
                endpoint = message.removeprefix("listening on ")
                self._open[receiver] = _Connection.open(self._context, kind, endpoint, event)
                self._connections.append(self._open[receiver])

    def _lose(self, receiver: int) -> None:
        connection = self._open.pop(receiver)
        connection.lossy = True
        self._ended.add(connection.event)
        connection.close()

    def _forward(self) -> None:
        """Send a few messages to each that is there and has room."""
        progress = True
        while progress:
            progress = False
            for connection in self._open.values():
                for _ in range(min(_MESSAGES_AT_ONCE, len(self._queue)) if connection.is_there else 0):
                    if not connection.push(self._queue[0]):
                        break
                    self._queue.popleft()
                    progress = True


def _message(row: dict[str, Any]) -> Message:
    """Return the frames, whichever column has them."""
    topic = () if row["topic"] is None else (row["topic"],)
    return (*topic, row["body"], *row["further_frames"])
