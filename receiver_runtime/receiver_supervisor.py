"""Runs one receiver under one claim: starts, restarts, pauses, stops it, and brings its records into registered blocks.

Authority: the claim was answered before this is made, so the epoch is ours until the driver log says FENCED. From then
on nothing that is held here would be accepted: everything stops, nothing is drained.

One control thread decides and acts; everybody else (the receiver's threads, the registrar's, signals) only leaves a
wish and returns. So the states move on one thread, and no order of restart, pause and stop can surprise it:

    Initialized -> Started <-> Stopped        (S01; a restart and a pause go through Stopped)

At a graceful end (S04, done in the order that loses nothing): the rate limit is lifted, the receiver stops and hands on
what it has read, the block generator drains, every stored block is registered, the write-ahead log is closed and
sealed, and only then is the receiver said to have ended.

The receiver's own code runs on threads of its own. An ``on_start`` that blocks is reported and left to run; an
``on_stop`` that hangs is reported, and the end goes on without it: what was handed over is drained, and what is handed
over from then on is refused. Where there was to be another start, the process ends instead: nobody can say what such
a receiver still does.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.backoff import Backoff
from receiver_runtime.block_path import BlockPath
from receiver_runtime.clock import Clock, SystemClock
from receiver_runtime.exit_codes import ExitCode
from receiver_runtime.progress import Progress
from receiver_runtime.receiver_calls import WatchedCall, wait_for_calls
from receiver_runtime.unfailing_reporter import UnfailingReporter, describe
from tracker_store.errors import (
    ReceiverFencedError,
    SequenceGapError,
)
from tracker_store.receivers import HINDERED
from tracker_store.states import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from receiver_runtime.block_handler import BlockHandler
    from receiver_runtime.block_threads import BlockThreads
    from receiver_runtime.driver_log import DeadLetterRows, KnownKeys, SourcePositions
    from receiver_runtime.reading_loop import ReadingLoop
    from receiver_runtime.receiver import Receiver
    from receiver_runtime.registrar import Registrar
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.status_reporter import Reporter
    from tracker_store.blocks import Claim, Steering

_log = structlog.get_logger(__name__)


# In a second; what is slower than that is not told from a disk that hangs.
_SLOWEST_DISK_BYTES = 2**20
# The hindrance of whatever has lasted for long; what hinders blocks is the block path's to say.
_PROGRESS = "make progress"


class SupervisorState(StrEnum):
    """The original's three states (S01)."""

    INITIALIZED = "Initialized"
    STARTED = "Started"
    STOPPED = "Stopped"


TRANSITIONS: Mapping[SupervisorState, frozenset[SupervisorState]] = {
    SupervisorState.INITIALIZED: frozenset({SupervisorState.STARTED}),
    SupervisorState.STARTED: frozenset({SupervisorState.STOPPED}),
    SupervisorState.STOPPED: frozenset({SupervisorState.STARTED}),
}


class SupervisorStateError(RuntimeError):
    """A supervisor moved between two states that no transition joins: this is a bug, please report it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How and why a receiver ended.

    ``drained`` says whether what was handed over is in registered blocks; ``again`` that FAILED is no state to stay in:
    the agent starts another process.
    """

    exit_code: ExitCode
    reason: str
    drained: bool
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Restart:
    message: str
    error: BaseException | None
    delay: float | None


class ReceiverSupervisor:
    """See the module. ``start`` or ``run`` once; ``stop`` any number of times; ``await_termination`` for the end.

    Args:
        receiver: not attached yet.
        stream_id: for ``Receiver.stream_id``.
        stream_name: for receivers whose senders name it.
        claim: answered; the first block takes the sequence after its marker.
        assignment: under which it was claimed.
        handler: of this epoch's write-ahead log.
        registrar: started by its owner.
        driver_log: for the rows of dead letters.
        positions: of its source's partitions, for a source that has such.
        keys: of the stream's records, for a source that has such.
        reporter: of this receiver and epoch.
        threads: for its block generator, where it shares them with other receivers.
        reading_loop: for its quiet connections, likewise.
        progress: of this receiver, where others count in it too.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        stream_id: int,
        claim: Claim,
        assignment: int,
        settings: ReceiverSettings,
        handler: BlockHandler,
        registrar: Registrar,
        driver_log: DeadLetterRows,
        reporter: Reporter,
        positions: SourcePositions | None = None,
        keys: KnownKeys | None = None,
        desired_state: DesiredState = DesiredState.RUNNING,
        rate_limit: float | None = None,
        threads: BlockThreads | None = None,
        reading_loop: ReadingLoop | None = None,
        clock: Clock | None = None,
        stream_name: str = "",
        progress: Progress | None = None,
    ) -> None:
        self._receiver = receiver
        self._stream_id = stream_id
        self._stream_name = stream_name
        self._claim = claim
        self._assignment = assignment
        self._settings = settings
        self._reporter = UnfailingReporter(reporter, receiver_id=claim.receiver_id)
        self._reading_loop = reading_loop
        self._clock = clock or SystemClock()
        self._schema = receiver.record_schema
        self._backoff = Backoff(
            settings.receiver_restart_delay,
            max(settings.receiver_restart_delay, settings.receiver_max_restart_delay),
        )

        # The control thread's alone: the newest on_start, and whether an on_stop was given up.
        self._on_start: WatchedCall | None = None
        self._stop_hung = False

        # Everything below is under this lock; only the control thread moves the state.
        self._changed = threading.Condition()
        self._state = SupervisorState.INITIALIZED
        self._desired = desired_state
        self._paused = False
        self._start_at = 0.0
        self._started_at = 0.0
        self._wanted_restart: _Restart | None = None
        self._wanted_end: Ending | None = None
        # Why nothing more of this epoch is accepted, and the end that this is.
        self._refusal: BaseException | None = None
        self._ending: Ending | None = None
        # What keeps blocks from being registered, and why; it is the reason that operators see, while there is any.
        self._hindrances: dict[str, str] = {}
        self._reason = "receiving"

        # Last: a heartbeat may steer us at once.
        self.block_path = BlockPath(
            self._schema,
            claim=claim,
            settings=settings,
            handler=handler,
            registrar=registrar,
            driver_log=driver_log,
            reporter=self._reporter,
            listener=self,
            on_steering=self._on_steering,
            positions=positions,
            keys=keys,
            rate_limit=rate_limit,
            threads=threads,
            clock=self._clock,
            progress=Progress() if progress is None else progress,
        )
        receiver.attach_supervisor(self)

    # -- the owner's side --------------------------------------------------------------------------------------------

    @property
    def state(self) -> SupervisorState:
        """Where in its life it is."""
        with self._changed:
            return self._state

    @property
    def epoch(self) -> int:
        """Of the claim."""
        return self._claim.epoch

    @property
    def progress_limit(self) -> float:
        """Seconds without progress, while it holds data, that are too many."""
        return progress_limit(self._settings)

    def report_no_progress(self, seconds: float, why: str) -> None:
        """Operators see that it gets nothing done, and why; it goes on by itself (the watchdog, its own thread)."""
        self._hinder(_PROGRESS, f"{HINDERED}: nothing stored or registered for {seconds:g} s: {why}")
        self._reporter.event(
            ReceiverEventKind.ERROR, "data is held and nothing of it could be stored or registered, trying on", why
        )

    def report_progress(self) -> None:
        """It gets on again."""
        self._clear(_PROGRESS)

    def start(self) -> None:
        """As ``run``, on a thread of its own; returns at once."""
        self.block_path.generator.start()
        threading.Thread(target=self._run, name=f"receiver {self._claim.receiver_id} supervisor", daemon=True).start()

    def run(self) -> Ending:
        """Start the block generator, then the receiver (S01), unless it is desired otherwise; returns at its end.

        The caller's thread is the control thread.
        """
        self.block_path.generator.start()
        return self._run()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Ask for the end, drained; returns at once (S04). The first reason given is the one that counts."""
        code = ExitCode.STOPPED if error is None else ExitCode.FAILED
        self.end(Ending(code, message if error is None else f"{message}: {error}", drained=True))

    def end(self, ending: Ending) -> None:
        """Ask for this end; ``drained`` says whether to drain. Returns at once."""
        with self._changed:
            self._wanted_end = ending if self._wanted_end is None else self._wanted_end
            self._changed.notify_all()

    def await_termination(self, timeout: float | None = None) -> Ending | None:
        """Wait for the end, at most ``timeout`` seconds; None when it has not come."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            while self._ending is None:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    return None
                self._clock.wait_on(self._changed, left)
            return self._ending

    # -- the receiver's side (AttachedSupervisor) --------------------------------------------------------------------

    @property
    def stream_id(self) -> int:
        """Of the stream."""
        return self._stream_id

    @property
    def stream_name(self) -> str:
        """Of the stream, as its senders may name it; empty where nobody said."""
        return self._stream_name

    @property
    def receiver_id(self) -> int:
        """Of the receiver, the same after every restart and on every host."""
        return self._claim.receiver_id

    @property
    def reading_loop(self) -> ReadingLoop | None:
        """Who reads from connections on which little comes, where there is one."""
        return self._reading_loop

    @property
    def settings(self) -> ReceiverSettings:
        """Of this receiver."""
        return self._settings

    @property
    def record_schema(self) -> pa.Schema:
        """Of the blocks."""
        return self._schema

    def is_started(self) -> bool:
        """State is Started (R04)."""
        return self.state is SupervisorState.STARTED

    def is_stopped(self) -> bool:
        """State is Stopped (R04)."""
        return self.state is SupervisorState.STOPPED

    def report_connected(self, where: str) -> None:
        """The source is there."""
        self._reporter.event(ReceiverEventKind.CONNECTED, f"connected to {where}")
        self._say(f"connected to {where}")

    def report_listening(self, where: str) -> None:
        """The source's senders may come."""
        self._reporter.event(ReceiverEventKind.CONNECTED, f"listening on {where}")
        self._say(f"listening on {where}")

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """An event ERROR; receiving goes on (R03)."""
        self._reporter.error(message, error)

    def restart_receiver(self, message: str, error: BaseException | None, delay: float | None) -> None:
        """Ask for a restart; returns at once. Ignored unless Started, and while one is asked for (R03, S05)."""
        with self._changed:
            if self._state is SupervisorState.STARTED and self._wanted_restart is None:
                self._wanted_restart = _Restart(message, error, delay)
                self._changed.notify_all()

    # -- the block path's side (BlockPathListener; any thread: leave a wish, return) ----------------------------------

    def on_refused(self, error: BaseException) -> None:
        """Nothing more of this epoch is accepted."""
        with self._changed:
            if self._refusal is not None:
                return
            self._refusal = error
            code = ExitCode.FENCED if isinstance(error, ReceiverFencedError) else ExitCode.FAILED
            # It outranks an end that was to drain: nothing that is drained would be accepted.
            self._wanted_end = Ending(code, str(error), drained=False, again=code is ExitCode.FAILED)
            self._changed.notify_all()

    def on_hindered(self, what: str, reason: str | None) -> str:
        """Show operators what hinders blocks, or what did before; return the reason that was shown for it."""
        if reason is None:
            return self._clear(what)
        self._hinder(what, reason)
        return ""

    def _on_steering(self, steering: Steering) -> None:
        with self._changed:
            if self._desired is not steering.desired_state:
                self._desired = steering.desired_state
                self._changed.notify_all()
        if steering.assignment > self._assignment:
            self.end(Ending(ExitCode.FENCED, f"moved: assignment {steering.assignment} replaces ours", drained=True))

    # -- the control thread ------------------------------------------------------------------------------------------

    def _run(self) -> Ending:
        try:
            while (ending := self._step()) is None:
                pass
        except BaseException as error:  # noqa: BLE001  logged, and the end all the same
            ending = Ending(ExitCode.FAILED, f"the supervisor failed: {describe(error)}", drained=True, again=True)
            self._log_failure("a supervisor failed", error)
        try:
            ending = self._finish(ending)
        except BaseException as error:  # noqa: BLE001  logged, and told as the end's reason
            # Whoever waits for the end must see one.
            reason = f"{ending.reason}; then the end itself failed: {describe(error)}"
            ending = Ending(ExitCode.FAILED, reason, drained=False, again=True)
            self._log_failure("a supervisor could not end in order", error)
        try:
            self._tell(ending)
        except BaseException as error:  # noqa: BLE001  logged: the end must come whether or not it can be told
            self._log_failure("a receiver's end could not be told", error)
        with self._changed:
            self._ending = ending
            self._changed.notify_all()
        return ending

    def _log_failure(self, message: str, error: BaseException) -> None:
        with suppress(Exception):
            _log.error(message, receiver_id=self._claim.receiver_id, exc_info=error)

    def _step(self) -> Ending | None:
        """Wait for the next thing to do and do it; returns the end when it has come."""
        with self._changed:
            while True:
                now = self._clock.monotonic()
                if self._wanted_end is not None:
                    return self._wanted_end
                if self._desired is DesiredState.STOPPED:
                    return Ending(ExitCode.STOPPED, "stopped by an operator", drained=True)
                wait: float | None = None
                if self._desired is DesiredState.PAUSED:
                    if not self._paused:
                        action = self._pause
                        break
                elif self._paused:
                    action = self._resume
                    break
                elif self._state is SupervisorState.STARTED:
                    if self._wanted_restart is not None:
                        action = self._restart
                        break
                elif now >= self._start_at:
                    action = self._start_receiver
                    break
                else:
                    wait = self._start_at - now
                self._clock.wait_on(self._changed, wait)
        action()
        return None

    def _start_receiver(self) -> None:
        with self._changed:
            self._wanted_restart = None
            self.block_path.receiver_starts()
            self._started_at = self._clock.monotonic()
            # Started before on_start runs, which may already ask (S02).
            self._move(SupervisorState.STARTED)
        self._on_start = self._call(self._receiver.on_start, self._on_start_failed)
        if not self._on_start.wait(self._settings.receiver_start_timeout):
            self.report_error(
                f"on_start has not returned after {self._settings.receiver_start_timeout:g} s and is left to run on: "
                "it must not block, start a thread in it"
            )

    def _on_start_failed(self, error: BaseException) -> None:
        self.restart_receiver("Error starting receiver", error, None)

    def _on_stop_failed(self, error: BaseException) -> None:
        self.report_error("Error stopping receiver", error)

    def _call(self, action: Callable[[], None], on_error: Callable[[BaseException], None]) -> WatchedCall:
        name = f"receiver {self._claim.receiver_id} {action.__name__}"
        call = WatchedCall(action, name=name, clock=self._clock, on_error=on_error)
        call.start()
        return call

    def _stop_receiver(self) -> bool:
        """S03: Started goes to Stopped; elsewhere there is nothing to stop. False when the receiver hangs in it."""
        with self._changed:
            if self._state is not SupervisorState.STARTED:
                return True
            self._move(SupervisorState.STOPPED)
            self._wanted_restart = None
        self.block_path.receiver_stops()
        calls = [self._call(self._receiver.on_stop, self._on_stop_failed)]
        if self._on_start is not None:
            calls.append(self._on_start)
        returned = wait_for_calls(
            calls, self._settings.receiver_stop_timeout, hand_overs=self.block_path.hand_overs, clock=self._clock
        )
        if not returned:
            self._stop_hung = True
            self.report_error(
                f"on_stop has not returned after {self._settings.receiver_stop_timeout:g} s, it is waited for no "
                "longer: what was handed over is stored, what the receiver still holds is lost"
            )
        with self._changed:
            if self._wanted_end is None:
                self.block_path.limiter.reopen()
        return returned

    def _end_for_another(self, why: str) -> None:
        """There was to be another start, and the receiver never stopped: only a new process can make one."""
        self.end(Ending(ExitCode.FAILED, f"on_stop hangs, a new process takes over: {why}", drained=True, again=True))

    def _restart(self) -> None:
        with self._changed:
            restart = self._wanted_restart
            healthy = self.block_path.has_accepted or (
                self._clock.monotonic() - self._started_at >= self._settings.receiver_healthy_after
            )
        if restart is None:
            return
        if not self._stop_receiver():
            self._end_for_another(_sentence(restart))
            return
        if healthy:
            self._backoff.reset()
        limit = self._settings.receiver_max_restarts
        if limit and self._backoff.failures >= limit:
            self.end(
                Ending(
                    ExitCode.FAILED,
                    f"{limit} restarts in a row did not help: {_sentence(restart)}",
                    drained=True,
                )
            )
            return
        delay = self._backoff.next_delay()
        with self._changed:
            self._start_at = self._clock.monotonic() + (delay if restart.delay is None else restart.delay)
        self._reporter.event(ReceiverEventKind.RESTARTED, restart.message, describe(restart.error))
        self._say(f"trying again: {_sentence(restart)}")

    def _pause(self) -> None:
        if not self._stop_receiver():
            self._end_for_another("paused by an operator")
            return
        with self._changed:
            self._paused = True
        self._reporter.event(ReceiverEventKind.PAUSED, "paused by an operator")
        self._reporter.state(ReceiverState.PAUSED, "paused by an operator")

    def _resume(self) -> None:
        with self._changed:
            self._paused = False
            self._start_at = 0.0
        self._reporter.event(ReceiverEventKind.RESUMED, "resumed by an operator")
        self._reporter.state(ReceiverState.ACTIVE, "resumed by an operator")

    def _finish(self, ending: Ending) -> Ending:
        with self._changed:
            self._wanted_end = ending if self._wanted_end is None else self._wanted_end
        if not ending.drained:
            self.block_path.abort()
        with suppress(Exception):
            _log.info("receiver ends", receiver_id=self._claim.receiver_id, reason=ending.reason, drain=ending.drained)
        self._stop_receiver()
        # For a receiver that was stopped before, and for pushes of its own that still wait for permits.
        self.block_path.limiter.close()
        if ending.drained:
            self.block_path.drain()
        self.block_path.close()
        with self._changed:
            refused = self._refusal is not None
            if refused and self._wanted_end is not None:
                # Refused while it drained.
                ending = self._wanted_end
        if refused:
            # Until each block is counted.
            self.block_path.settle()
        return ending

    def _tell(self, ending: Ending) -> None:
        match ending.exit_code:
            case ExitCode.FENCED:
                self._reporter.event(
                    ReceiverEventKind.FENCED, "another process holds the receiver", f"{ending.reason}{self._held()}"
                )
            case ExitCode.FAILED if ending.again:
                # A new process claims anew and goes on, so this is no state to stay in.
                what, detail = "this process ends, another claims anew", ending.reason
                if isinstance(self._refusal, SequenceGapError):
                    what = f"the driver log lacks blocks that it had acknowledged: {what}"
                    detail += f" It was acknowledged up to sequence {self.block_path.registered_through}."
                self._reporter.event(ReceiverEventKind.ERROR, what, detail)
            case ExitCode.FAILED:
                self._reporter.state(ReceiverState.FAILED, ending.reason)
                self._reporter.event(ReceiverEventKind.FAILED, "the receiver failed", ending.reason)
            case ExitCode.STOPPED:
                what = "handed over" if self._stop_hung else "read"
                self._reporter.state(ReceiverState.INACTIVE, ending.reason)
                self._reporter.event(
                    ReceiverEventKind.STOPPED, f"stopped, everything {what} is registered", ending.reason
                )

    def _held(self) -> str:
        blocks, records = self.block_path.refused
        if not blocks:
            return ""
        return f"; it held {blocks} blocks with {records} records that are stored and not registered by it"

    def _say(self, reason: str) -> None:
        with self._changed:
            self._reason = reason
            hindered = bool(self._hindrances)
        if not hindered:
            self._reporter.reason(reason)

    def _hinder(self, what: str, reason: str) -> None:
        with self._changed:
            self._hindrances[what] = reason
            # What fails again and again does not hide for how long it has done so.
            shown = self._hindrances.get(_PROGRESS, reason)
        self._reporter.reason(shown)

    def _clear(self, what: str) -> str:
        """A hindrance is gone: show the next one, or the reason that it hid; returns what it was."""
        if not self._hindrances:
            # Asked for each block that is stored.
            return ""
        with self._changed:
            was = self._hindrances.pop(what, "")
            now = self._hindrances.get(_PROGRESS) or next(iter(self._hindrances.values()), self._reason)
        if was:
            self._reporter.reason(now)
        return was

    def _move(self, to: SupervisorState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise SupervisorStateError(f"{self._state} -> {to}: {SupervisorStateError.__doc__}")
        self._state = to


def progress_limit(settings: ReceiverSettings) -> float:
    """Seconds without progress, while a receiver holds data, that are too many."""
    # One write may take the block store's time-out, and so may the end of the segment before it; what has arrived may
    # wait for its block to be cut; a disk has no time-out, and a large block takes a slow one long.
    return max(
        settings.progress_timeout,
        2 * settings.block_store_timeout,
        3 * settings.block_interval,
        settings.max_block_bytes / _SLOWEST_DISK_BYTES,
    )


def _sentence(restart: _Restart) -> str:
    return restart.message if restart.error is None else f"{restart.message} ({describe(restart.error)})"
