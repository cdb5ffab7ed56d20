"""Run files: they tell the next supervisor which processes the last one started, so that it can end what is left.

FOREBAY_HOME/run holds one JSON file per child, from just before the child starts until no process of it is left. A
process is recognised by its pid together with its start time, or by a token in its environment, which everything that
a child starts inherits. This module never signals a process that only has a child's former pid.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

TOKEN_VARIABLE = "FOREBAY_RUN_TOKEN"  # noqa: S105 - the name of a variable, and no secret
"""Names the variable that holds the run file's token, in the environment of a child and of everything it starts."""

_POLL_SECONDS = 0.05  # between two looks whether processes have ended
_SAME_TIME_SECONDS = 2.0
"""How far two start times of one process may differ: a step of the clock moves the boot time that they count from."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identify one process: its pid, and its start time in seconds since 1970."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of a living process, or None where there is none."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def matches(self, process: psutil.Process) -> bool:
        """Return whether the process is this one."""
        apart = abs(process.create_time() - self.created)
        return process.pid == self.pid and bool(apart < _SAME_TIME_SECONDS)


@dataclass(frozen=True, slots=True)
class RunFile:
    """Hold what the next supervisor must know of a child.

    guard: the process that the supervisor started, and that ends the command with the supervisor; None for a child
    without a guard. command: the command itself. grace: seconds between the stop signal and the kill.
    """

    path: Path
    name: str
    token: str
    stop_signal: int
    grace: float
    guard: ProcessIdentity | None = None
    command: ProcessIdentity | None = None

    def write(self) -> None:
        """Write the file, and put it in place as a whole."""
        fields: dict[str, Any] = asdict(self)
        del fields["path"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(fields))
        new.replace(self.path)

    def remove(self) -> None:
        """Delete the file, because no process of the child is left."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> RunFile | None:
        """Read a run file; return None where it is missing or not valid."""
        try:
            fields = json.loads(path.read_text())
            for which in ("guard", "command"):
                fields[which] = None if fields[which] is None else ProcessIdentity(**fields[which])
            return cls(path=path, **fields)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the child, its guard included, except the caller and the caller's parents."""
        own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        session = self._session()
        return [
            process for process in psutil.process_iter() if process.pid not in own and self._knows(process, session)
        ]

    def end(self, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """End all processes of the child, in order, and remove the file; return the pids that were found.

        A guard ends its command by itself, so the guard is ended first; then the command, by its own stop signal; then
        the rest. hurry: asked repeatedly; True means: kill now.
        """
        found = self.processes()
        if found:
            # A guard gives its command the same grace, and then kills it.
            end_processes(_only(self.guard, found), signal.SIGTERM, self.grace + 2, hurry)
            end_processes(_only(self.command, found), self.stop_signal, self.grace, hurry)
            # Look again: guard and command may have started processes while they ended.
            end_processes(self.processes(), signal.SIGTERM, self.grace, hurry)
        self.remove()
        return [process.pid for process in found]

    def _session(self) -> int | None:
        """Return the command's session, or None unless the command still leads it: its number may have been reused."""
        if self.command is None:
            return None
        with contextlib.suppress(psutil.Error, OSError):
            if (
                self.command.matches(psutil.Process(self.command.pid))
                and os.getsid(self.command.pid) == self.command.pid
            ):
                return self.command.pid
        return None

    def _knows(self, process: psutil.Process, session: int | None) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            if session is not None and os.getsid(process.pid) == session:
                return True
            if any(known is not None and known.matches(process) for known in (self.guard, self.command)):
                return True
            return bool(process.environ().get(TOKEN_VARIABLE) == self.token)
        return False


def run_files(folder: Path) -> list[RunFile]:
    """Return the run files of a folder. Delete those that are not valid (power was lost): they name no process."""
    found = []
    for path in sorted(folder.glob("*.json")):
        run_file = RunFile.read(path)
        if run_file is None:
            path.unlink(missing_ok=True)
        else:
            found.append(run_file)
    return found


def end_processes(
    processes: Sequence[psutil.Process], number: int, grace: float, hurry: Callable[[], bool] = lambda: False
) -> None:
    """Send a signal, wait at most grace seconds, and kill the rest; return when all have ended."""
    _send(processes, number)
    deadline = time.monotonic() + grace
    while (left := _living(processes)) and time.monotonic() < deadline and not hurry():
        time.sleep(_POLL_SECONDS)
    _send(left, signal.SIGKILL)
    # A killed process that hangs in the kernel (on a disk) ends only when the kernel returns: do not wait for it.
    deadline = time.monotonic() + 5
    while _living(left) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _only(known: ProcessIdentity | None, processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    return [process for process in _living(processes) if known is not None and known.matches(process)]
