"""Read from all the quiet connections of a process on one thread.

For a connection that carries a few bytes now and then, waking its own thread costs more than handling the bytes. So its
thread waits here while the loop reads for it. Work that takes long, or is much, is given back to that thread.

Owns no connection and closes none: the waiting thread keeps its connection open until ``wait`` returns.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)

T = TypeVar("T")

# From this many connections on, the loop polls at these intervals, in seconds, and wakes once for several.
_GATHERING_FROM = 10
_GATHERING_SECONDS = 0.02


class ReadingLoopClosedError(RuntimeError):
    """Read from the connection where you are: the reading loop has ended."""


class _WatchedConnection(Generic[T]):
    """Hold a connection, and the thread that waits until it is needed."""

    __slots__ = ("_needed", "connection", "error", "read", "result")

    def __init__(self, connection: socket.socket, read: Callable[[], T | None]) -> None:
        self.connection = connection
        self.read = read
        self.result: T | None = None
        self.error: BaseException | None = None
        self._needed = threading.Lock()
        self._needed.acquire()

    def read_once(self) -> bool:
        """Read; return whether the connection's own thread is needed."""
        try:
            self.result = self.read()
        except BaseException as error:  # noqa: BLE001  raised again where it belongs
            self.error = error
        return self.result is not None or self.error is not None

    def give_back(self) -> None:
        self._needed.release()

    def wait(self) -> T:
        self._needed.acquire()
        if self.error is not None:
            raise self.error
        assert self.result is not None
        return self.result


class ReadingLoop:
    """Run the reading loop; see the module. ``start`` once, ``close`` once; any thread."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._read_end, self._write_end = socket.socketpair()
        # A wake-up that finds no room is not needed: the loop has not read the earlier ones yet.
        self._read_end.settimeout(0)
        self._write_end.settimeout(0)
        self._lock = threading.Lock()
        self._new: list[_WatchedConnection[Any]] = []
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="quiet connections", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._selector.register(self._read_end, selectors.EVENT_READ)
        self._thread.start()

    def close(self) -> None:
        """End the thread; threads that still wait get ReadingLoopClosedError."""
        with self._lock:
            self._closed = True
            self._wake()
        self._thread.join()
        self._read_end.close()
        self._write_end.close()
        self._selector.close()

    def wait(self, connection: socket.socket, read: Callable[[], T | None]) -> T:
        """Have ``read`` called on the loop's thread whenever there is something to read, until it returns a result.

        Args:
            read: must not wait; returns None if it has handled all that there was.

        Raises: what ``read`` raises.
        """
        watched = _WatchedConnection(connection, read)
        with self._lock:
            if self._closed:
                raise ReadingLoopClosedError(ReadingLoopClosedError.__doc__)
            self._new.append(watched)
            # Still with the lock: after a close there is no loop to wake, and the socket is closed.
            self._wake()
        return watched.wait()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._write_end.send(b"w")

    def _run(self) -> None:
        failed: BaseException | None = None
        try:
            while not self._closed:
                self._poll()
        except BaseException as error:  # noqa: BLE001  logged, and given to the waiting threads
            failed = error
        # The waiting threads go on by themselves, as if there were no loop.
        with self._lock:
            self._closed = True
        self._end()
        if failed is not None:
            _log.error("the reading loop failed", exc_info=failed)

    def _poll(self) -> None:
        events = self._selector.select()
        began = time.monotonic()
        for key, _ in events:
            if key.data is None:
                self._register_new()
            elif key.data.read_once():
                self._selector.unregister(key.fileobj)
                key.data.give_back()
        if len(self._selector.get_map()) > _GATHERING_FROM:
            time.sleep(max(0.0, _GATHERING_SECONDS - (time.monotonic() - began)))

    def _register_new(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._read_end.recv(4096)
        with self._lock:
            new, self._new = self._new, []
        for watched in new:
            try:
                self._selector.register(watched.connection, selectors.EVENT_READ, watched)
            except (OSError, ValueError, KeyError) as error:
                watched.error = error
                watched.give_back()

    def _end(self) -> None:
        waiting = [key.data for key in self._selector.get_map().values() if key.data is not None]
        with self._lock:
            waiting += self._new
            self._new = []
        for watched in waiting:
            if watched.result is None:
                watched.error = ReadingLoopClosedError(ReadingLoopClosedError.__doc__)
            watched.give_back()
