"""Accept connections, authenticate their senders, read their messages, and write what they are answered.

Owns the connections of one listener, and the bytes of messages whose end has not come. Backpressure: a connection is
not read while its messages wait to be handed on. It must never store a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from forebay_contrib.fluent_forward.handshake import MOST_PING_BYTES, Handshake
from forebay_contrib.fluent_forward.held_bytes import HeldBytes
from forebay_contrib.fluent_forward.messages import MessageSplitter
from forebay_contrib.fluent_forward.records import Limits, Origin, may_be_compressed, parse
from forebay_contrib.fluent_forward.scanning import NotMessagePackError, TooLongError
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.connection_places import ConnectionPlaces, peer_of
from receiver_runtime.receivers.framing import aside
from receiver_runtime.receivers.tcp import keep_alive
from receiver_runtime.sources.fields.tcp import address_of, most_per_peer
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable, Mapping, Sequence
    from typing import SupportsIndex

    from forebay_contrib.fluent_forward.declaration import FluentForward
    from forebay_contrib.fluent_forward.gathered_messages import GatheredMessages
    from forebay_contrib.fluent_forward.messages import Message
    from forebay_contrib.fluent_forward.records import Parsed
    from receiver_runtime.supervisor.receiver import Receiver

_READ_BYTES = 2**17
_ACCEPTS_AT_ONCE = 64
# How long to accept no connection after the system had no descriptor or memory for one more, in seconds.
_EXHAUSTED_PAUSE = 1.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_PARSED_AT_ONCE_BYTES = 2**16  # a larger message is parsed beside the loop, which serves others meanwhile
_MOST_ROWS_BYTES = 2**30  # of one message: a column of text has room for 2 GiB
_MOST_UNREAD_BYTES = 2**20  # of acknowledgements that a sender has not read: further ones are left out
_CLOSE_SECONDS = 2.0  # how long the last answers may take to be written
_NANOSECONDS = 1000  # in a microsecond
#: Linger for 0 seconds, which closes with a reset: the sender sees at once that its data is not read.
_RESET = struct.pack("ii", 1, 0)


class _ClosedError(Exception):
    """Signal that a connection is to be closed, and why, for people."""


class _Reader(asyncio.StreamReader):
    """Read until told to stop: what comes after that is left out."""

    is_stopped = False

    def stop(self) -> None:
        """End the stream after what has come."""
        self.is_stopped = True
        self.feed_eof()

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """See ``StreamReader``."""
        if not self.is_stopped:
            super().feed_data(data)


@dataclass(slots=True, eq=False)
class _Connection:
    socket: socket.socket
    host: str
    #: The host and its port.
    peer: str
    #: The peer to which it counts.
    counted_as: str
    heard_at: float
    reader: _Reader
    has_sent: bool = False
    writer: asyncio.StreamWriter | None = None
    task: asyncio.Task[None] | None = None
    #: How many messages are to be acknowledged.
    unanswered: int = 0
    is_answered: asyncio.Event = field(default_factory=asyncio.Event)

    def acknowledge(self, ack: bytes) -> None:
        """Write an acknowledgement, if the sender is still there and has read earlier ones.

        Some senders name chunks and never read. One that reads later sends a chunk without an answer again.
        """
        self.unanswered -= 1
        if not self.unanswered:
            self.is_answered.set()
        if (
            self.writer is not None
            and not self.writer.is_closing()
            and self.writer.transport.get_write_buffer_size() < _MOST_UNREAD_BYTES
        ):
            self.writer.write(ack)

    def abort(self) -> None:
        """Close with a reset."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        if self.writer is not None:
            self.writer.transport.abort()
        elif self.task is not None:
            # In its TLS handshake, which closes it.
            self.task.cancel()
        else:
            self.socket.close()


