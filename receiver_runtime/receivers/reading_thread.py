"""One thread that reads for a receiver, from its start to its stop, and a pipe that wakes it.

Owns how the thread starts, is woken and ends, and that an error restarts the receiver. A subclass reads, and closes
what it opened. It must never outlive its ``stop``.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.reporting.driver_log import GivenUpError

if TYPE_CHECKING:
    from receiver_runtime.supervisor.receiver import Receiver


class ReadingThread(ABC):
    """See the module. Call ``start`` and ``stop`` once each.

    Args:
        name: the thread's name.
    """

    def __init__(self, receiver: Receiver, *, name: str) -> None:
        self._receiver = receiver
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
        """Wake the thread, and wait until it has handed on what it had read and closed what it had opened."""
        with self._lock:
            self._stopping = True
            if not self._done:
                os.write(self._wake_write, b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join()

    @abstractmethod
    def _read_until_stopped(self) -> None:
        """Open the source, read until ``_is_stopping``, and hand on what was read.

        Whatever it raises restarts the receiver.
        """

    @abstractmethod
    def _close(self) -> None:
        """Close what was opened. Called also after ``_read_until_stopped`` has raised."""

    def _is_stopping(self) -> bool:
        with self._lock:
            return self._stopping

    def _run(self) -> None:
        try:
            self._read_until_stopped()
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
