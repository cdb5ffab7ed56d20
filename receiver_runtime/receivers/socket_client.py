"""Reads records from a TCP server that it connects to.

One thread connects, reads and cuts; everything else is the supervisor's. A connection that can't be made, breaks or
ends asks for a restart and the thread is done: what to wait for, and how long, is the supervisor's to decide.

At most once: a TCP sender sends nothing again. What the kernel holds when this process dies is lost, as in the
original; what ``store_buffered`` took is drained at a graceful stop.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.driver_log import GivenUpError
from receiver_runtime.receivers.tcp import READ_BYTES, client_context, keep_alive, shut_down

if TYPE_CHECKING:
    from receiver_runtime.receiver import Receiver
    from receiver_runtime.receivers.framing import Framing, Taken
    from receiver_runtime.sources.tcp import TcpSource

#: The original's words, also for the reason of a restart.
NO_MORE_DATA = "Socket data stream had no more data"


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
        except Exception as error:  # noqa: BLE001  a thread that dies silently would receive nothing for ever
            self._restart("Error receiving data", error)

    def _connect(self) -> socket.socket:
        source = self._source
        context = None if source.tls is None else client_context(source.tls)
        connection = socket.create_connection((source.host or "", source.port or 0), timeout=source.connect_timeout)
        try:
            keep_alive(connection)
            if context is not None:
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
        buffer = bytearray(READ_BYTES)
        view = memoryview(buffer)
        failure: OSError | None = None
        refusal: str | None = None
        while refusal is None:
            try:
                count = connection.recv_into(view)
            except OSError as error:
                failure = error
                break
            if count == 0:
                break
            taken = self._splitter.take(buffer, count)
            self._hand_on(taken)
            refusal = taken.refusal
            if self._is_stopping():
                break
        # A stop wakes the read as the end of the stream would; only the sender's own end makes a whole last record.
        self._hand_on(self._splitter.finish(clean=failure is None and not self._is_stopping()))
        if refusal is not None:
            self._restart("The sender does not send records with their length", ValueError(refusal))
        elif failure is not None and not isinstance(failure, ssl.SSLEOFError):
            self._restart("Error receiving data", failure)
        else:
            self._restart(NO_MORE_DATA, None)

    def _hand_on(self, taken: Taken) -> None:
        letters = taken.before
        records = None
        if taken.piece is not None:
            cut = self._framing.cut([taken.piece])
            letters += cut.dead_letters
            records = cut.records
        letters += taken.after
        # Dead letters first: they are durable on return, and the records of this cut are not.
        if letters:
            self._receiver.store_dead_letters(letters)
        if records is not None:
            self._receiver.store_buffered(pa.RecordBatch.from_arrays([records], schema=self._framing.schema))

    def _restart(self, message: str, error: Exception | None) -> None:
        if not self._is_stopping():
            self._receiver.restart(message, error)

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping
