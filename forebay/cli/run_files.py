"""Run files: what a supervisor started, where its successor finds it, and the ending of what was left behind.

One JSON file per child in FOREBAY_HOME/run, there from just before the child is started until nothing of it
is left. A process is recognised by its pid together with the time it was made, or by a token in its
environment that everything a child starts inherits: a number that was given to another process since is never
touched.
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
"""In the environment of a child and of all it starts: the token of its run file."""

_POLL_SECONDS = 0.05
_SAME_TIME_SECONDS = 2.0
"""A process's time is reckoned from the time of booting, which a step of the clock moves a little."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process and no other: pid, and when it was made (seconds since 1970)."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """The identity of a living process; None where there is none."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def matches(self, process: psutil.Process) -> bool:
        """Whether a process is this one."""
        apart = abs(process.create_time() - self.created)
        return process.pid == self.pid and bool(apart < _SAME_TIME_SECONDS)


@dataclass(frozen=True, slots=True)
class RunFile:
    """A child of a supervisor, as its successor must know it.

    guard: the process that the supervisor started and that ends the command with it; None for a child that
    has none. command: the command itself. grace: seconds between the stop signal and the kill.
    """

    path: Path
    name: str
    token: str
    stop_signal: int
    grace: float
    guard: ProcessIdentity | None = None
    command: ProcessIdentity | None = None

    def write(self) -> None:
        """Put the file in place, whole."""
        fields: dict[str, Any] = asdict(self)
        del fields["path"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(fields))
        new.replace(self.path)

    def remove(self) -> None:
        """Nothing of the child is left."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def read(cls, path: Path) -> RunFile | None:
        """What a run file says; None where it says nothing that can be used."""
        try:
            fields = json.loads(path.read_text())
            for which in ("guard", "command"):
                fields[which] = None if fields[which] is None else ProcessIdentity(**fields[which])
            return cls(path=path, **fields)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def processes(self) -> list[psutil.Process]:
        """All that is left of the child, its guard included; never the caller or what that runs under."""
        own = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
        session = self._session()
        return [
            process for process in psutil.process_iter() if process.pid not in own and self._knows(process, session)
        ]

    def end(self, hurry: Callable[[], bool] = lambda: False) -> list[int]:
        """End all that is left of the child, in order, and remove the file; return the pids that were there.

        A guard ends its command by itself, so it goes first; then the command by its own stop signal, then
        the rest. hurry: asked again and again; True is: kill now.
        """
        found = self.processes()
        if found:
            # A guard needs its own grace to end its command, and kills it after that.
            end_processes(_only(self.guard, found), signal.SIGTERM, self.grace + 2, hurry)
            end_processes(_only(self.command, found), self.stop_signal, self.grace, hurry)
            # What these started while they ended is among the rest.
            end_processes(self.processes(), signal.SIGTERM, self.grace, hurry)
        self.remove()
        return [process.pid for process in found]

    def _session(self) -> int | None:
        """The command's session, while its leader is surely the command: else the number may be another's."""
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
    """All run files of a folder. One that can't be read (power was lost) names no process, and goes."""
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
    """Send a signal, wait at most grace seconds, and kill what is still there; return when all have ended."""
    _send(processes, number)
    deadline = time.monotonic() + grace
    while (left := _living(processes)) and time.monotonic() < deadline and not hurry():
        time.sleep(_POLL_SECONDS)
    _send(left, signal.SIGKILL)
    # A process in the kernel's hands (a disk that hangs) ends when that lets go: nobody can wait for it.
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