def _origin_of(connection: _Connection) -> Origin:
    return Origin(connection.host, time.time_ns() // _NANOSECONDS)


class Connections:
    """See the module. All of it belongs to the listener's loop."""

    def __init__(
        self,
        receiver: Receiver,
        source: FluentForward,
        gathered: GatheredMessages,
        context: ssl.SSLContext | None,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._receiver = receiver
        self._source = source
        self._gathered = gathered
        self._context = context
        self._clock = clock or Clock()
        self._loop = asyncio.get_running_loop()
        most_rows = min(source.max_waiting_bytes, _MOST_ROWS_BYTES)
        self._limits = Limits(source.max_message_bytes, source.max_record_bytes, most_rows)
        self._parsing_alone = asyncio.Lock()
        self._parsing = ThreadPoolExecutor(1, thread_name_prefix="fluent forward parsing")
        self._open: set[_Connection] = set()
        self._places = ConnectionPlaces(
            most=source.max_connections,
            most_per_peer=most_per_peer(source.max_connections, source.max_connections_per_peer),
        )
        self._shared_keys: Sequence[bytes] = ()
        self._passwords: Mapping[bytes, bytes] = {}
        self._listening: socket.socket | None = None
        self._pause: asyncio.TimerHandle | None = None
        self._is_stopping = False
        #: What was read and is not parsed.
        self._held = HeldBytes(source.max_waiting_bytes)
        # Set when a connection holds fewer bytes.
        self._holds_less = asyncio.Event()

    # -- accepting ---------------------------------------------------------------------------------------------------

    def accept_from(
        self, listening: socket.socket, shared_keys: Sequence[bytes], passwords: Mapping[bytes, bytes]
    ) -> None:
        """Begin to accept."""
        self._listening, self._shared_keys, self._passwords = listening, shared_keys, passwords
        self._loop.add_reader(listening, self._accept, listening)

    def accept_no_more(self) -> None:
        """Accept no more connections; those that are open stay open."""
        if self._pause is not None:
            self._pause.cancel()
        if self._listening is not None:
            self._loop.remove_reader(self._listening)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    # The connection was gone before it was accepted.
                    continue
                self._receiver.report_error("no connection can be taken for a second: the system has no room", error)
                self._loop.remove_reader(listening)
                self._pause = self._loop.call_later(
                    _EXHAUSTED_PAUSE, self._loop.add_reader, listening, self._accept, listening
                )
                return
            self._admit(accepted, address[0], address[1])

    def _admit(self, accepted: socket.socket, host: str, port: int) -> None:
        peer, counted_as = address_of(host, port), peer_of(host)
        reader = _Reader(limit=_READ_BYTES // 2, loop=self._loop)
        connection = _Connection(accepted, host, peer, counted_as, self._clock.monotonic(), reader)
        if self._places.why_full(counted_as) is not None:
            self._end_a_silent_one(counted_as)
        if (why := self._places.why_full(counted_as)) is not None:
            connection.abort()
            self._receiver.report_error(f"a connection was refused: {why}", ConnectionRefusedError(f"from {peer}"))
            return
        self._places.take(counted_as)
        self._open.add(connection)
        connection.task = self._loop.create_task(self._run(connection))

    def _end_a_silent_one(self, counted_as: str) -> None:
        """End the connection that has been silent for longest, and for long enough, so that its place is free.

        Where the peer's own places are full, it is one of the peer's.
        """
        now = self._clock.monotonic()
        own_only = self._places.is_full_for(counted_as)
        for connection in sorted(self._open, key=lambda one: one.heard_at):
            limit = self._source.idle_timeout if connection.has_sent else self._source.connect_timeout
            if now - connection.heard_at < limit or connection.unanswered:
                continue
            if own_only and connection.counted_as != counted_as:
                continue
            self._forget(connection)
            connection.abort()
            self._report(
                connection,
                "a connection was closed: it was silent, and a new one needed its place",
                f"nothing came for {now - connection.heard_at:.0f} s",
            )
            return

    # -- one connection ----------------------------------------------------------------------------------------------

    async def _run(self, connection: _Connection) -> None:
        try:
            await self._open_stream(connection)
            splitter = MessageSplitter(MOST_PING_BYTES if self._shared_keys else self._source.max_message_bytes)
            if not self._shared_keys or await self._authenticate(connection, splitter):
                splitter.allow(self._source.max_message_bytes)
                await self._receive(connection, splitter)
        except Exception as error:  # noqa: BLE001  the senders of other connections go on
            connection.abort()
            why = self._why_closed(connection, error)
            if why is not None:
                self._report(connection, *why)
        finally:
            if not self._is_stopping:
                self._forget(connection)
                if connection.writer is not None:
                    connection.writer.close()

    def _why_closed(self, connection: _Connection, error: Exception) -> tuple[str, str] | None:
        """Return what to report of a connection that was closed for an error; None: nothing."""
        match error:
            case _ClosedError():
                return str(error.args[0]), str(error.args[1])
            case NotMessagePackError():
                return "a connection was closed: what came is no message", str(error)
            case TooLongError():
                why = f"{error}: raise max_message_bytes, or have the sender make smaller chunks"
                return "a connection was closed: a message is too long", why
            case OSError():
                has_begun = connection.writer is not None or self._is_stopping
                return None if has_begun else ("a connection was closed: its TLS handshake failed", str(error))
        # Where nothing can be handed on, the receiver says so.
        return None if self._gathered.has_failed else ("a connection was closed: it could not be read", repr(error))

    async def _open_stream(self, connection: _Connection) -> None:
        connection.socket.setblocking(False)  # noqa: FBT003  the standard library's own
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(connection.socket)
        protocol = asyncio.StreamReaderProtocol(connection.reader, loop=self._loop)
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol,
            connection.socket,
            ssl=self._context,
            ssl_handshake_timeout=None if self._context is None else self._source.connect_timeout,
        )
        connection.writer = asyncio.StreamWriter(transport, protocol, connection.reader, self._loop)

    async def _authenticate(self, connection: _Connection, splitter: MessageSplitter) -> bool:
        """Return whether the sender has authenticated itself, or has left before."""
        assert connection.writer is not None
        handshake = Handshake(self._shared_keys, self._passwords, self._source.hostname)
        connection.writer.write(handshake.helo())
        try:
            async with asyncio.timeout(self._source.connect_timeout):
                while (ping := splitter.next_message()) is None:
                    data = await self._read(connection)
                    if not data:
                        return False
                    splitter.take(data)
        except TimeoutError:
            raise _ClosedError("a connection was closed: its sender did not authenticate itself in time", "") from None
        answer = handshake.answer(ping.data)
        connection.writer.write(answer.pong)
        if answer.refusal is not None:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await connection.writer.drain()
            self._report(connection, "a sender was refused", answer.refusal)
        return answer.refusal is None

    async def _receive(self, connection: _Connection, splitter: MessageSplitter) -> None:
        while True:
            await self._take_messages(connection, splitter)
            await self._wait_for_room(connection)
            try:
                async with asyncio.timeout(self._source.idle_timeout if splitter.held_bytes else None):
                    data = await self._read(connection)
            except TimeoutError:
                why = f"{splitter.held_bytes} bytes of it came, and nothing for {self._source.idle_timeout:.0f} s"
                raise _ClosedError("a connection was closed: a message had no end", why) from None
            if not data:
                break
            splitter.take(data)
        if splitter.held_bytes and not self._is_stopping:
            self._report(
                connection,
                "a connection ended within a message, which a sender that asks for acknowledgements sends again",
                f"{splitter.held_bytes} bytes of it came",
            )
        # The sender may have ended its side only.
        while connection.unanswered and not self._is_stopping:
            connection.is_answered.clear()
            await connection.is_answered.wait()

    async def _read(self, connection: _Connection) -> bytes:
        data = await connection.reader.read(_READ_BYTES)
        if data:
            connection.heard_at = self._clock.monotonic()
            connection.has_sent = True
        return data

    async def _take_messages(self, connection: _Connection, splitter: MessageSplitter) -> None:
        self._note_held(connection, splitter.held_bytes)
        while (message := await self._next_message(connection, splitter)) is not None:
            if len(message.data) > _PARSED_AT_ONCE_BYTES or may_be_compressed(message):
                # One at a time, until it is added: so only its rows wait beside those that have room.
                async with self._parsing_alone:
                    await self._gathered.wait_for_room()
                    origin = _origin_of(connection)
                    parsed = await self._loop.run_in_executor(self._parsing, parse, message, origin, self._limits)
                    self._add(connection, parsed)
            else:
                await self._gathered.wait_for_room()
                self._add(connection, parse(message, _origin_of(connection), self._limits))
        self._note_held(connection, splitter.held_bytes)

    def _add(self, connection: _Connection, parsed: Parsed) -> None:
        if parsed.fault is not None:
            self._report(connection, "a message could not be parsed: it is a dead letter", repr(parsed.fault))
        connection.unanswered += parsed.ack is not None
        self._gathered.add(parsed, connection.counted_as, partial(connection.acknowledge, parsed.ack or b""))

    async def _next_message(self, connection: _Connection, splitter: MessageSplitter) -> Message | None:
        try:
            return splitter.next_message()
        except NotMessagePackError:
            letter = aside(DeadLetterReason.UNPARSABLE, splitter.held(), peer=connection.counted_as)
            await self._gathered.add_letter(letter)
            raise

    def _note_held(self, connection: _Connection, nbytes: int) -> None:
        if self._held.note(connection.counted_as, connection, nbytes):
            self._holds_less.set()

    async def _wait_for_room(self, connection: _Connection) -> None:
        """Wait until the connections hold few enough bytes that this one may be read."""
        if self._held.has_room_for(connection.counted_as, connection):
            return
        # While nothing can be handed on, messages that are whole wait too, and their senders are not at fault.
        await self._gathered.wait_for_room()
        try:
            async with asyncio.timeout(self._source.connect_timeout):
                while not self._held.has_room_for(connection.counted_as, connection):
                    self._holds_less.clear()
                    await self._holds_less.wait()
        except TimeoutError:
            why = (
                f"{self._held.total} bytes of messages wait for their ends; max_waiting_bytes is "
                f"{self._source.max_waiting_bytes}, and half of it for one peer"
            )
            raise _ClosedError("a connection was closed: there was no room for its message", why) from None

    def _forget(self, connection: _Connection) -> None:
        if connection in self._open:
            self._open.discard(connection)
            self._places.release(connection.counted_as)
        # Its task may have noted something since it was forgotten.
        self._note_held(connection, 0)

    def _report(self, connection: _Connection, message: str, why: str) -> None:
        self._receiver.report_error(message, ConnectionError(f"from {connection.peer}: {why}"))

    # -- the end -----------------------------------------------------------------------------------------------------

    async def stop_reading(self) -> None:
        """Read no more; return when each whole message that was read is handed on."""
        self._is_stopping = True
        for connection in self._open:
            if connection.writer is None:
                connection.abort()
            connection.reader.stop()
            connection.is_answered.set()
        tasks = [connection.task for connection in self._open if connection.task is not None]
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Close the connections, when what was answered is written."""
        self._parsing.shutdown(wait=False)
        writers = [connection.writer for connection in self._open if connection.writer is not None]
        for writer in writers:
            writer.close()
        if writers:
            waiting = [asyncio.ensure_future(writer.wait_closed()) for writer in writers]
            await asyncio.wait(waiting, timeout=_CLOSE_SECONDS)
            for writer in writers:
                writer.transport.abort()
            await asyncio.gather(*waiting, return_exceptions=True)
        self._open.clear()
