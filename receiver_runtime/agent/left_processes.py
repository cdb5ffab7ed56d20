"""Note an agent's processes in a file, so that its successor knows which of them are gone.

An agent that was killed can't say that it, its receivers' processes and its batch drivers have ended; without this file
they would count as living until their heartbeats have been missing for the limit. The next agent in the same home reads
the file and looks at each process on its own machine. A process counts as gone only if no process has its pid, or if
it is a zombie; a pid that another process has by now is left to the heartbeat limit. A file of another machine, boot or
pid namespace says nothing about the processes here, and is not used. This module must never end a process, and it knows
nothing of the driver log.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import structlog

if TYPE_CHECKING:
    from collections.abc import Iterable

# Seconds. A process's creation time is computed from the boot time, which a step of the clock moves a little.
_SAME_TIME_SECONDS = 2.0

log = structlog.get_logger(__name__)


class LeftProcesses:
    """Hold the processes that an earlier agent noted and that are not known to be gone; write our own note."""

    def __init__(self, file: Path, *, host: str) -> None:
        """Read what an earlier agent noted in `file`; `host` is the agent's name for this machine."""
        self._file = file
        self._place = {"host": host, "machine": _machine()}
        self._left = self._read()
        self._noted: dict[int, float] | None = None

    def take_gone(self) -> list[int]:
        """Return the pids of noted processes that are gone by now, each once."""
        found = {pid: _find(pid, created) for pid, created in self._left.items()}
        self._left = {pid: created for pid, created in self._left.items() if found[pid] is _LeftProcess.LIVES}
        # A row with a pid that was given to another process may be that one's, which lives.
        return [pid for pid, what in found.items() if what is _LeftProcess.GONE]

    def note(self, pids: Iterable[int]) -> None:
        """Note the processes that run now, including this one, and earlier ones that are not known to be gone."""
        known = self._noted or {}
        processes = dict(self._left)
        for pid in {os.getpid(), *pids}:
            created = known.get(pid) or _created(pid)
            if created is not None:
                processes[pid] = created
        if processes == self._noted:
            return
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            new = self._file.with_suffix(".new")
            new.write_text(json.dumps({**self._place, "processes": list(processes.items())}), encoding="utf-8")
            new.replace(self._file)
        except OSError as error:
            # The successor then waits for the heartbeat limit, as it would on another machine.
            log.warning("can't note the agent's processes", file=str(self._file), error=str(error))
        self._noted = processes

    def forget(self) -> None:
        """Remove the note: this agent has ended all of its processes, and has said so."""
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            # Harmless: the successor then looks for processes that are gone and whose rows have ended already.
            log.warning("can't remove the note of the agent's processes", file=str(self._file), error=str(error))

    def _read(self) -> dict[int, float]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            if any(found[key] != value for key, value in self._place.items()):
                return {}
            return {int(pid): float(created) for pid, created in found["processes"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("can't read which processes an earlier agent had", file=str(self._file), error=str(error))
            return {}


def _machine() -> str:
    """Return a name of this machine, since it was booted, and of the namespace of its pids."""
    parts = [socket.gethostname()]
    # Only on Linux. Elsewhere there are no pid namespaces, and a process from before the boot is gone anyway.
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        parts.append(os.readlink("/proc/self/ns/pid"))  # noqa: PTH115  a name, and no path
    return " ".join(parts)


def _created(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


class _LeftProcess(Enum):
    """Name what was found of a process."""

    LIVES = auto()
    GONE = auto()
    ANOTHER = auto()
    """Another process has its pid."""


def _find(pid: int, created: float) -> _LeftProcess:
    try:
        process = psutil.Process(pid)
        if abs(process.create_time() - created) >= _SAME_TIME_SECONDS:
            return _LeftProcess.ANOTHER
        return _LeftProcess.GONE if process.status() == psutil.STATUS_ZOMBIE else _LeftProcess.LIVES
    except psutil.NoSuchProcess:
        return _LeftProcess.GONE
    except psutil.Error:
        # This agent has no right to look at the process, which may be the one that was noted.
        return _LeftProcess.LIVES
