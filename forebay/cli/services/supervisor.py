"""The supervisor of `forebay up` and `forebay demo`: starts children, restarts those that end, stops in reverse order.

It owns the processes of one FOREBAY_HOME and leaves none behind: not on Ctrl-C, not when it fails, not when it is
killed. Each child ends when a pipe closes that only the supervisor holds; if a process survives even that, the next
supervisor finds it by the run files. It never imports its children, and never knows what they do.

Locks: a supervisor holds FOREBAY_HOME/supervisor.lock for its whole life, so there is one at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Self

import structlog

from forebay.cli.services import guard
from forebay.cli.services.run_files import TOKEN_VARIABLE, ProcessIdentity, RunFile, run_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

_log = structlog.get_logger(__name__)

_LOCK_FILE = "supervisor.lock"
_POLL_SECONDS = 0.05  # between two looks at a thread or a process that is to end
_LOG_FILE_BYTES = 16 * 1024 * 1024  # a larger log is renamed to .1 at the child's next start: logs stay bounded
_LOG_TAIL_LINES = 15  # of a log in an error's message: enough for a traceback's end
_STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildState(StrEnum):
    """Name a child's state; see `_TRANSITIONS`."""

    NEW = "new"
    STARTING = "starting"
    """The process runs and is not ready yet."""
    READY = "ready"
    WAITING = "waiting"
    """The process has ended; the next one starts after a delay."""
    FAILED = "failed"
    """The child was restarted as often as its policy allows."""
    STOPPED = "stopped"


