"""Run one receiver under one claim: start, restart, pause and stop it.

The driver log has answered the claim before the supervisor is created, so the epoch is valid until the driver log
answers FENCED. From then on the driver log would accept nothing that the supervisor holds: everything stops, and
nothing is drained.

One control thread decides and acts. All other threads (the receiver's, the registrar's, signal handlers) only record a
request (``lifecycle``) and return. Because one thread makes all transitions, restarts, pauses and stops may be
requested in any order:

    Initialized -> Started <-> Stopped        (S01; a restart and a pause go through Stopped)

A graceful end (S04) runs in the order that loses nothing: the rate limit is lifted, the receiver stops and hands over
what it has read, the block generator drains, every stored block is registered, the write-ahead log is closed and
sealed. Only then is the receiver's end reported.

The receiver's own code runs on threads of its own (``receiver_callbacks``). When its ``on_stop`` hangs, the end
continues without it: what was handed over is drained, and anything handed over later is refused. If the receiver was to
start again, the process ends instead, because the code that hangs may still do anything.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.block_path import BlockPath
from receiver_runtime.reporting.receiver_status import UNREACHED
from receiver_runtime.reporting.source_lag import SourceLag
from receiver_runtime.reporting.unfailing_reporter import describe
from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor
from receiver_runtime.supervisor.ending import Ending, report_ending
from receiver_runtime.supervisor.lifecycle import ReceiverLifecycle, SupervisorState
from receiver_runtime.supervisor.receiver_callbacks import ReceiverCallbacks
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.schema.states import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_path.block_handler import BlockHandler
    from receiver_runtime.block_path.dead_letters.letter_replay import LetterReplay
    from receiver_runtime.block_path.load.block_threads import BlockThreads
    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.supervisor.lifecycle import RestartRequest
    from receiver_runtime.supervisor.reading_loop import ReadingLoop
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)

# Bytes per second. A slower disk can't be told apart from one that hangs.
_SLOWEST_DISK_BYTES = 2**20


class ReceiverSupervisor:
    """Supervise one receiver; see the module. Call ``run`` once.

    ``lifecycle`` takes requests, on any thread, and ``block_path`` records. The lifecycle's lock guards the requests
    and the state; everything else here belongs to the control thread.

    Args:
        receiver: not attached yet.
        handler: stores blocks in this epoch's write-ahead log.
        desired_state: what the receiver is to do first.
        rate_limit: the rate that backpressure has set, in records per second.
        threads: for the block generator, if it shares threads with other receivers.
        reading_loop: for the receiver's quiet connections, if shared with other receivers.
        letters: replays dead letters before the receiver starts.
    """

    def __init__(
        self,
        receiver: Receiver,
        context: ReceiverContext,
        handler: BlockHandler,
        *,
        desired_state: DesiredState = DesiredState.RUNNING,
        rate_limit: float | None = None,
        threads: BlockThreads | None = None,
        reading_loop: ReadingLoop | None = None,
        letters: LetterReplay | None = None,
    ) -> None:
        settings = context.settings
        self._letters = letters
        self._receiver = receiver
        self._context = context
        self._settings = settings
        self.status = context.status
        self._reporter = context.reporter
        self._clock = context.clock
        self._backoff = Backoff(
            settings.receiver_restart_delay,
            max(settings.receiver_restart_delay, settings.receiver_max_restart_delay),
        )
        self._paused = False
        self._start_at = 0.0
        self._started_at = 0.0
        self.lifecycle = ReceiverLifecycle(context, desired_state)
        self.source_lag = SourceLag(context.receiver_id, context.clock)
        self.block_path = BlockPath(
            context,
            handler,
            threads=threads,
            rate_limit=rate_limit,
            on_refused=self.lifecycle.refuse,
            on_response=self.lifecycle.apply,
        )
        self._callbacks = ReceiverCallbacks(receiver, context, self.lifecycle, in_flight=self.block_path.in_flight)
        receiver.attach_supervisor(
            AttachedSupervisor(
                context, self.block_path, self.lifecycle, source_lag=self.source_lag, reading_loop=reading_loop
            )
        )

    @property
    def epoch(self) -> int:
        """Return the claim's epoch."""
        return self._context.claim.epoch

    @property
    def progress_limit(self) -> float:
        """Return how many seconds without progress, while the receiver holds data, are too many."""
        return progress_limit(self._settings)

    @property
    def stop_hung(self) -> bool:
        """Return, after the end, whether an ``on_stop`` did not return: the receiver's code may still do anything."""
        return self._callbacks.stop_hung

    def run(self) -> Ending:
        """Start the block generator, then the receiver (S01), unless it is to be paused or stopped; return at its end.

        The calling thread becomes the control thread.
        """
        self.block_path.generator.start()
        if self._letters is not None:
            self._letters.run(self._context, self.block_path, lambda: self.lifecycle.wanted_end is not None)
        try:
            while (ending := self._step()) is None:
                pass
        except BaseException as error:  # noqa: BLE001  logged, and the end all the same
            ending = Ending(ExitCode.FAILED, f"the supervisor failed: {describe(error)}", drained=True, again=True)
            self._log_failure("a supervisor failed", error)
        try:
            ending = self._finish(ending)
        except BaseException as error:  # noqa: BLE001  logged, and reported as the end's reason
            reason = f"{ending.reason}; then the end itself failed: {describe(error)}"
            ending = Ending(ExitCode.FAILED, reason, drained=False, again=True)
            self._log_failure("a supervisor could not end in order", error)
        try:
            report_ending(
                ending,
                self._reporter,
                writer=self.block_path.writer,
                refusal=self.lifecycle.refusal,
                stop_hung=self.stop_hung,
            )
        except BaseException as error:  # noqa: BLE001  logged: the end must come even if it can't be reported
            self._log_failure("a receiver's end could not be reported", error)
        return ending

    def _log_failure(self, message: str, error: BaseException) -> None:
        with suppress(Exception):
            _log.error(message, receiver_id=self._context.receiver_id, exc_info=error)

    def _step(self) -> Ending | None:
        """Wait for the next thing to do and do it; return the ending once one is requested."""
        lifecycle = self.lifecycle
        with lifecycle.changed:
            while True:
                now = self._clock.monotonic()
                if lifecycle.wanted_end is not None:
                    return lifecycle.wanted_end
                if lifecycle.desired is DesiredState.STOPPED:
                    return Ending(ExitCode.STOPPED, "stopped by an operator", drained=True)
                due = self._due(now)
                if callable(due):
                    break
                self._clock.wait_on(lifecycle.changed, due)
        due()
        return None

    def _due(self, now: float) -> Callable[[], None] | float | None:
        """Return what is to be done now, or the seconds until something is; None: nothing is before a request comes."""
        if self.lifecycle.desired is DesiredState.PAUSED:
            return None if self._paused else self._pause
        if self._paused:
            return self._resume
        if self.lifecycle.state is not SupervisorState.STARTED:
            return self._start_receiver if now >= self._start_at else self._start_at - now
        if self.lifecycle.wanted_restart is not None:
            return self._restart
        if not self.status.is_unreached:
            return None
        # A receiver need not say that it is connected.
        wait = self._started_at + self._settings.receiver_healthy_after - now
        return wait if wait > 0 else self.status.report_receiving

    def _start_receiver(self) -> None:
        with self.lifecycle.changed:
            self.lifecycle.wanted_restart = None
            self.status.reset_degradations()
            self.block_path.receiver_starts()
            self._started_at = self._clock.monotonic()
            # Move before on_start runs: it may already ask whether the receiver is started (S02).
            self.lifecycle.move(SupervisorState.STARTED)
        self._callbacks.start()

    def _stop_receiver(self, *, for_a_pause: bool = False) -> bool:
        """Move from Started to Stopped (S03); do nothing in another state. Return False if the receiver hangs in it.

        A receiver that keeps its address in a pause has something to do in another state too.
        """
        pausing = for_a_pause and self._receiver.keeps_address
        with self.lifecycle.changed:
            was_started = self.lifecycle.state is SupervisorState.STARTED
            if not was_started and not pausing and not self._callbacks.address_kept:
                return True
            if was_started:
                self.lifecycle.move(SupervisorState.STOPPED)
            self.lifecycle.wanted_restart = None
        if was_started:
            self.block_path.receiver_stops()
        returned = self._callbacks.stop(was_started=was_started, pausing=pausing)
        with self.lifecycle.changed:
            if self.lifecycle.wanted_end is None:
                self.block_path.limiter.reopen()
        return returned

    def _end_for_another(self, why: str) -> None:
        """End the process, because on_stop hangs and only a new process can start the receiver again."""
        reason = f"on_stop hangs, a new process takes over: {why}"
        self.lifecycle.end(Ending(ExitCode.FAILED, reason, drained=True, again=True))

    def _restart(self) -> None:
        with self.lifecycle.changed:
            restart = self.lifecycle.wanted_restart
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
            reason = f"{limit} restarts in a row did not help: {_sentence(restart)}"
            self.lifecycle.end(Ending(ExitCode.FAILED, reason, drained=True))
            return
        # A source that hangs up once is there again soon.
        if self._backoff.failures:
            self.status.report_degraded(UNREACHED, f"trying again: {_sentence(restart)}")
        delay = self._backoff.next_delay()
        self._start_at = self._clock.monotonic() + (delay if restart.delay is None else restart.delay)
        self._reporter.event(ReceiverEventKind.RESTARTED, restart.message, describe(restart.error))
        self.status.report_reason(f"trying again: {_sentence(restart)}")

    def _pause(self) -> None:
        if not self._stop_receiver(for_a_pause=True):
            self._end_for_another("paused by an operator")
            return
        self._paused = True
        self._reporter.event(ReceiverEventKind.PAUSED, "paused by an operator")
        self._reporter.state(ReceiverState.PAUSED, "paused by an operator")

    def _resume(self) -> None:
        self._paused = False
        self._start_at = 0.0
        self._reporter.event(ReceiverEventKind.RESUMED, "resumed by an operator")
        self._reporter.state(ReceiverState.ACTIVE, "resumed by an operator")

    def _finish(self, ending: Ending) -> Ending:
        lifecycle = self.lifecycle
        lifecycle.end(ending)
        if not ending.drained:
            self.block_path.generator.abort()
        with suppress(Exception):
            _log.info(
                "receiver ends", receiver_id=self._context.receiver_id, reason=ending.reason, drain=ending.drained
            )
        self._stop_receiver()
        # For a receiver that was stopped before, and for its pushes that still wait for permits.
        self.block_path.limiter.close()
        self.block_path.close(drain=ending.drained)
        with lifecycle.changed:
            refused = lifecycle.refusal is not None
            if refused and lifecycle.wanted_end is not None:
                # The driver log refused blocks during the drain.
                ending = lifecycle.wanted_end
        if refused:
            # Wait until each refused block is counted.
            self.block_path.writer.settle()
        return ending


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


def _sentence(restart: RestartRequest) -> str:
    return restart.message if restart.error is None else f"{restart.message} ({describe(restart.error)})"
