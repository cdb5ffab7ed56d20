"""Run one receiver under one claim: start, restart, pause and stop it, and bring its records into registered blocks.

The driver log has answered the claim before the supervisor is created, so the epoch is valid until the driver log
answers FENCED. From then on the driver log would accept nothing that the supervisor holds: everything stops, and
nothing is drained.

One control thread decides and acts. All other threads (the receiver's, the registrar's, signal handlers) only record a
request and return. Because one thread makes all transitions, restarts, pauses and stops may be requested in any order:

    Initialized -> Started <-> Stopped        (S01; a restart and a pause go through Stopped)

A graceful end (S04) runs in the order that loses nothing: the rate limit is lifted, the receiver stops and hands over
what it has read, the block generator drains, every stored block is registered, the write-ahead log is closed and
sealed. Only then is the receiver's end reported.

The receiver's own code runs on threads of its own. An ``on_start`` that blocks is reported and left running. An
``on_stop`` that hangs is reported, and the end continues without it: what was handed over is drained, and anything
handed over later is refused. If the receiver was to start again, the process ends instead, because the code that hangs
may still do anything.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.block_path import BlockPath
from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter, describe
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.exit_codes import ExitCode
from receiver_runtime.watching.progress import Progress
from receiver_runtime.watching.receiver_calls import WatchedCall, wait_for_calls
from tracker_store.connection.errors import (
    ReceiverFencedError,
    SequenceGapError,
    ServerChangedError,
)
from tracker_store.receivers.receivers import DEGRADED, HINDERED
from tracker_store.schema.states import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from receiver_runtime.block_path.block_handler import BlockHandler
    from receiver_runtime.block_path.block_threads import BlockThreads
    from receiver_runtime.block_path.registrar import Registrar
    from receiver_runtime.reporting.driver_log import DeadLetterRows, KnownKeys, SourcePositions
    from receiver_runtime.reporting.status_reporter import Reporter
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.supervisor.reading_loop import ReadingLoop
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Claim, Steering

_log = structlog.get_logger(__name__)


# Bytes per second. A slower disk can't be told apart from one that hangs.
_SLOWEST_DISK_BYTES = 2**20
# The hindrance "no progress for a long time". The block path reports the other hindrances, those of blocks.
_PROGRESS = "make progress"
_UNREACHED = "unreached"  # the degradation of a receiver that has restarted several times in a row


class SupervisorState(StrEnum):
    """Name the original's three states (S01)."""

    INITIALIZED = "Initialized"
    STARTED = "Started"
    STOPPED = "Stopped"


TRANSITIONS: Mapping[SupervisorState, frozenset[SupervisorState]] = {
    SupervisorState.INITIALIZED: frozenset({SupervisorState.STARTED}),
    SupervisorState.STARTED: frozenset({SupervisorState.STOPPED}),
    SupervisorState.STOPPED: frozenset({SupervisorState.STARTED}),
}


class SupervisorStateError(RuntimeError):
    """No transition joins the two states between which a supervisor moved: this is a bug, please report it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Hold how and why a receiver ended.

    ``drained`` says whether everything that was handed over is in registered blocks. ``again`` says that a receiver
    with FAILED does not stay failed: the agent starts another process. ``moved`` says that a newer assignment ended it,
    and not a refusal.
    """

    exit_code: ExitCode
    reason: str
    drained: bool
    again: bool = False
    moved: bool = False


@dataclass(frozen=True, slots=True)
class _PendingRestart:
    message: str
    error: BaseException | None
    delay: float | None


class ReceiverSupervisor:
    """Supervise one receiver; see the module.

    Call ``start`` or ``run`` once, ``stop`` any number of times, and ``await_termination`` to wait for the end.

    Args:
        receiver: not attached yet.
        stream_id: returned by ``Receiver.stream_id``.
        stream_name: for receivers whose senders name the stream.
        claim: already answered; the first block takes the sequence after its marker.
        assignment: the assignment under which the receiver was claimed.
        handler: stores blocks in this epoch's write-ahead log.
        registrar: started by its owner.
        driver_log: records the rows of dead letters.
        positions: the positions of the source's partitions, for a source that has them.
        keys: the keys of the stream's records, for a source that has them.
        reporter: reports for this receiver and epoch.
        threads: for the block generator, if it shares threads with other receivers.
        reading_loop: for the receiver's quiet connections, if shared with other receivers.
        progress: this receiver's progress, if others count in it too.
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
        self._clock = clock or Clock()
        self._schema = receiver.record_schema
        self._backoff = Backoff(
            settings.receiver_restart_delay,
            max(settings.receiver_restart_delay, settings.receiver_max_restart_delay),
        )

        # Only the control thread uses these: the newest on_start, and whether it gave up waiting for an on_stop.
        self._on_start: WatchedCall | None = None
        self._stop_hung = False
        # Whether the receiver is paused and keeps its address: on_start or on_stop is to follow.
        self._address_kept = False

        # Guards everything below. Only the control thread moves the state.
        self._changed = threading.Condition()
        self._state = SupervisorState.INITIALIZED
        self._desired = desired_state
        self._paused = False
        self._start_at = 0.0
        self._started_at = 0.0
        self._wanted_restart: _PendingRestart | None = None
        self._wanted_end: Ending | None = None
        # Why the driver log accepts nothing more of this epoch, and how the receiver ended.
        self._refusal: BaseException | None = None
        self._ending: Ending | None = None
        # What keeps blocks from being registered, and why. While it holds anything, operators see that as the reason.
        self._hindrances: dict[str, str] = {}
        # What of the source is not received, and why; operators see it unless blocks are hindered.
        self._degradations: dict[str, str] = {}
        self._notes: dict[str, str] = {}
        self._reason = "receiving"

        # Last, because a heartbeat may steer the supervisor at once.
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
        """Return the current state."""
        with self._changed:
            return self._state

    @property
    def epoch(self) -> int:
        """Return the claim's epoch."""
        return self._claim.epoch

    @property
    def stop_hung(self) -> bool:
        """Return, after the end, whether an ``on_stop`` did not return: the receiver's code may still do anything."""
        return self._stop_hung

    @property
    def progress_limit(self) -> float:
        """Return how many seconds without progress, while the receiver holds data, are too many."""
        return progress_limit(self._settings)

    def report_no_progress(self, seconds: float, why: str) -> None:
        """Show operators that nothing gets stored or registered, and why. The watchdog calls it; receiving goes on."""
        self._hinder(_PROGRESS, f"{HINDERED}: nothing stored or registered for {seconds:g} s: {why}")
        self._reporter.event(
            ReceiverEventKind.ERROR, "data is held and nothing of it could be stored or registered, trying on", why
        )

    def report_progress(self) -> None:
        """Stop showing a lack of progress: the receiver makes progress again."""
        self._clear(_PROGRESS)

    def start(self) -> None:
        """Do as ``run`` on a thread of its own; return at once."""
        self.block_path.generator.start()
        threading.Thread(target=self._run, name=f"receiver {self._claim.receiver_id} supervisor", daemon=True).start()

    def run(self) -> Ending:
        """Start the block generator, then the receiver (S01), unless it is to be paused or stopped; return at its end.

        The calling thread becomes the control thread.
        """
        self.block_path.generator.start()
        return self._run()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Ask for a drained end; return at once (S04). The first reason given counts."""
        code = ExitCode.STOPPED if error is None else ExitCode.FAILED
        self.end(Ending(code, message if error is None else f"{message}: {error}", drained=True))

    def end(self, ending: Ending) -> None:
        """Ask for this end; ``drained`` says whether to drain. Return at once."""
        with self._changed:
            self._wanted_end = ending if self._wanted_end is None else self._wanted_end
            self._changed.notify_all()

    def await_termination(self, timeout: float | None = None) -> Ending | None:
        """Wait for the end for at most ``timeout`` seconds; return None if it has not come."""
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
        """Return the stream's id."""
        return self._stream_id

    @property
    def stream_name(self) -> str:
        """Return the stream's name, as its senders may give it; empty if it is not known."""
        return self._stream_name

    @property
    def receiver_id(self) -> int:
        """Return the receiver's id, which is the same after every restart and on every host."""
        return self._claim.receiver_id

    @property
    def reading_loop(self) -> ReadingLoop | None:
        """Return what reads from quiet connections for all receivers of the process, or None."""
        return self._reading_loop

    @property
    def settings(self) -> ReceiverSettings:
        """Return this receiver's settings."""
        return self._settings

    @property
    def record_schema(self) -> pa.Schema:
        """Return the schema of the blocks."""
        return self._schema

    def is_started(self) -> bool:
        """Return whether the state is Started (R04)."""
        return self.state is SupervisorState.STARTED

    def is_stopped(self) -> bool:
        """Return whether the state is Stopped (R04)."""
        return self.state is SupervisorState.STOPPED

    def report_connected(self, where: str) -> None:
        """Report that the receiver is connected to its source."""
        self._reporter.event(ReceiverEventKind.CONNECTED, f"connected to {where}")
        self._say(f"connected to {where}", reached=True)

    def report_listening(self, where: str) -> None:
        """Report that the source's senders can connect."""
        self._reporter.event(ReceiverEventKind.CONNECTED, f"listening on {where}")
        self._say(f"listening on {where}", reached=True)

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """Report an ERROR event; receiving goes on (R03)."""
        self._reporter.error(message, error)

    def report_degraded(self, what: str, reason: str | None) -> None:
        """Show that something of the source is not received, or no longer (None)."""
        self._change(self._degradations, what, reason)

    def report_note(self, what: str, text: str | None) -> None:
        """Show a text behind the reason, or no longer (None)."""
        self._change(self._notes, what, text)

    def restart_receiver(self, message: str, error: BaseException | None, delay: float | None) -> None:
        """Ask for a restart; return at once (R03, S05). Ignored unless Started, or if one is requested already."""
        with self._changed:
            if self._state is SupervisorState.STARTED and self._wanted_restart is None:
                self._wanted_restart = _PendingRestart(message, error, delay)
                self._changed.notify_all()

    # -- the block path's side (BlockPathListener; any thread: leave a wish, return) ----------------------------------

    def on_refused(self, error: BaseException) -> None:
        """End without draining: the driver log accepts nothing more of this epoch."""
        with self._changed:
            if self._refusal is not None:
                return
            self._refusal = error
            code = ExitCode.FENCED if isinstance(error, ReceiverFencedError) else ExitCode.FAILED
            # This replaces an end that was to drain: the driver log would accept nothing of what is drained.
            self._wanted_end = Ending(code, str(error), drained=False, again=code is ExitCode.FAILED)
            self._changed.notify_all()

    def on_hindered(self, what: str, reason: str | None) -> str:
        """Show operators what hinders blocks, or that it no longer does (None). Return the reason shown before."""
        if reason is None:
            return self._clear(what)
        self._hinder(what, reason)
        return ""

    def _on_steering(self, steering: Steering) -> None:
        with self._changed:
            if self._desired is not steering.desired_state:
                self._desired = steering.desired_state
                self._changed.notify_all()
        if None not in (steering.server, self._claim.server) and steering.server != self._claim.server:
            # Blocks that the new server lacks are refused, and what this process holds is registered or salvaged.
            error = ServerChangedError(
                f"the claim of epoch {self.epoch} was answered by {self._claim.server}, and now {steering.server} "
                "answers (system identifier/timeline)"
            )
            self.end(Ending(ExitCode.FAILED, str(error), drained=True, again=True))
        if steering.assignment > self._assignment:
            reason = f"moved: assignment {steering.assignment} replaces ours"
            self.end(Ending(ExitCode.FENCED, reason, drained=True, moved=True))

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
        except BaseException as error:  # noqa: BLE001  logged, and reported as the end's reason
            # A thread that waits for the end must get one.
            reason = f"{ending.reason}; then the end itself failed: {describe(error)}"
            ending = Ending(ExitCode.FAILED, reason, drained=False, again=True)
            self._log_failure("a supervisor could not end in order", error)
        try:
            self._tell(ending)
        except BaseException as error:  # noqa: BLE001  logged: the end must come even if it can't be reported
            self._log_failure("a receiver's end could not be told", error)
        with self._changed:
            self._ending = ending
            self._changed.notify_all()
        return ending

    def _log_failure(self, message: str, error: BaseException) -> None:
        with suppress(Exception):
            _log.error(message, receiver_id=self._claim.receiver_id, exc_info=error)

    def _step(self) -> Ending | None:
        """Wait for the next thing to do and do it; return the ending once one is requested."""
        with self._changed:
            while True:
                now = self._clock.monotonic()
                if self._wanted_end is not None:
                    return self._wanted_end
                if self._desired is DesiredState.STOPPED:
                    return Ending(ExitCode.STOPPED, "stopped by an operator", drained=True)
                due = self._due(now)
                if callable(due):
                    break
                self._clock.wait_on(self._changed, due)
        due()
        return None

    def _due(self, now: float) -> Callable[[], None] | float | None:
        """Return what is to be done now, or the seconds until something is; None: nothing is before a wish comes."""
        if self._desired is DesiredState.PAUSED:
            return None if self._paused else self._pause
        if self._paused:
            return self._resume
        if self._state is not SupervisorState.STARTED:
            return self._start_receiver if now >= self._start_at else self._start_at - now
        if self._wanted_restart is not None:
            return self._restart
        if _UNREACHED not in self._degradations:
            return None
        # A receiver need not say that it is connected.
        wait = self._started_at + self._settings.receiver_healthy_after - now
        return wait if wait > 0 else self._on_healthy

    def _start_receiver(self) -> None:
        with self._changed:
            self._wanted_restart = None
            # What a receiver said before it was stopped is said again, if it is still so.
            self._degradations = {what: why for what, why in self._degradations.items() if what == _UNREACHED}
            self.block_path.receiver_starts()
            self._started_at = self._clock.monotonic()
            # Move before on_start runs: it may already ask whether the receiver is started (S02).
            self._move(SupervisorState.STARTED)
        self._address_kept = False
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

    def _stop_receiver(self, *, for_a_pause: bool = False) -> bool:
        """Move from Started to Stopped (S03); do nothing in another state. Return False if the receiver hangs in it.

        A receiver that keeps its address in a pause has something to do in another state too.
        """
        pauses = for_a_pause and self._receiver.keeps_address
        with self._changed:
            was_started = self._state is SupervisorState.STARTED
            if not was_started and not pauses and not self._address_kept:
                return True
            if was_started:
                self._move(SupervisorState.STOPPED)
            self._wanted_restart = None
        self._address_kept = False
        if was_started:
            self.block_path.receiver_stops()
        calls = [self._call(self._receiver.on_pause if pauses else self._receiver.on_stop, self._on_stop_failed)]
        if was_started and self._on_start is not None:
            calls.append(self._on_start)
        returned = wait_for_calls(
            calls, self._settings.receiver_stop_timeout, hand_overs=self.block_path.hand_overs, clock=self._clock
        )
        self._address_kept = pauses and returned
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
        """End the process, because on_stop hangs and only a new process can start the receiver again."""
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
        # A source that hangs up once is there again soon.
        if self._backoff.failures:
            self.report_degraded(_UNREACHED, f"trying again: {_sentence(restart)}")
        delay = self._backoff.next_delay()
        with self._changed:
            self._start_at = self._clock.monotonic() + (delay if restart.delay is None else restart.delay)
        self._reporter.event(ReceiverEventKind.RESTARTED, restart.message, describe(restart.error))
        self._say(f"trying again: {_sentence(restart)}")

    def _on_healthy(self) -> None:
        with self._changed:
            self._reason = "receiving"
        self.report_degraded(_UNREACHED, None)

    def _pause(self) -> None:
        if not self._stop_receiver(for_a_pause=True):
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
        # For a receiver that was stopped before, and for its pushes that still wait for permits.
        self.block_path.limiter.close()
        if ending.drained:
            self.block_path.drain()
        self.block_path.close()
        with self._changed:
            refused = self._refusal is not None
            if refused and self._wanted_end is not None:
                # The driver log refused blocks during the drain.
                ending = self._wanted_end
        if refused:
            # Wait until each refused block is counted.
            self.block_path.settle()
        return ending

    def _tell(self, ending: Ending) -> None:
        match ending.exit_code:
            case ExitCode.FENCED if ending.moved and not self._stop_hung:
                # The driver log has refused nothing.
                self._reporter.event(ReceiverEventKind.STOPPED, "stopped, everything read is registered", ending.reason)
            case ExitCode.FENCED:
                self._reporter.event(
                    ReceiverEventKind.FENCED, "another process holds the receiver", f"{ending.reason}{self._held()}"
                )
            case ExitCode.FAILED if ending.again:
                # A new process claims the receiver and goes on, so the receiver does not become FAILED.
                what, detail = "this process ends, another one claims the receiver", ending.reason
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

    def _say(self, reason: str, *, reached: bool = False) -> None:
        with self._changed:
            self._reason = reason
            if reached:
                self._degradations.pop(_UNREACHED, None)
            shown = None if self._hindrances else self._calm_reason()
        if shown is not None:
            self._reporter.reason(shown)

    def _change(self, of_these: dict[str, str], what: str, text: str | None) -> None:
        with self._changed:
            if of_these.get(what) == text:
                return
            if text is None:
                del of_these[what]
            else:
                of_these[what] = text
            shown = None if self._hindrances else self._calm_reason()
        if shown is not None:
            self._reporter.reason(shown)

    def _calm_reason(self) -> str:
        """Return what operators see while no block is hindered."""
        degraded = next(iter(self._degradations.values()), None)
        return "; ".join([self._reason if degraded is None else f"{DEGRADED}: {degraded}", *self._notes.values()])

    def _hinder(self, what: str, reason: str) -> None:
        with self._changed:
            self._hindrances[what] = reason
            # A failure that repeats must not hide how long there has been no progress.
            shown = self._hindrances.get(_PROGRESS, reason)
        self._reporter.reason(shown)

    def _clear(self, what: str) -> str:
        """Remove a hindrance, and show the next one, or the reason that it hid. Return the removed one's reason."""
        if not self._hindrances:
            # The common case: this is called for each block that is stored.
            return ""
        with self._changed:
            was = self._hindrances.pop(what, "")
            now = self._hindrances.get(_PROGRESS) or next(iter(self._hindrances.values()), None) or self._calm_reason()
        if was:
            self._reporter.reason(now)
        return was

    def _move(self, to: SupervisorState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise SupervisorStateError(f"{self._state} -> {to}: {SupervisorStateError.__doc__}")
        self._state = to


def progress_limit(settings: ReceiverSettings) -> float:
    """Return how many seconds without progress, while a receiver holds data, are too many."""
    # One write may take the block store's time-out, and so may ending the segment before it. Received data may wait for
    # its block to be cut. A disk has no time-out, and a slow one takes long to write a large block.
    return max(
        settings.progress_timeout,
        2 * settings.block_store_timeout,
        3 * settings.block_interval,
        settings.max_block_bytes / _SLOWEST_DISK_BYTES,
    )


def _sentence(restart: _PendingRestart) -> str:
    return restart.message if restart.error is None else f"{restart.message} ({describe(restart.error)})"
