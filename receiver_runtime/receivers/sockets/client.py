"""Reads records from a TCP server that it connects to.

One thread connects, reads and cuts; the supervisor does everything else. When a connection can't be made, breaks or
ends, the thread asks for a restart and exits; the supervisor decides when to restart. While the connection is quiet,
the thread sleeps and the process's reading loop reads for it.

At most once: a TCP sender sends nothing again. Data that the kernel holds when this process dies is lost, as in the
original; records that ``store_buffered`` took are drained at a graceful stop.
"""

from __future__ import annotations

import socket
import ssl
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.receivers.framing import Cut, JoiningFraming
from receiver_runtime.receivers.tcp import READ_BYTES, check_peer, keep_alive, shut_down
from receiver_runtime.reporting.driver_log import GivenUpError
from receiver_runtime.sources.fields.tls_context import client_context
from receiver_runtime.supervisor.reading_loop import ReadingLoopClosedError

if TYPE_CHECKING:
    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.framing import Framing, Taken
    from receiver_runtime.receivers.sockets.tcp_source import TcpSource
    from receiver_runtime.supervisor.receiver import Receiver

_QUIET_BYTES = 4096  # a connection is quiet while a read gives less than this

#: The reason of a restart at the stream's end, worded as in the original.
NO_MORE_DATA = "Socket data stream had no more data"


@dataclass(frozen=True, slots=True)
class _Read:
    """Hold the result of one read, cut into records, none of them handed on yet."""

    letters: list[DeadLetter]
    records: pa.RecordBatch | None
    refusal: str | None


class SocketClient:
    """Run one connection, from connecting to its end."""

    def __init__(self, receiver: Receiver, source: TcpSource, framing: Framing) -> None:
        self._receiver = receiver
        self._source = source
        self._framing = framing
        self._joining = framing if isinstance(framing, JoiningFraming) else None
        self._splitter = framing.open()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"socket {source.address}", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Wake the thread from its read, and wait until it has handed on what it had read.

        A thread that is still connecting has read nothing, reads nothing from now on, and exits on its own.
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
            # The supervisor ends without draining, and takes no more records.
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
        # Allocated at this thread's first own read: a connection that stays quiet needs none.
        buffer = bytearray()
        failure: OSError | None = None
        refusal: str | None = None
        # A record that is held for more lines needs a thread that wakes in time.
        is_alone = self._source.tls is not None or self._joining is not None
        loop = None if is_alone else self._receiver.supervisor.reading_loop
        is_quiet = loop is not None
        while refusal is None:
            try:
                if loop is not None and is_quiet:
                    read = loop.wait(connection, partial(self._read_quietly, connection, bytearray(_QUIET_BYTES)))
                    is_quiet = False
                else:
                    if not buffer:
                        buffer = bytearray(READ_BYTES)
                    count = self._read(connection, buffer)
                    if count == 0:
                        break
                    is_quiet = count < _QUIET_BYTES
                    read = self._cut(self._splitter.take(buffer, count))
            except ReadingLoopClosedError:
                # Either the loop failed, and this thread reads by itself; or the process is ending, and a stop follows.
                loop = None
                continue
            except OSError as error:
                failure = error
                break
            self._hand_on(read)
            refusal = read.refusal
            if self._is_stopping():
                break
        self._hand_on_last(is_broken=failure is not None)
        if refusal is not None:
            self._restart("The sender does not send records with their length", ValueError(refusal))
        elif failure is not None and not isinstance(failure, ssl.SSLEOFError):
            self._restart("Error receiving data", failure)
        else:
            self._restart(NO_MORE_DATA, None)

    def _hand_on_last(self, *, is_broken: bool) -> None:
        # A stop wakes the read as the end of the stream would. Only if the sender ended it is the last record whole.
        self._hand_on(self._cut(self._splitter.finish(clean=not is_broken and not self._is_stopping())))
        if self._joining is not None:
            self._hand_on(self._read_of(self._joining.end()))

    def _read(self, connection: socket.socket, buffer: bytearray) -> int:
        """Wait for bytes; hand on records meanwhile that have waited for more lines for as long as they may."""
        while self._joining is not None:
            waiting = self._joining.until_overdue()
            if waiting == 0:
                self._hand_on(self._read_of(self._joining.overdue()))
                continue
            connection.settimeout(waiting)
            try:
                return connection.recv_into(buffer)
            except TimeoutError:
                continue
        return connection.recv_into(buffer)

    def _read_quietly(self, connection: socket.socket, buffer: bytearray) -> _Read | None:
        """Read what has come and hand it on, or return it where handing on may take long. On the reading loop."""
        try:
            count = connection.recv_into(buffer, 0, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        if count == 0:
            # The end of the stream: the thread's own next read sees it again.
            return _Read([], None, None)
        read = self._cut(self._splitter.take(buffer, count))
        if count == len(buffer) or read.letters or read.refusal is not None:
            return read
        if read.records is None or self._receiver.supervisor.block_path.push_if_free(read.records):
            return None
        return read

    def _cut(self, taken: Taken) -> _Read:
        # What is put aside ends the record before it.
        before = Cut() if self._joining is None or not taken.before else self._joining.end()
        cut = Cut() if taken.piece is None else self._framing.cut([taken.piece])
        letters = [*taken.before, *cut.dead_letters, *taken.after]
        found = [self._batch_of(cut.records) for cut in (before, cut) if cut.records is not None]
        return _Read(letters, pa.concat_batches(found) if found else None, taken.refusal)

    def _read_of(self, cut: Cut) -> _Read:
        return _Read(cut.dead_letters, None if cut.records is None else self._batch_of(cut.records), None)

    def _batch_of(self, records: pa.Array | pa.RecordBatch) -> pa.RecordBatch:
        if isinstance(records, pa.RecordBatch):
            return records
        return pa.RecordBatch.from_arrays([records], schema=self._framing.schema)

    def _hand_on(self, read: _Read) -> None:
        # Dead letters first: they are durable on return; the records are not.
        if read.letters:
            self._receiver.store_dead_letters(read.letters)
        if read.records is not None and read.records.num_rows:
            self._receiver.store_buffered(read.records)

    def _restart(self, message: str, error: BaseException | None) -> None:
        if not self._is_stopping():
            self._receiver.restart(message, error)

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping
