"""The CPU time of a Postgres server's sessions, from /proc: of those that are open, and of those that have ended.

Owns how it is read; Linux only. Background processes (checkpointer, writers) don't count, because their work can't be
told apart by what caused it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

_TICKS = os.sysconf("SC_CLK_TCK")
# In /proc/PID/stat, after the name in brackets: user and system time, then those of children that have ended.
_OWN = slice(11, 13)
_CHILDREN = slice(13, 15)
_PROC = Path("/proc")


def _times(pid: int, fields: slice) -> float:
    text = (_PROC / str(pid) / "stat").read_text()
    return sum(int(ticks) for ticks in text.rpartition(")")[2].split()[fields]) / _TICKS


def own_seconds(pid: int) -> float:
    """Return a process's CPU seconds: in nanoseconds where the kernel counts them, else in ticks of 10 ms."""
    try:
        # A session of Postgres has one thread.
        return int((_PROC / str(pid) / "schedstat").read_text().split()[0]) / 1e9
    except FileNotFoundError:
        return _times(pid, _OWN)


class ServerCpu:
    """The sessions of one server; sessions that start later count too."""

    def __init__(self, postmaster: int, background: AbstractSet[int]) -> None:
        """Read the server whose first process is `postmaster`, without the processes `background`."""
        self._postmaster = postmaster
        self._background = background

    def seconds(self, *, without: AbstractSet[int] = frozenset()) -> float:
        """Return the CPU seconds of all sessions up to now, except those of the processes `without`."""
        total = _times(self._postmaster, _CHILDREN)
        for child in psutil.Process(self._postmaster).children():
            if child.pid not in self._background and child.pid not in without:
                try:
                    total += own_seconds(child.pid)
                except (FileNotFoundError, ProcessLookupError):
                    # It has ended since, and is in the sum only at the next call.
                    continue
        return total
