"""Receives lines of text from a TCP server (X01).

One thread connects, reads and cuts; everything else is the supervisor's. A connection that can't be made, breaks or
ends asks for a restart and the thread is done: what to wait for, and how long, is the supervisor's to decide.

A TCP sender sends nothing again. What the kernel holds when this process dies is lost, as in the original; what
``store_buffered`` took is drained at a graceful stop.
"""

from __future__ import annotations

import socket
import threading
from typing import ClassVar

import pyarrow as pa

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.driver_log import GivenUpError
from receiver_runtime.receiver import Receiver
from receiver_runtime.receivers.lines import Cut, LineCutter
from receiver_runtime.sources.socket_text import SocketText

#: The original's words, also for the reason of a restart.
NO_MORE_DATA = "Socket data stream had no more data"


class SocketTextReceiver(Receiver):
    """Lines of a ``SocketText`` source."""

    columns: ClassVar[tuple[tuple[str, str], ...]] = SocketText.columns

    def __init__(self, source: SocketText) -> None:
        super().__init__()
        self._source = source
        self._schema = pa.schema([("value", pa.string())])
        self._lock = threading.Lock()
        self._run: _Run | None = None

    def on_start(self) -> None:
        """Start the reading thread."""
        run = _Run(self, self._source, self._schema)
        with self._lock:
            self._run = run
        run.thread.start()

    def on_stop(self) -> None:
        """Stop reading; returns when every whole line that was read is handed on. Safe twice."""
        with self._lock:
            run, self._run = self._run, None
        if run is not None:
            run.stop()


class _Run:
    """One connection's life, from connecting to the end."""

    def __init__(self, receiver: SocketTextReceiver, source: SocketText, schema: pa.Schema) -> None:
        self._receiver = receiver
        self._source = source
        self._schema = schema
        self._cutter = LineCutter(
            delimiter=source.delimiter, encoding=source.encoding, max_record_bytes=source.max_record_bytes
        )
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._stopping = False
        self.thread = threading.Thread(target=self._read, name=f"socket {source.address}", daemon=True)

    def stop(self) -> None:
        """Wake the thread from its read, and wait until it has handed on what it had.

        One that still connects has read nothing and, from here on, reads nothing: it ends by itself.
        """
        with self._lock:
            self._stopping = True
            connection = self._socket
        if connection is not None:
            _shut_down(connection)
            if self.thread is not threading.current_thread():
                self.thread.join()

    def _read(self) -> None:
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
        connection = socket.create_connection(
            (self._source.host, self._source.port), timeout=self._source.connect_timeout
        )
        connection.settimeout(None)
        # A peer that vanished without a word is noticed in about two minutes, not never.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        return connection

    def _adopt(self, connection: socket.socket) -> bool:
        with self._lock:
            if self._stopping:
                return False
            self._socket = connection
            return True

    def _receive(self, connection: socket.socket) -> None:
        failure: OSError | None = None
        while True:
            try:
                count = connection.recv_into(self._cutter.writable())
            except OSError as error:
                failure = error
                break
            if count == 0:
                break
            self._hand_on(self._cutter.written(count))
            if self._is_stopping():
                break
        stopping = self._is_stopping()
        # A stop wakes the read as the end of the stream would; only the sender's own end makes a whole last line.
        self._hand_on(self._cutter.finish(clean=failure is None and not stopping))
        if failure is not None:
            self._restart("Error receiving data", failure)
        else:
            self._restart(NO_MORE_DATA, None)

    def _hand_on(self, cut: Cut) -> None:
        # Dead letters first: they are durable on return, and the lines of this cut are not.
        if cut.dead_letters:
            self._receiver.store_dead_letters(cut.dead_letters)
        if cut.lines is not None:
            self._receiver.store_buffered(pa.RecordBatch.from_arrays([cut.lines], schema=self._schema))

    def _restart(self, message: str, error: OSError | Exception | None) -> None:
        if not self._is_stopping():
            self._receiver.restart(message, error)

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping


def _shut_down(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        # The other side was faster.
        return
