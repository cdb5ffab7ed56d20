"""The supervisor of `forebay up` and `forebay demo`: starts children, restarts what dies, stops in reverse.

Owns the processes of one FOREBAY_HOME, and leaves none behind: not on Ctrl-C, not when it fails, not when it
is killed (each child ends at the end of a pipe that only the supervisor holds; what escapes even that, the
next supervisor finds by the run files). It knows nothing of what the children do, and never imports them.

Who may hold what: FOREBAY_HOME/supervisor.lock is held for a supervisor's whole life, so there is one at a
time.
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

from forebay.cli import guard
from forebay.cli.run_files import TOKEN_VARIABLE, ProcessIdentity, RunFile, run_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType, TracebackType

_log = structlog.get_logger(__name__)

_LOCK_FILE = "supervisor.lock"
_POLL_SECONDS = 0.05
_LOG_FILE_BYTES = 16 * 1024 * 1024
_LOG_TAIL_LINES = 15
_STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ChildState(StrEnum):
    """Where a child is; see `_TRANSITIONS`."""

    NEW = "new"
    STARTING = "starting"
    """Its process runs and is not ready yet."""
    READY = "ready"
    WAITING = "waiting"
    """Its process ended; the next is started after a delay."""
    FAILED = "failed"
    """It was restarted as often as its policy allows."""
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
    """What happened to a child."""

    STARTED = "started"
    READY = "ready"
    EXITED = "exited"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """One thing that happened to a child.

    pid: the command's own (not its guard's), None where there is none. exit_code: as a shell has it, 128 + N
    for signal N. restarts: how often the child was started again up to now.
    """

    kind: ChildEventKind
    name: str
    pid: int | None = None
    exit_code: int | None = None
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """How a child that ended is started again, whatever its exit code: at once at first, then ever later.

    first, most: seconds of delay after the first failure, and at most. jitter: share by which a delay varies,
    so that many don't come back in step. healthy_after: seconds of life after which earlier failures are
    forgotten. attempts: restarts in a row before it is given up; None: never given up, 0: never restarted.
    """

    first: float = 0.2
    factor: float = 2.0
    most: float = 15.0
    jitter: float = 0.2
    healthy_after: float = 30.0
    attempts: int | None = None

    def delay(self, failures: int, draw: float) -> float:
        """Seconds before the restart after so many failures in a row (from 1). draw: by chance, 0 to 1."""
        # The exponent is bounded: a float's power overflows after a night of failures.
        plain = min(self.most, self.first * self.factor ** min(failures - 1, 64))
        return plain * (1 + self.jitter * (2 * draw - 1))


@dataclass(frozen=True, slots=True)
class Child:
    """A child process, as data.

    environment: added to the supervisor's own, or all there is (`inherit_environment=False`).
    guarded: the command is run by a guard (`forebay.cli.guard`), which ends it with the supervisor: for programs
        that are not ours. A child without one must watch its standard input, a pipe, and end at its end.
    ready: asked every 0.1 s, in a thread of the child's, until it is True; what it raises counts as not yet.
        None: ready as soon as it runs.
    ready_within: seconds; a process that is not ready by then is ended, and counts as failed.
    stop_signal, stop_grace: what ends it in order, and the seconds after which it is killed.
    left_grace: seconds in which its own children may end after a process of the child's has ended unasked, before they
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
    """A child now. pid: the command's own; log_file: where its output goes."""

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
    """Why `Supervisor.wait` returned: a signal, a child that was given up, or neither: request_stop()."""

    signal: int | None = None
    failed_child: str | None = None


