"""Decide when a batch driver should be replaced by a new one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from orchestration.run_launcher.loaded_code import LoadedCode

_MIB = 1024 * 1024
_RUNS_BEFORE_MEMORY = 10


def memory_mb() -> int:
    """Return the resident memory of this process and its children (the JVM, Python workers), in MiB."""
    total = 0
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return int(total // _MIB)


class Recycling:
    """Hold the limits at which a driver is replaced: number of runs, memory, changed code."""

    def __init__(self, code: LoadedCode, *, max_runs: int, max_memory_mb: int) -> None:
        """Replace the driver after `max_runs` runs, above `max_memory_mb`, or when `code` has changed."""
        self._code = code
        self._max_runs = max_runs
        self._max_memory_mb = max_memory_mb
        self.runs = 0

    def reason(self) -> str | None:
        """Return why this driver should be replaced; None while it should not."""
        if (file := self._code.changed()) is not None:
            return f"{file} is not as it was loaded"
        if self.runs >= self._max_runs:
            return f"{self.runs} runs (at most {self._max_runs})"
        # A driver that uses that much memory from the start would be replaced by one like it, again and again.
        if self.runs >= _RUNS_BEFORE_MEMORY and (held := memory_mb()) > self._max_memory_mb:
            return f"{held} MiB (at most {self._max_memory_mb})"
        return None
