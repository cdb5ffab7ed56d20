"""One listening socket, and the thread that reads from it, from binding to its end; and several run as one.

Owns what it reports of binding to its receiver. A subclass binds and reads.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from receiver_runtime.receivers.reading_thread import ReadingThread
from receiver_runtime.sources.fields.tcp import address_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from receiver_runtime.supervisor.receiver import Receiver


class ListeningThread(ReadingThread):
    """See the module. Call ``start`` and ``stop`` once each; after ``stop`` the port is free.

    Args:
        name: the thread's name.
        where: the address that it listens on, for messages.
    """

    def __init__(self, receiver: Receiver, *, name: str, where: str) -> None:
        super().__init__(receiver, name=name)
        self._where = where

    @abstractmethod
    def _listen(self) -> socket.socket:
        """Bind the socket and return it. Raises OSError, which restarts the receiver."""

    @abstractmethod
    def _serve(self, listening: socket.socket) -> None:
        """Read until ``_is_stopping``, then hand on what was read. Whatever it raises restarts the receiver."""

    def _read_until_stopped(self) -> None:
        try:
            listening = self._listen()
        except OSError as error:
            self._restart(f"Error listening on {self._where}", error)
            return
        host, port = listening.getsockname()[:2]
        self._receiver.report_listening(address_of(host, port))
        self._serve(listening)


class ListeningThreads:
    """Run the listening threads of one receiver as one: a receiver that listens by several transports."""

    def __init__(self, threads: Sequence[ListeningThread]) -> None:
        self._threads = threads

    def start(self) -> None:
        """Start each."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when each has handed on what it read."""
        for thread in self._threads:
            thread.stop()
