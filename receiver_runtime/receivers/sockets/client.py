"""Reads records from a TCP server that it connects to.

One thread connects, reads and cuts; everything else is the supervisor's. A connection that can't be made, breaks or
ends asks for a restart and the thread is done: what to wait for, and how long, is the supervisor's to decide. While
little comes on the connection, the process's reading loop reads for the thread, which then sleeps.

At most once: a TCP sender sends nothing again. What the kernel holds when this process dies is lost, as in the
original; what ``store_buffered`` took is drained at a graceful stop.
"""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.driver_log import GivenUpError
from receiver_runtime.reading_loop import ReadingLoopClosedError
from receiver_runtime.receivers.tcp import READ_BYTES, check_peer, client_context, keep_alive, shut_down

if TYPE_CHECKING:
    from receiver_runtime.block_handler import DeadLetter
    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.framing import Framing, Taken
    from receiver_runtime.sources.tcp import TcpSource

# A connection is quiet while a read gives less than this.
_QUIET_BYTES = 4096

#: The original's words, also for the reason of a restart.
NO_MORE_DATA = "Socket data stream had no more data"


@dataclass(frozen=True, slots=True)
class _Read:
    """What a read gave, cut; nothing of it is handed on."""

    letters: list[DeadLetter]
    records: pa.RecordBatch | None
    refusal: str | None


class SocketClient:
    """One connection's life, from connecting to the end."""

    def __init__(self, receiver: Receiver, source: TcpSource, framing: Framing) -> None:
        self._receiver = receiver
        self._source = source
        self._framing = framing
        self._splitter = framing.open()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"socket {source.address}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Wake the thread from its read, and wait until it has handed on what it had.

        One that still connects has read nothing and, from here on, reads nothing: it ends by itself.
        """
        with self._lock:
            self._stopping = True
            connection = self._socket
        if connection is not None:
            shut_down(connection)
            if self._thread is not threading.current_thread():
                self._thread.join()

    def _run(self) -> None:
        try:
            try:
                connection = self._connect()
            except OSError as error:
                self._restart(f"Error connecting to {self._source.address}", error)
                return
            with connection:
                if self._adopt(connection):
                    self._receiver.report_connected(self._source.address)
                    self._receive(connection)
        except (GeneratorStateError, GivenUpError):
            # The supervisor ends without draining: nobody takes records any more.
            return
        except BaseException as error:  # noqa: BLE001  a thread that dies silently would receive nothing for ever
            self._restart("Error receiving data", error)

    def _connect(self) -> socket.socket:
        source = self._source
        context = None if source.tls is None else client_context(source.tls)
        connection = socket.create_connection((source.host or "", source.port or 0), timeout=source.connect_timeout)
        try:
            keep_alive(connection)
            if context is not None:
                check_peer(connection)
                name = source.host if source.tls is None else source.tls.server_hostname or source.host
                connection = context.wrap_socket(connection, server_hostname=name, suppress_ragged_eofs=False)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection

    def _adopt(self, connection: socket.socket) -> bool:
        with self._lock:
            if self._stopping:
                return False
            self._socket = connection
            return True

    def _receive(self, connection: socket.socket) -> None:
        # Made with the first read that is not the loop's: a connection that stays quiet needs none.
        buffer = bytearray()
        failure: OSError | None = None
        refusal: str | None = None
        loop = None if self._source.tls is not None else self._receiver.supervisor.reading_loop
        is_quiet = loop is not None
        while refusal is None:
            try:
                if loop is not None and is_quiet:
                    read = loop.wait(connection, partial(self._read_quietly, connection, bytearray(_QUIET_BYTES)))
                    is_quiet = False
                else:
                    if not buffer:
                        buffer = bytearray(READ_BYTES)
                    count = connection.recv_into(buffer)
                    if count == 0:
                        break
                    is_quiet = count < _QUIET_BYTES
                    read = self._cut(self._splitter.take(buffer, count))
            except ReadingLoopClosedError:
                # It failed, and this thread reads for itself; or the process ends, and a stop comes.
                loop = None
                continue
            except OSError as error:
                failure = error
                break
            self._hand_on(read)
            refusal = read.refusal
            if self._is_stopping():
                break
        # A stop wakes the read as the end of the stream would; only the sender's own end makes a whole last record.
        self._hand_on(self._cut(self._splitter.finish(clean=failure is None and not self._is_stopping())))
        if refusal is not None:
            self._restart("The sender does not send records with their length", ValueError(refusal))
        elif failure is not None and not isinstance(failure, ssl.SSLEOFError):
            self._restart("Error receiving data", failure)
        else:
            self._restart(NO_MORE_DATA, None)

    def _read_quietly(self, connection: socket.socket, buffer: bytearray) -> _Read | None:
        """On the reading loop: read what there is and hand it on, unless that may take long; then return it."""
        try:
            count = connection.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if count == 0:
            # The end, which the next read gives again.
            return _Read([], None, None)
        read = self._cut(self._splitter.take(buffer, count))
        if count == len(buffer) or read.letters or read.refusal is not None:
            return read
        if read.records is None or self._receiver.supervisor.block_path.push_if_free(read.records):
            return None
        return read

    def _cut(self, taken: Taken) -> _Read:
        letters = taken.before
        records = None
        if taken.piece is not None:
            cut = self._framing.cut([taken.piece])
            letters += cut.dead_letters
            if cut.records is not None:
                records = pa.RecordBatch.from_arrays([cut.records], schema=self._framing.schema)
        letters += taken.after
        return _Read(letters, records, taken.refusal)

    def _hand_on(self, read: _Read) -> None:
        # Dead letters first: they are durable on return, and the records of this cut are not.
        if read.letters:
            self._receiver.store_dead_letters(read.letters)
        if read.records is not None:
            self._receiver.store_buffered(read.records)

    def _restart(self, message: str, error: BaseException | None) -> None:
        if not self._is_stopping():
            self._receiver.restart(message, error)

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping
