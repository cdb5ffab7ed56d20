"""Guard one program that is not Forebay's: run it, and end it with all that it started when the parent is gone.

    python -m forebay.cli.services.guard [--grace S] [--signal N] [--user UID --group GID] [--status-fd N] -- COMMAND…

Standard input is a pipe from the parent; it closes when the parent ends. Then, or on SIGTERM or SIGINT, the guard sends
the command `--signal` (default: the guard's own signal, or SIGTERM). The command has `--grace` seconds; then the guard
kills what is left. A second SIGTERM or SIGINT kills at once. When the command ends, for any reason, the guard ends the
processes that the command started and left, in the same way. The guard exits with the command's code, 128 + N for
signal N, 127 where the command can't be started. It writes the command's pid and a newline to `--status-fd`.

This module imports the standard library only, and never Forebay: it is started by its path, several times, and must
run at once.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CANNOT_START = 127
SIGNAL_BASE = 128

_STOPS = (signal.SIGTERM, signal.SIGINT)
_PASSED_ON = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ON_LINUX = sys.platform == "linux"
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.05  # between two looks, while processes are being ended


@dataclass(frozen=True, slots=True)
class Options:
    """Hold the options of the command line.

    grace: seconds. signal: ends the command in order; None: the guard's own signal, or SIGTERM.
    """

    command: tuple[str, ...]
    grace: float = 10.0
    signal: int | None = None
    user: int | None = None
    group: int | None = None
    status_fd: int | None = None


class Guard:
    """Run one command once."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._signals: list[int] = []
        self._deadline: float | None = None
        self._stops = 0
        self._told_others = False
        self._exit_code: int | None = None
        self._pid = 0

    def run(self) -> int:
        """Run the command until it and everything that it started has ended; return the exit code."""
        _adopt_orphans()
        wake = self._catch_signals()
        try:
            self._pid = self._spawn()
        except OSError as error:
            # Unbuffered: a failed write on a full disk must not change the exit code, which tells that nothing ran.
            with contextlib.suppress(OSError):
                os.write(2, f"guard: can't start {self._options.command[0]}: {error}\n".encode())
            return CANNOT_START
        self._tell_pid()
        watched = [wake, sys.stdin.fileno()]
        while True:
            self._reap()
            others = self._others()
            if self._exit_code is not None:
                if not others:
                    return self._exit_code
                if not self._told_others:
                    self._told_others = True
                    self._stop_within(self._options.grace)
                    _send(others, signal.SIGTERM)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                _send([self._pid, *others] if self._exit_code is None else others, signal.SIGKILL)
            for descriptor in self._wait(watched):
                if descriptor == wake:
                    os.read(wake, 512)
                elif not os.read(descriptor, 512):
                    watched.remove(descriptor)
                    self._stop(signal.SIGTERM)
            self._work_signals()

    def _spawn(self) -> int:
        as_user: dict[str, object] = {}
        if self._options.user is not None:
            as_user = {"user": self._options.user, "group": self._options.group, "extra_groups": []}
        # A new session: a signal to the command's process group must not reach the guard.
        process = subprocess.Popen(  # type: ignore[call-overload]  # noqa: S603 - running a command is its purpose
            self._options.command, stdin=subprocess.DEVNULL, start_new_session=True, **as_user
        )
        process.returncode = 0  # `_reap` waits for it, with the orphans; Popen must not wait too.
        return int(process.pid)

    def _tell_pid(self) -> None:
        if self._options.status_fd is not None:
            with contextlib.suppress(OSError), os.fdopen(self._options.status_fd, "w") as status:
                status.write(f"{self._pid}\n")

    def _catch_signals(self) -> int:
        wake, woken = os.pipe()
        for descriptor in (wake, woken):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (*_STOPS, *_PASSED_ON):
            signal.signal(number, lambda received, _frame: self._signals.append(received))
        signal.signal(signal.SIGCHLD, lambda _received, _frame: None)
        return wake

    def _work_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number in _STOPS:
                self._stops += 1
                self._stop(number)
                if self._stops > 1:
                    self._stop_within(0)
            elif self._exit_code is None:
                _send([self._pid], number)

    def _stop(self, asked: int) -> None:
        self._stop_within(self._options.grace)
        if self._exit_code is None:
            _send([self._pid], self._options.signal or asked)

    def _stop_within(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._deadline = deadline if self._deadline is None else min(self._deadline, deadline)

    def _wait(self, watched: list[int]) -> list[int]:
        winding_down = self._deadline is not None or self._exit_code is not None
        try:
            return select.select(watched, [], [], _POLL_SECONDS if winding_down else None)[0]
        except InterruptedError:
            return []

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    code = os.waitstatus_to_exitcode(status)
                    self._exit_code = code if code >= 0 else SIGNAL_BASE - code

    def _others(self) -> list[int]:
        """Return the living processes that the command started; without Linux its group, as a negative number."""
        if _ON_LINUX:
            return [pid for pid in _descendants(os.getpid()) if pid != self._pid]
        if self._exit_code is None:
            return [-self._pid]
        try:
            os.killpg(self._pid, 0)
        except OSError:
            return []
        return [-self._pid]


def _adopt_orphans() -> None:
    """Become the parent of processes whose parents have ended, in any session."""
    if _ON_LINUX:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _descendants(root: int) -> list[int]:
    """Return all living descendants of a process, from /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                # The command's name is in brackets, and may contain blanks and brackets itself.
                state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in {b"Z", b"X"}:
                    children.setdefault(int(parent), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _send(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def main(arguments: Sequence[str]) -> int:
    """Run the guard as a program; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m forebay.cli.services.guard", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between the signal and the kill")
    parser.add_argument("--signal", type=int, help="number of the signal that ends the command in order")
    parser.add_argument("--user", type=int, help="user id to run the command as")
    parser.add_argument("--group", type=int, help="group id to run the command as")
    parser.add_argument("--status-fd", type=int, help="descriptor that the command's pid is written to")
    parser.add_argument("command", nargs="+", help="the command and its arguments, after --")
    parsed = parser.parse_args(arguments)
    return Guard(Options(**{**vars(parsed), "command": tuple(parsed.command)})).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