_TRANSITIONS: dict[ChildState, frozenset[ChildState]] = {
    ChildState.NEW: frozenset({ChildState.STARTING, ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.STARTING: frozenset({ChildState.READY, ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.READY: frozenset({ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.WAITING: frozenset({ChildState.STARTING, ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.FAILED: frozenset(),
    ChildState.STOPPED: frozenset(),
}


class ChildEventKind(StrEnum):
    """Name a kind of event in a child's life."""

    STARTED = "started"
    READY = "ready"
    EXITED = "exited"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """Report one event in a child's life.

    pid: the command's own (not its guard's), None where there is none. exit_code: as in a shell, 128 + N for signal N.
    restarts: how often the child has been restarted so far.
    """

    kind: ChildEventKind
    name: str
    pid: int | None = None
    exit_code: int | None = None
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Say how to restart a child that has ended, with any exit code: with backoff.

    first, most: seconds of delay after the first failure, and at most. jitter: share by which a delay varies, so that
    several children do not restart at the same time. healthy_after: seconds of life after which earlier failures no
    longer count. attempts: restarts in a row before the child fails for good; None: no limit, 0: no restart.
    """

    first: float = 0.2
    factor: float = 2.0
    most: float = 15.0
    jitter: float = 0.2
    healthy_after: float = 30.0
    attempts: int | None = None

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds before a restart. failures: in a row, from 1. draw: a random number from 0 to 1."""
        # The exponent is bounded, because the power of a float overflows after a night of failures.
        plain = min(self.most, self.first * self.factor ** min(failures - 1, 64))
        return plain * (1 + self.jitter * (2 * draw - 1))


@dataclass(frozen=True, slots=True)
class Child:
    """Declare a child process.

    environment: added to the supervisor's own, or the whole environment (`inherit_environment=False`).
    guarded: a guard (`forebay.cli.services.guard`) runs the command and ends it with the supervisor: for programs that
        are not Forebay's. A child without a guard must watch its standard input, a pipe, and end when that closes.
    ready: asked every 0.1 s, in the child's own thread, until it returns True; an error counts as not ready yet.
        None: the child is ready as soon as it runs.
    ready_within: seconds; a process that is not ready by then is ended, and counts as failed.
    stop_signal, stop_grace: the signal that ends the process in order, and the seconds after which it is killed.
    left_grace: seconds that the process's own children have to end after the process has ended on its own, before they
        are killed and the next process is started. None: stop_grace.
    log_file: None: FOREBAY_HOME/logs/NAME.log.
    user, group: ids to run the command as; for guarded children only.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit_environment: bool = True
    directory: Path | None = None
    guarded: bool = True
    ready: Callable[[], bool] | None = None
    ready_within: float = 60.0
    restart: RestartPolicy = RestartPolicy()
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace: float = 10.0
    left_grace: float | None = None
    log_file: Path | None = None
    user: int | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """Describe a child now. pid: the command's own; log_file: the file that its output goes to."""

    name: str
    state: ChildState
    pid: int | None
    restarts: int
    log_file: Path


class SupervisorError(Exception):
    """The supervisor was used in a way it is not made for: this is a bug, please report it."""

    def __init__(self, detail: str | None = None) -> None:
        advice = " ".join((type(self).__doc__ or "").split())
        super().__init__(f"{detail}. {advice}" if detail else advice)


class SupervisorRunningError(SupervisorError):
    """Stop the other one, or choose another folder by FOREBAY_HOME."""


class ChildNotReadyError(SupervisorError):
    """A child did not become ready: its log file says why."""


class StopRequestedError(SupervisorError):
    """Told to stop while it was still starting: nothing is left to do."""


@dataclass(frozen=True, slots=True)
class StopReason:
    """Say why `Supervisor.wait` returned: a signal, a child that failed for good, or neither: request_stop()."""

    signal: int | None = None
    failed_child: str | None = None


class Supervisor:
    """Supervise the children of one FOREBAY_HOME. Any thread may call the methods.

        with Supervisor(home) as supervisor, supervisor.stopping_on_signals():
            supervisor.start([postgres])
            ...                                     # work that needs the server only
            supervisor.start([code_server, webserver, daemon])
            supervisor.wait()

    Entering takes the lock (raises SupervisorRunningError) and ends the processes that an earlier supervisor left;
    leaving stops all children. on_event: called for each event, one at a time, from the children's threads; it must
    not call start() or stop().
    """

    def __init__(self, home: Path, on_event: Callable[[ChildEvent], None] | None = None) -> None:
        self.home = home.expanduser().resolve()
        self._on_event = on_event
        self._events = threading.Lock()
        self._stages: list[list[_Runner]] = []
        self._lock_file: IO[str] | None = None
        self._wake = threading.Condition()
        self._reason: StopReason | None = None
        self._at_once = threading.Event()

    def __enter__(self) -> Self:
        self.home.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as entering:
            self._lock_file = entering.enter_context(_lock(self.home / _LOCK_FILE))
            for left in run_files(self.home / "run"):
                if pids := left.end(self._at_once.is_set):
                    _log.warning("ended what an earlier run left behind", child=left.name, pids=pids)
            entering.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            if self._lock_file is not None:
                self._lock_file.close()
                self._lock_file = None

    def start(self, children: Sequence[Child]) -> None:
        """Start children together; return when each is ready.

        Raises ChildNotReadyError (the other children keep running: leave or stop() the supervisor), and
        StopRequestedError where a stop was requested meanwhile.
        """
        if self._lock_file is None:
            message = "enter the supervisor first: `with Supervisor(home) as supervisor`"
            raise SupervisorError(message)
        self._check_stop()
        known = {runner.child.name for stage in self._stages for runner in stage}
        stage = []
        for child in children:
            if child.name in known:
                message = f"there is a child {child.name!r} already"
                raise SupervisorError(message)
            known.add(child.name)
            stage.append(_Runner(child, self.home, self._emit, self._at_once))
        self._stages.append(stage)
        for runner in stage:
            runner.start()
        for runner in stage:
            self._await_ready(runner)

    def wait(self, timeout: float | None = None) -> StopReason | None:
        """Wait until a stop is requested or a child has failed for good; return None after timeout seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._wake:
            while self._reason is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                # Bounded, because a signal's handler runs on this thread and can't notify it.
                self._wake.wait(0.2 if left is None else min(left, 0.2))
            return self._reason

    def request_stop(self, reason: StopReason | None = None) -> None:
        """Make wait() return and start() give up. Does not stop any child."""
        # No lock: signal handlers call this too, on a thread that may hold the lock.
        self._reason = self._reason or reason or StopReason()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop all children, the last started first, and return when none of their processes is left.

        at_once: kill them; this also makes a stop() that another thread has called kill them.
        """
        self.request_stop()
        if at_once:
            self._at_once.set()
        for stage in reversed(self._stages):
            started = [runner for runner in reversed(stage) if runner.ident is not None]
            for runner in started:
                runner.request_stop()
            for runner in started:
                # In short waits: a signal's handler runs on the main thread, and only when that wakes.
                while runner.is_alive():
                    runner.join(_POLL_SECONDS)

    @contextlib.contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Let SIGINT, SIGTERM and SIGHUP request a stop, and a second signal an immediate one.

        For the main thread only. Enter it around the supervisor, so that it still holds while the supervisor stops.
        """

        def handle(number: int, _frame: FrameType | None) -> None:
            if self._reason is None:
                self.request_stop(StopReason(signal=number))
            else:
                self._at_once.set()

        before = {number: signal.signal(number, handle) for number in _STOPPING_SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def statuses(self) -> list[ChildStatus]:
        """Return the statuses of all children, in the order of their start."""
        return [runner.status() for stage in self._stages for runner in stage]

    def pid(self, name: str) -> int | None:
        """Return the pid of a child's command, or None while it does not run. Raises KeyError."""
        return {status.name: status.pid for status in self.statuses()}[name]

    def _emit(self, event: ChildEvent) -> None:
        if event.kind is ChildEventKind.FAILED:
            with self._wake:
                self._reason = self._reason or StopReason(failed_child=event.name)
                self._wake.notify_all()
        with self._events:
            _log.debug("child", kind=str(event.kind), name=event.name, pid=event.pid, exit_code=event.exit_code)
            if self._on_event is not None:
                try:
                    self._on_event(event)
                except Exception:  # noqa: BLE001 - no error of a listener may end a child
                    _log.exception("the listener to children's events failed", child=event.name)

    def _await_ready(self, runner: _Runner) -> None:
        deadline = time.monotonic() + runner.child.ready_within
        while not runner.was_ready.wait(_POLL_SECONDS):
            failed = runner.status().state is ChildState.FAILED
            if not failed:
                self._check_stop()
            if failed or time.monotonic() >= deadline:
                within = "" if failed else f" within {runner.child.ready_within:g} s"
                message = f"{runner.child.name} is not ready{within}; its log {runner.log_file} ends:\n"
                raise ChildNotReadyError(message + _tail(runner.log_file))

    def _check_stop(self) -> None:
        if self._reason is not None and self._reason.failed_child is None:
            raise StopRequestedError


class _Runner(threading.Thread):
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
        self._state = ChildState.NEW
        self._pid: int | None = None
        self._restarts = 0

    def request_stop(self) -> None:
        """Make the thread stop its process and end."""
        self._stop_asked.set()

    def status(self) -> ChildStatus:
        """Return the child's status now."""
        return ChildStatus(self.child.name, self._state, self._pid, self._restarts, self.log_file)

    def run(self) -> None:
        """Start the process, and restart it by the policy, until a stop is requested."""
        failures = 0
        while not self._stop_asked.is_set():
            began = time.monotonic()
            detail = self._run_once()
            if self._stop_asked.is_set():
                break
            failures = 1 if time.monotonic() - began >= self.child.restart.healthy_after else failures + 1
            attempts = self.child.restart.attempts
            if attempts is not None and failures > attempts:
                self._move(ChildState.FAILED)
                self._emit(ChildEventKind.FAILED, detail=detail)
                return
            delay = self.child.restart.delay(failures, random.random())  # noqa: S311 - spreads restarts, no secret
            self._move(ChildState.WAITING)
            self._restarts += 1
            self._emit(ChildEventKind.RESTARTING, detail=f"{detail}; again in {delay:.1f} s")
            self._stop_asked.wait(delay)
        self._move(ChildState.STOPPED)
        self._emit(ChildEventKind.STOPPED)

    def _run_once(self) -> str:
        """Start the process, wait for its end, and end what it leaves behind; return how it ended, for people."""
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
            return f"can't be started: {error}"
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
        return detail or _meaning(code)

    def _spawn(self, run_file: RunFile) -> tuple[subprocess.Popen[bytes], RunFile]:
        child = self.child
        environment = {**(os.environ if child.inherit_environment else {}), **child.environment}
        environment[TOKEN_VARIABLE] = run_file.token
        # Without .pyc files each process of Dagster takes seconds more to import it.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = list(child.command)
        status_read, status_write = os.pipe() if child.guarded else (-1, -1)
        if child.guarded:
            command = [*_guard_command(child), "--status-fd", str(status_write), "--", *command]
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        _roll(self.log_file)
        try:
            with self.log_file.open("ab") as log:
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
            if self._state is ChildState.STARTING:
                if _is_ready(ready):
                    self._move(ChildState.READY)
                    self._emit(ChildEventKind.READY)
                    self.was_ready.set()
                elif time.monotonic() >= deadline:
                    return f"not ready within {self.child.ready_within:g} s"
            self._stop_asked.wait(0.1)
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
        if state not in _TRANSITIONS[self._state]:
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


def _lock(path: Path) -> IO[str]:
    """Take the lock and return its open file, which names the holder."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        message = f"another Forebay (process {holder}) runs in {path.parent}"
        raise SupervisorRunningError(message) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def lock_holder(home: Path) -> int | None:
    """Return the pid of the supervisor that runs in a home, or None. Keeps no lock and creates no file."""
    try:
        with (home / _LOCK_FILE).open() as file:
            # Shared, and released at once: two callers of this function do not take each other for a supervisor.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        told = (home / _LOCK_FILE).read_text().strip()
        return int(told) if told.isdigit() else None
    return None


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


def _roll(log_file: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if log_file.stat().st_size > _LOG_FILE_BYTES:
            log_file.replace(log_file.with_name(log_file.name + ".1"))


def _tail(log_file: Path) -> str:
    try:
        with log_file.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "(there is no log file)"
    return "\n".join(lines[-_LOG_TAIL_LINES:])


def _close(descriptor: int) -> None:
    if descriptor >= 0:
        os.close(descriptor)
