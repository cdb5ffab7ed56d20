"""Whether a signal has come, whoever handled it: within a run Dagster takes it for the run's end, and says no more."""

from __future__ import annotations

import os
import signal
from typing import Self


class SeenSignals:
    """While entered, notes every signal that Python handles. For the main thread, once a process."""

    def __enter__(self) -> Self:
        """From here on."""
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        """No more."""
        signal.set_wakeup_fd(self._before)
        os.close(self._read)
        os.close(self._write)

    def came(self) -> bool:
        """Whether one has come since the last look."""
        try:
            return bool(os.read(self._read, 4096))
        except BlockingIOError:
            return False
