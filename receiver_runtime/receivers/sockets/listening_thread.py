"""One listening socket, and the thread that reads from it, from binding to its end.

Owns how the thread starts, is woken and exits, and what it reports of that to its receiver. A subclass reads.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from receiver_runtime.block_generator import GeneratorStateError
from receiver_runtime.driver_log import GivenUpError
from receiver_runtime.sources.tcp import address_of

if TYPE_CHECKING:
    import socket

    from receiver_runtime.receiver import Receiver


class ListeningThread(ABC):
    """See the module. Call ``start`` and ``stop`` once each.

    Args:
        name: the thread's name.
        where: the address that it listens on, for messages.
    """

    def __init__(self, receiver: Receiver, *, name: str, where: str) -> None:
        self._receiver = receiver
        self._where = where
        #: Readable from ``stop`` on.
        self._wake_read, self._wake_write = os.pipe()
        self._lock = threading.Lock()
        self._stopping = False
        self._done = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Wake the thread, and wait until it has handed on what it had read and the port is free."""
        with self._lock:
            self._stopping = True
            if not self._done:
                os.write(self._wake_write, b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join()

    @abstractmethod
    def _listen(self) -> socket.socket:
        """Bind the socket and return it. Raises OSError, which restarts the receiver."""

    @abstractmethod
    def _serve(self, listening: socket.socket) -> None:
        """Read until ``_is_stopping``, then hand on what was read. Whatever it raises restarts the receiver."""

    @abstractmethod
    def _close(self) -> None:
        """Close what was opened. Called also after ``_listen`` or ``_serve`` has raised."""

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping

    def _run(self) -> None:
        try:
            try:
                listening = self._listen()
            except OSError as error:
                self._restart(f"Error listening on {self._where}", error)
                return
            host, port = listening.getsockname()[:2]
            self._receiver.report_listening(address_of(host, port))
            self._serve(listening)
        except (GeneratorStateError, GivenUpError):
            # The supervisor ends without draining, and takes no more records.
            return
        except BaseException as error:  # noqa: BLE001  a thread that dies silently would receive nothing for ever
            self._restart("Error receiving data", error)
        finally:
            with self._lock:
                self._done = True
            self._close()
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _restart(self, message: str, error: BaseException) -> None:
        if not self._is_stopping():
            self._receiver.restart(message, error)