class Supervisor:
    """The children of one FOREBAY_HOME. Its methods may be called from any thread.

        with Supervisor(home) as supervisor, supervisor.stopping_on_signals():
            supervisor.start([postgres])
            ...                                     # what needs the server and no more
            supervisor.start([code_server, webserver, daemon])
            supervisor.wait()

    Entering takes the lock and ends what an earlier supervisor left (raises SupervisorRunningError); leaving
    stops all. on_event: called for each event, one at a time, from the children's threads; it must not call
    start() or stop().
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
        """Start children together, after all that were started before; return when each is ready.

        Raises ChildNotReadyError (the others go on: leave or stop() the supervisor), and StopRequestedError
        where a stop was asked for meanwhile.
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
        """Wait until a stop is asked for or a child is given up; None: neither within timeout seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._wake:
            while self._reason is None:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return None
                # Bounded, since a signal's handler runs in this very thread and can't notify it.
                self._wake.wait(0.2 if left is None else min(left, 0.2))
            return self._reason

    def request_stop(self, reason: StopReason | None = None) -> None:
        """Make wait() return and start() give up. Stops nothing by itself."""
        # No lock: this is called from signal handlers too, whose thread may hold it.
        self._reason = self._reason or reason or StopReason()

    def stop(self, *, at_once: bool = False) -> None:
        """Stop all children, the last started first, and return when none of their processes is left.

        at_once: kill; also makes a stop() that is under way in another thread do so.
        """
        self.request_stop()
        if at_once:
            self._at_once.set()
        for stage in reversed(self._stages):
            started = [runner for runner in reversed(stage) if runner.ident is not None]
            for runner in started:
                runner.request_stop()
            for runner in started:
                # In slices: a signal that another thread takes runs its handler only when this one next wakes.
                while runner.is_alive():
                    runner.join(_POLL_SECONDS)

    @contextlib.contextmanager
    def stopping_on_signals(self) -> Iterator[None]:
        """Let SIGINT, SIGTERM and SIGHUP ask for a stop, and the second of them for one at once.

        For the main thread only. Enter it around the supervisor, so that it still holds while that stops.
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
        """All children in the order of their start."""
        return [runner.status() for stage in self._stages for runner in stage]

    def pid(self, name: str) -> int | None:
        """The pid of a child's command now; None: it does not run. Raises KeyError."""
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
                except Exception:  # noqa: BLE001 - a listener must not bring a child down, whatever it raises
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
    """One child: its process after process, in a thread of its own."""

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
        return ChildStatus(self.child.name, self._state, self._pid, self._restarts, self.log_file)

    def run(self) -> None:
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
        """Start the process, see it to its end, and end what it leaves; return how it ended, for people."""
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
            # On a full disk, say: the thread must live to try again.
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
        # Dagster takes seconds more to import without its .pyc files, in each of its processes.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = list(child.command)
        status_read, status_write = os.pipe() if child.guarded else (-1, -1)
        if child.guarded:
            command = [*_guard_command(child), "--status-fd", str(status_write), "--", *command]
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        _roll(self.log_file)
        try:
            with self.log_file.open("ab") as log:
                # A session of its own: a terminal's Ctrl-C is for the supervisor alone, which stops all in
                # order.
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
        """Return when the process has ended (""), or must be ended: why."""
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
        # A guard knows how to end its command.
        process.send_signal(signal.SIGTERM if self.child.guarded else self.child.stop_signal)
        # A guard kills what its command leaves by itself, after the same grace: it must not be killed before.
        deadline = time.monotonic() + self.child.stop_grace + (5 if self.child.guarded else 0)
        hurried = False
        while process.poll() is None and time.monotonic() < deadline:
            if self._at_once.is_set() and not hurried:
                hurried = True
                deadline = min(deadline, time.monotonic() + (2 if self.child.guarded else 0))
                if self.child.guarded:
                    # The guard's second signal: kill all at once. Two: signals that wait together are one.
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
    """The child runs: a full disk must not make it one that nobody watches. Its token is in the file already."""
    try:
        run_file.write()
    except OSError as error:
        _log.warning("a run file could not be brought up to date", child=run_file.name, error=str(error))


def _guard_command(child: Child) -> list[str]:
    # By its path, and without site-packages: it is there in 30 ms, whatever the project's modules load.
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
    """The lock file, held and open; it names the holder."""
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
    """The pid of the supervisor that runs in a home now; None: none does. Takes and makes nothing."""
    try:
        with (home / _LOCK_FILE).open() as file:
            # Shared, and let go at once: two that only ask don't take each other for a supervisor.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        told = (home / _LOCK_FILE).read_text().strip()
        return int(told) if told.isdigit() else None
    return None


def _read_pid(descriptor: int) -> int | None:
    """The pid that a guard tells; None where it could not start its command."""
    with os.fdopen(descriptor, "rb", buffering=0) as pipe:
        # It is there in milliseconds; a machine that swaps may take its time, and only the run file waits for
        # it.
        if not select.select([pipe], [], [], 30)[0]:
            return None
        told = pipe.read(32) or b""
    return int(told) if told.strip().isdigit() else None


def _is_ready(ready: Callable[[], bool]) -> bool:
    try:
        return ready()
    except Exception as error:  # noqa: BLE001 - a check that fails says "not yet", whatever it fails with
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
