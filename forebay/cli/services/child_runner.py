"""Run one child: start its process, watch it, restart it by its policy, and end it with all that it started.

It owns the process, its run file and its log file. It never decides when the other children start or stop.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from forebay.cli.services import guard
from forebay.cli.services.child import (
    CHILD_TRANSITIONS,
    Child,
    ChildEvent,
    ChildEventKind,
    ChildState,
    ChildStatus,
    SupervisorError,
)
from forebay.cli.services.run_files import TOKEN_VARIABLE, ProcessIdentity, RunFile
from receiver_runtime.agent.child_environment import environment_without
from receiver_runtime.agent.process_ends import ProcessEnds
from tracker_store.host.log_files import open_log
from tracker_store.host.terminal_text import escaped
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.05  # between two looks at a process that is to end, or to become ready
_READY_POLL_SECONDS = 0.1  # between two questions whether it is ready
_LOG_TAIL_LINES = 15  # of a log in an error's message: enough for a traceback's end
_MOST_REASON = 400  # characters of a log's last line in the line that says how a process ended
_WATCH_SECONDS = 30.0  # of one wait for the end of a ready process: nothing has to be done after it


class ChildRunner(threading.Thread):
    """Run one child, one process after another, in a thread of its own."""

    def __init__(self, child: Child, home: Path, emit: Callable[[ChildEvent], None], at_once: threading.Event) -> None:
        super().__init__(name=f"child {child.name}", daemon=True)
        self.child = child
        self.log_file = child.log_file or home / "logs" / f"{child.name}.log"
        self.was_ready = threading.Event()
        self._run_path = home / "run" / f"{child.name}.json"
        self._emit_event = emit
        self._at_once = at_once
        self._stop_asked = threading.Event()
        self._restart_asked = threading.Event()
        # Guards the descriptors: once the thread has ended, others may have their numbers.
        self._ends_lock = threading.Lock()
        self._ends: ProcessEnds | None = ProcessEnds()
        self._state = ChildState.NEW
        self._pid: int | None = None
        self._restarts = 0

    def request_stop(self) -> None:
        """Make the thread stop its process and end."""
        self._stop_asked.set()
        self._wake()

    def request_restart(self) -> None:
        """Make the thread end its process, and start the next one at once; it counts as no failure."""
        self._restart_asked.set()
        self._wake()

    def _wake(self) -> None:
        with self._ends_lock:
            if self._ends is not None:
                self._ends.wake()

    def status(self) -> ChildStatus:
        """Return the child's status now."""
        return ChildStatus(self.child.name, self._state, self._pid, self._restarts)

    def await_ready(self, check_stop: Callable[[], None]) -> None:
        """Return when the child was ready; `check_stop` raises to end the waiting. Raises SupervisorError."""
        deadline = time.monotonic() + self.child.ready_within
        while not self.was_ready.wait(_POLL_SECONDS):
            failed = self._state is ChildState.FAILED
            if not failed:
                check_stop()
            if failed or time.monotonic() >= deadline:
                within = "" if failed else f" within {self.child.ready_within:g} s"
                raise SupervisorError(
                    f"{self.child.name} is not ready{within}; its log {self.log_file} ends:\n{_tail(self.log_file)}",
                    "Look into the child's log file: it says why the child did not become ready.",
                )

    def run(self) -> None:
        """Start the process, and restart it by the policy, until a stop is requested."""
        try:
            self._run()
        finally:
            with self._ends_lock:
                ends, self._ends = self._ends, None
            if ends is not None:
                ends.close()

    def _run(self) -> None:
        failures = 0
        while not self._stop_asked.is_set():
            began = time.monotonic()
            # Before the start: a request that comes later is for a process that may have read what was there before.
            self._restart_asked.clear()
            how, reason = self._run_once()
            if self._stop_asked.is_set():
                break
            if self._restart_asked.is_set():
                failures = 0
                self._move(ChildState.WAITING)
                self._restarts += 1
                continue
            failures = 1 if time.monotonic() - began >= self.child.restart.healthy_after else failures + 1
            attempts = self.child.restart.attempts
            if attempts is not None and failures > attempts:
                self._move(ChildState.FAILED)
                self._emit(ChildEventKind.FAILED, detail=f"{how}{reason}")
                return
            delay = self.child.restart.delay(failures, random.random())  # noqa: S311 - spreads restarts, no secret
            self._move(ChildState.WAITING)
            self._restarts += 1
            self._emit(ChildEventKind.RESTARTING, detail=f"{how}, is started again in {delay:.1f} s{reason}")
            self._stop_asked.wait(delay)
        self._move(ChildState.STOPPED)
        self._emit(ChildEventKind.STOPPED)

    def _run_once(self) -> tuple[str, str]:
        """Start the process, wait for its end, and end what it leaves behind; return how it ended, and why.

        Both are for people; why is the last line that it wrote, if that can say so.
        """
        logged = _size(self.log_file)
        run_file = RunFile(
            self._run_path,
            self.child.name,
            secrets.token_hex(16),
            int(self.child.stop_signal),
            self.child.stop_grace,
        )
        try:
            run_file.write()
            process, run_file = self._spawn(run_file)
        except OSError as error:
            # For example on a full disk: this thread must go on, to try again.
            with contextlib.suppress(OSError):
                run_file.remove()
            return f"can't be started: {error}", ""
        detail = ""
        ended_unasked = False
        try:
            self._move(ChildState.STARTING)
            self._emit(ChildEventKind.STARTED)
            detail = self._watch(process)
            ended_unasked = not detail
        finally:
            self._end(process)
            code = process.wait()
            if process.stdin is not None:
                process.stdin.close()
            if ended_unasked and self.child.left_grace is not None:
                run_file = replace(run_file, grace=self.child.left_grace)
            if left := run_file.end(self._at_once.is_set):
                _log.info("ended what a child left behind", child=self.child.name, pids=left)
        code = code if code >= 0 else guard.SIGNAL_BASE - code
        self._emit(ChildEventKind.EXITED, exit_code=code, detail=detail)
        self._pid = None
        # A process that a signal ended has said nothing of it.
        says_why = detail or code <= guard.SIGNAL_BASE
        return detail or _meaning(code), _reason(self.log_file, logged) if says_why else ""

    def _spawn(self, run_file: RunFile) -> tuple[subprocess.Popen[bytes], RunFile]:
        child = self.child
        inherited = environment_without(child.withheld) if child.inherit_environment else {}
        environment = {**inherited, **child.environment}
        environment[TOKEN_VARIABLE] = run_file.token
        # Without .pyc files each process of Dagster takes seconds more to import it.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = list(child.command)
        status_read, status_write = os.pipe() if child.guarded else (-1, -1)
        if child.guarded:
            command = [*_guard_command(child), "--status-fd", str(status_write), "--", *command]
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open_log(self.log_file) as log:
                # A new session: a terminal's Ctrl-C must reach only the supervisor, which stops all in order.
                process = subprocess.Popen(  # noqa: S603 - running commands is its purpose
                    command,
                    env=environment,
                    cwd=child.directory,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(status_write,) if child.guarded else (),
                )
        except OSError:
            _close(status_read)
            raise
        finally:
            _close(status_write)
        started = ProcessIdentity.of(process.pid)
        if not child.guarded:
            self._pid = process.pid
            run_file = replace(run_file, command=started)
        else:
            run_file = replace(run_file, guard=started)
            _write_if_possible(run_file)
            self._pid = _read_pid(status_read)
            run_file = replace(run_file, command=None if self._pid is None else ProcessIdentity.of(self._pid))
        _write_if_possible(run_file)
        return process, run_file

    def _watch(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until the process has ended, and return "", or until it must be ended, and return why."""
        deadline = time.monotonic() + self.child.ready_within
        ready = self.child.ready or (lambda: True)
        while process.poll() is None:
            if self._stop_asked.is_set():
                return "told to stop"
            if self._restart_asked.is_set():
                return "told to start again"
            if self._state is ChildState.STARTING:
                if _is_ready(ready):
                    self._move(ChildState.READY)
                    self._emit(ChildEventKind.READY)
                    self.was_ready.set()
                elif time.monotonic() >= deadline:
                    return f"not ready within {self.child.ready_within:g} s"
            if self._state is ChildState.STARTING or self._ends is None:
                self._stop_asked.wait(_READY_POLL_SECONDS)
            else:
                self._ends.wait([process], _WATCH_SECONDS)
        return ""

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is not None:
            return
        # A guard sends its command the stop signal itself.
        process.send_signal(signal.SIGTERM if self.child.guarded else self.child.stop_signal)
        # A guard kills its command's remains itself, after the same grace: do not kill the guard before that.
        deadline = time.monotonic() + self.child.stop_grace + (5 if self.child.guarded else 0)
        hurried = False
        while process.poll() is None and time.monotonic() < deadline:
            if self._at_once.is_set() and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + (2 if self.child.guarded else 0))
                if self.child.guarded:
                    # The guard kills at once on its second signal. Two different ones, because equal signals that wait
                    # together arrive as one.
                    process.send_signal(signal.SIGTERM)
                    process.send_signal(signal.SIGINT)
            time.sleep(_POLL_SECONDS)
        process.kill()

    def _move(self, state: ChildState) -> None:
        if state not in CHILD_TRANSITIONS[self._state]:
            message = f"child {self.child.name} can't go from {self._state} to {state}"
            raise SupervisorError(message)
        self._state = state

    def _emit(self, kind: ChildEventKind, *, exit_code: int | None = None, detail: str = "") -> None:
        self._emit_event(ChildEvent(kind, self.child.name, self._pid, exit_code, self._restarts, detail))


def _write_if_possible(run_file: RunFile) -> None:
    """Write the run file, unless the disk is full: the child runs and must be watched, and the file has its token."""
    try:
        run_file.write()
    except OSError as error:
        _log.warning("a run file could not be brought up to date", child=run_file.name, error=str(error))


def _guard_command(child: Child) -> list[str]:
    # By its path and without site-packages: so it starts in 30 ms, whatever Forebay's modules load.
    command = [sys.executable, "-I", "-S", str(Path(guard.__file__).resolve())]
    command += ["--grace", str(child.stop_grace), "--signal", str(int(child.stop_signal))]
    if child.user is not None:
        command += [
            "--user",
            str(child.user),
            "--group",
            str(child.user if child.group is None else child.group),
        ]
    return command


def _read_pid(descriptor: int) -> int | None:
    """Return the pid that a guard reports, or None where it could not start its command."""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        # The guard reports within milliseconds. On a machine that swaps it may take long, and only the run file waits.
        if not select.select([pipe], [], [], 30)[0]:
            return None
        told = pipe.read(32) or b""
    return int(told) if told.strip().isdigit() else None


def _is_ready(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except Exception as error:  # noqa: BLE001 - any error of a check means "not ready yet"
        _log.debug("readiness check failed", error=str(error))
        return False


def _meaning(code: int) -> str:
    if code == guard.CANNOT_START:
        return "ended with code 127 (the command can't be started; see its log)"
    if code > guard.SIGNAL_BASE:
        with contextlib.suppress(ValueError):
            return f"ended by {signal.Signals(code - guard.SIGNAL_BASE).name}"
    return f"ended with code {code}"


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)


def _size(log_file: Path) -> int:
    try:
        return log_file.stat().st_size
    except OSError:
        return 0


def _reason(log_file: Path, logged: int) -> str:
    """Return the log's last line as the end of a sentence; "" if none was written after the first `logged` bytes."""
    size = _size(log_file)
    # It may have been rolled meanwhile, and begin again.
    written = size - logged if size >= logged else size
    if not written:
        return ""
    lines: list[str] = []
    # No fault of the disk may end the thread that starts the process again.
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in _tail(log_file, most_bytes=written).splitlines() if line.strip()]
    return f"; its log ends: {escaped(shortened(lines[-1], _MOST_REASON))}" if lines else ""


def _tail(log_file: Path, *, most_bytes: int = 8192) -> str:
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - min(most_bytes, 8192)))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "(there is no log file)"
    return "\n".join(lines[-_LOG_TAIL_LINES:])
