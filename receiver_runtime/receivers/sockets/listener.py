"""Reads records from every sender that connects, hundreds at once, on one thread.

Each *turn* asks the kernel which connections have data, and reads from each of them once, a bounded amount: a sender
of much data gets no more turns than a sender of little. What a turn has read becomes one Arrow batch, however many
connections it came from. Memory per connection is bounded by the record whose end has not come. A framing may hold
records back for more lines (``framing.JoiningFraming``), and is asked at each turn for those that are overdue.

Backpressure: while the block generator takes no more records, the thread blocks in it. It then reads and accepts
nothing, and the kernel holds the senders back. At a stop it accepts no more connections, reads each connection once
more, as in a turn, and hands on what it read; a record whose end has not come is put aside as truncated.

A connection counts from the moment when it is accepted. Where no place is left, the connection that has been silent for
longest gives its place to a new one, if it has been silent for ``idle_timeout``. Otherwise no connection is closed for
its silence: a sender on a plain socket would lose what it sends next.

At most once, as for a client: see ``client``.
"""

from __future__ import annotations

import contextlib
import errno
import select
import selectors
import socket
import ssl
import struct
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from receiver_runtime.receivers.connection_places import ConnectionPlaces, peer_of
from receiver_runtime.receivers.framing import Taken
from receiver_runtime.receivers.sockets.gathered_records import GatheredRecords
from receiver_runtime.receivers.sockets.listening_thread import ListeningThread
from receiver_runtime.receivers.tcp import READ_BYTES, check_peer, keep_alive, listening_socket
from receiver_runtime.sources.fields.tcp import address_of, most_per_peer
from receiver_runtime.sources.fields.tls_context import server_context
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    from receiver_runtime.receivers.framing import Framing, Splitter
    from receiver_runtime.sources.fields.tcp import Tls
    from receiver_runtime.supervisor.receiver import Receiver

# A turn reads about READ_BYTES in all, but from each connection up to at least this much.
_LEAST_READ_BYTES = 2**14
_ACCEPTS_PER_TURN = 64
_BACKLOG = 1024
# How long to accept no connection after the system had no descriptor or memory for one more, in seconds.
_EXHAUSTED_PAUSE = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# How long to look for no silent connection after none was found, in seconds: the look goes through all of them.
_NONE_SILENT_PAUSE = 0.5
_LITTLE_BYTES = 2**14  # a listener with a `pause` pauses after a turn that read less than this
#: Linger for 0 seconds, which closes with a reset: the sender sees at once that its data is not read.
_RESET = struct.pack("ii", 1, 0)


class ListeningSource(Protocol):
    """Declare the settings of listening, as every source that listens does."""

    @property
    def address(self) -> str: ...
    @property
    def listen_address(self) -> tuple[str, int]: ...
    @property
    def tls(self) -> Tls | None: ...
    @property
    def connect_timeout(self) -> float: ...
    @property
    def max_connections(self) -> int: ...
    @property
    def max_connections_per_peer(self) -> int | None: ...
    @property
    def idle_timeout(self) -> float: ...


class _EndedConnection(Enum):
    """Say how a connection ended."""

    BY_SENDER = "the sender ended it"
    BROKEN = "it broke"


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    peer: str
    #: The peer to which it counts.
    counted_as: str
    splitter: Splitter
    #: When it sent last, or was accepted, on the clock's monotonic time.
    heard_at: float
    has_sent: bool = False
    #: The deadline of its TLS handshake, on the clock's monotonic time; None without one, or after it.
    handshake_until: float | None = None
    #: TLS must write before it can go on reading, for example because the peer asked for a new key.
    must_write: bool = False


