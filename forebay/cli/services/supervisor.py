"""Supervise the children of `forebay up` and `forebay demo`: start them in stages, stop them in reverse order.

It owns the processes of one FOREBAY_HOME and leaves none behind: not on Ctrl-C, not when it fails, not when it is
killed. Each child ends when a pipe closes that only the supervisor holds; if a process survives even that, the next
supervisor finds it by the run files. It never imports its children, and never knows what they do.

`child` declares a child, `child_runner` runs one, `supervisor_lock` lets one supervisor run at a time.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Self

import structlog

from forebay.cli.services.child import Child, ChildEvent, ChildEventKind, ChildState, ChildStatus, SupervisorError
from forebay.cli.services.child_runner import ChildRunner
from forebay.cli.services.private_home import make_home_private
from forebay.cli.services.run_files import run_files
from forebay.cli.services.supervisor_lock import take_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from types import FrameType, TracebackType

_log = structlog.get_logger(__name__)

_POLL_SECONDS = 0.05  # between two looks at a thread that is to end
_STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequestedError(SupervisorError):
    """It was told to stop while it was still starting; all services are stopped."""


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

    Entering takes the lock (raises SupervisorError) and ends the processes that an earlier supervisor left;
    leaving stops all children. on_event: called for each event, one at a time, from the children's threads; it must
    not call start() or stop().
    """

    def __init__(self, home: Path, on_event: Callable[[ChildEvent], None] | None = None) -> None:
        self.home = home.expanduser().resolve()
        self._on_event = on_event
        self._events = threading.Lock()
        self._stages: list[list[ChildRunner]] = []
        self._lock_file: IO[str] | None = None
        self._wake = threading.Condition()
        self._reason: StopReason | None = None
        self._at_once = threading.Event()

    def __enter__(self) -> Self:
        make_home_private(self.home)
        with contextlib.ExitStack() as entering:
            self._lock_file = entering.enter_context(take_lock(self.home))
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

        Raises SupervisorError (the other children keep running: leave or stop() the supervisor), and
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
            stage.append(ChildRunner(child, self.home, self._emit, self._at_once))
        self._stages.append(stage)
        for runner in stage:
            runner.start()
        for runner in stage:
            runner.await_ready(self._check_stop)

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

    def restart(self, name: str) -> None:
        """End a child's process in order and start the next one at once; returns before that. Raises KeyError."""
        {runner.child.name: runner for stage in self._stages for runner in stage}[name].request_restart()

    def stops_at_once(self) -> bool:
        """Return whether an immediate stop was requested: by a second signal, or by stop(at_once=True)."""
        return self._at_once.is_set()

    def failed_child(self) -> str | None:
        """Return the first child that failed for good, also after a stop was requested; None if there is none."""
        return next((status.name for status in self.statuses() if status.state is ChildState.FAILED), None)

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

    def _check_stop(self) -> None:
        if self._reason is not None and self._reason.failed_child is None:
            raise StopRequestedError
