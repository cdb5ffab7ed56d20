"""Notice signals that other code handles: during a run, Dagster ends the run on a signal and does not report it."""

from __future__ import annotations

import os
import signal
from typing import Self


class SeenSignals:
    """Note every signal that Python handles, while entered. For the main thread; at most one per process."""

    def __enter__(self) -> Self:
        """Start noting signals."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop noting signals."""
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)

    def came(self) -> bool:
        """Return whether a signal has arrived since the last call."""
        try:
            return bool(os.read(self._read, 4096))
        except BlockingIOError:
            return False