class SocketListener(ListeningThread):
    """Run one listening socket, from binding to its end.

    Args:
        pause: seconds to wait after a turn that read little, for framings where cutting few bytes costs nearly as much
            as cutting many.
    """

    def __init__(
        self,
        receiver: Receiver,
        source: ListeningSource,
        framing: Framing,
        *,
        clock: Clock | None = None,
        pause: float = 0.0,
    ) -> None:
        super().__init__(receiver, name=f"socket {source.address}", where=source.address)
        self._source = source
        self._framing = framing
        self._clock = clock or Clock()
        self._pause = pause
        # Only the thread uses everything below.
        self._selector = selectors.DefaultSelector()
        self._listener: socket.socket | None = None
        self._context: ssl.SSLContext | None = None
        self._accept_again_at: float | None = None
        # Those that sent last are at the end.
        self._connections: dict[_Connection, None] = {}
        self._places = ConnectionPlaces(
            most=source.max_connections,
            most_per_peer=most_per_peer(source.max_connections, source.max_connections_per_peer),
        )
        self._none_silent_until = 0.0
        # Connections with data that TLS has decrypted already, which the selector can't see.
        self._unread: set[_Connection] = set()
        self._buffer = bytearray(READ_BYTES)
        self._view = memoryview(self._buffer)
        self._gathered = GatheredRecords(receiver, framing)

    def _listen(self) -> socket.socket:
        if self._source.tls is not None:
            self._context = server_context(self._source.tls)
        listener = listening_socket(self._source.listen_address, backlog=_BACKLOG)
        listener.setblocking(False)  # noqa: FBT003  the standard library's own
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._listener = listener
        return listener

    # -- turns -------------------------------------------------------------------------------------------------------

    def _serve(self, listening: socket.socket) -> None:
        del listening
        # Not select(), which can't take descriptors above 1023.
        wake = select.poll()
        wake.register(self._wake_read, select.POLLIN)
        while not self._is_stopping():
            ready = set(self._unread)
            self._unread.clear()
            may_accept = False
            for key, _ in self._selector.select(0 if ready else self._until_next_deadline()):
                if isinstance(key.data, _Connection):
                    ready.add(key.data)
                elif key.fileobj is self._listener:
                    may_accept = True
            nbytes = self._read_all(ready)
            if may_accept:
                self._accept()
                # What connections that gave up their place had not finished.
                self._gathered.hand_on()
            self._keep_deadlines()
            if self._pause and ready and nbytes < _LITTLE_BYTES:
                wake.poll(self._pause * 1000)
        # Accept no more connections, read each one once more, and hand everything on.
        if self._listener is not None:
            self._listener.close()
        self._read_all({c for c in self._connections if c.handshake_until is None})
        for connection in self._connections:
            self._gathered.end(connection.splitter.finish(clean=False), connection.peer, connection.counted_as)
        self._gathered.hand_on()

    def _read_all(self, ready: set[_Connection]) -> int:
        """Read from each connection once. Return about how many bytes the last batch that was handed on had."""
        most = max(_LEAST_READ_BYTES, READ_BYTES // max(1, len(ready)))
        for connection in ready:
            if connection.handshake_until is not None:
                self._shake_hands(connection)
            else:
                self._read(connection, most)
            if self._gathered.nbytes >= READ_BYTES:
                self._gathered.hand_on()
        nbytes = self._gathered.nbytes
        self._gathered.hand_on()
        return nbytes

    def _read(self, connection: _Connection, most: int) -> None:
        if connection.must_write:
            connection.must_write = False
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)
        count, ended = self._receive(connection, most)
        if count:
            connection.heard_at = self._clock.monotonic()
            connection.has_sent = True
            # To the end.
            del self._connections[connection]
            self._connections[connection] = None
            taken = connection.splitter.take(self._buffer, count)
            self._gathered.add(taken, connection.peer, connection.counted_as)
            if taken.refusal is not None:
                self._gathered.end(Taken(), connection.peer, connection.counted_as)
                self._refuse(connection, "a connection was closed: what came is no length of a record", taken.refusal)
                return
        if ended is not None:
            self._gathered.end(
                connection.splitter.finish(clean=ended is _EndedConnection.BY_SENDER),
                connection.peer,
                connection.counted_as,
            )
            self._drop(connection)

    def _receive(self, connection: _Connection, most: int) -> tuple[int, _EndedConnection | None]:
        """Read up to ``most`` bytes into the buffer. Return how many, and how the connection ended, if it did."""
        count = 0
        try:
            while count < most:
                size = connection.socket.recv_into(self._view[count:most])
                if size == 0:
                    return count, _EndedConnection.BY_SENDER
                count += size
                if self._context is None:
                    return count, None
                # A read gives at most one TLS record, 16 KiB, so read again.
        except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
            return count, None
        except ssl.SSLWantWriteError:
            connection.must_write = True
            self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
            return count, None
        except OSError:
            return count, _EndedConnection.BROKEN
        if isinstance(connection.socket, ssl.SSLSocket) and connection.socket.pending():
            self._unread.add(connection)
        return count, None

    # -- connections -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                accepted, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._receiver.report_error(
                        "no connection can be taken for a second: the system has no room", error
                    )
                    self._selector.unregister(self._listener)
                    self._accept_again_at = self._clock.monotonic() + _EXHAUSTED_PAUSE
                    return
                # The connection was gone before it was accepted.
                continue
            peer = address_of(address[0], address[1])
            counted_as = peer_of(address[0])
            if self._places.why_full(counted_as) is not None:
                self._end_a_silent_one(counted_as)
            if (why := self._places.why_full(counted_as)) is not None:
                _reset(accepted)
                self._receiver.report_error(f"a connection was refused: {why}", ConnectionRefusedError(f"from {peer}"))
                continue
            try:
                self._admit(accepted, peer, counted_as)
            except OSError:
                # The connection broke meanwhile.
                accepted.close()

    def _end_a_silent_one(self, counted_as: str) -> None:
        """End the connection that has been silent for longest, and for long enough, so that its place is free.

        Where the peer's own places are full, it is one of the peer's.
        """
        now = self._clock.monotonic()
        if now < self._none_silent_until:
            return
        own_only = self._places.is_full_for(counted_as)
        for connection in self._connections:
            silent = now - connection.heard_at
            limit = self._source.idle_timeout if connection.has_sent else self._source.connect_timeout
            if silent < limit or (own_only and connection.counted_as != counted_as) or _has_data(connection.socket):
                continue
            self._gathered.end(connection.splitter.finish(clean=False), connection.peer, connection.counted_as)
            self._refuse(
                connection,
                "a connection was closed: it was silent, and a new one needed its place",
                f"nothing came for {silent:.0f} s",
            )
            return
        self._none_silent_until = now + _NONE_SILENT_PAUSE

    def _admit(self, accepted: socket.socket, peer: str, counted_as: str) -> None:
        accepted.setblocking(False)  # noqa: FBT003  the standard library's own
        keep_alive(accepted)
        now = self._clock.monotonic()
        connection = _Connection(accepted, peer, counted_as, self._framing.open(), now)
        if self._context is not None:
            check_peer(accepted)
            connection.socket = self._context.wrap_socket(
                accepted, server_side=True, do_handshake_on_connect=False, suppress_ragged_eofs=False
            )
            connection.handshake_until = now + self._source.connect_timeout
        self._connections[connection] = None
        self._places.take(counted_as)
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _shake_hands(self, connection: _Connection) -> None:
        assert isinstance(connection.socket, ssl.SSLSocket)
        events = selectors.EVENT_READ
        try:
            connection.socket.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLWantWriteError:
            events = selectors.EVENT_WRITE
        except OSError as error:
            self._refuse(connection, "a connection was closed: its TLS handshake failed", str(error))
            return
        else:
            connection.handshake_until = None
            # Data sent right after the handshake may be here already.
            self._unread.add(connection)
        self._selector.modify(connection.socket, events, connection)

    def _refuse(self, connection: _Connection, message: str, why: str) -> None:
        self._drop(connection, reset=True)
        self._receiver.report_error(message, ConnectionError(f"from {connection.peer}: {why}"))

    def _drop(self, connection: _Connection, *, reset: bool = False) -> None:
        self._selector.unregister(connection.socket)
        del self._connections[connection]
        self._places.release(connection.counted_as)
        self._unread.discard(connection)
        if reset:
            _reset(connection.socket)
        else:
            connection.socket.close()

    # -- deadlines ---------------------------------------------------------------------------------------------------

    def _until_next_deadline(self) -> float | None:
        deadlines: list[float] = []
        if self._context is not None:
            deadlines += [c.handshake_until for c in self._connections if c.handshake_until is not None]
        if self._accept_again_at is not None:
            deadlines.append(self._accept_again_at)
        now = self._clock.monotonic()
        if (waiting := self._gathered.until_overdue()) is not None:
            deadlines.append(now + waiting)
        return max(0.0, min(deadlines) - now) if deadlines else None

    def _keep_deadlines(self) -> None:
        self._gathered.hand_on_overdue()
        now = self._clock.monotonic()
        if self._context is not None:
            for connection in [c for c in self._connections if (c.handshake_until or now) < now]:
                self._refuse(connection, "a connection was closed: its TLS handshake took too long", "no end of it")
        if self._accept_again_at is not None and now >= self._accept_again_at and self._listener is not None:
            self._accept_again_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    # -- the end -----------------------------------------------------------------------------------------------------

    def _close(self) -> None:
        for connection in self._connections:
            connection.socket.close()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()


def _has_data(connection: socket.socket) -> bool:
    """Return whether something has come that was not read yet, or the end."""
    look = select.poll()
    look.register(connection, select.POLLIN)
    return bool(look.poll(0))


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()
