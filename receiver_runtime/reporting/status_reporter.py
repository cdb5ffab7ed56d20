"""Report receivers' states and events in the driver log, for operators, by one thread per process.

Reporting never holds up receiving: a state waits until it can be written (only the newest counts), events wait in a
bounded queue, and repeated events are counted and reported once per interval. The process's own log has the same lines:
a sender of bad requests can fill neither. Each turn writes one report of each receiver that has one, on one connection:
when hundreds of receivers stop together, each has only a few seconds for its last reports.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.reporting.receiver_reporter import ReceiverEvent, ReceiverReporter, RepeatedEvent, ReportQueue
from receiver_runtime.watching.clock import Clock
from tracker_store.connection.errors import TRANSIENT
from tracker_store.receivers.receivers import NewReceiverEvent, report_events, set_receiver_state
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from receiver_runtime.reporting.driver_log import DriverLog
    from tracker_store.blocks.blocks import Claim

_log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0
_MAX_WAITING_EVENTS = 500
# How many kinds of events of a receiver are counted apart within an interval; a kind may name a file or an address, of
# which a sender may make any number.
_MAX_KINDS = 200
_OTHER_KINDS = "more kinds of events than are counted apart"
# The kinds of events that are logged as warnings.
_WARNINGS = frozenset({ReceiverEventKind.ERROR, ReceiverEventKind.BAD_RECORD})
#: Seconds after which the same event of the same receiver is reported again, with its number of repeats.
REPEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Report:
    """Hold one state or event of a receiver, on its way to the driver log."""

    queue: ReportQueue
    what: tuple[ReceiverState, str] | ReceiverEvent

    def row(self) -> NewReceiverEvent:
        """Return the event's row."""
        assert isinstance(self.what, ReceiverEvent)
        claim = self.queue.claim
        return NewReceiverEvent(claim.receiver_id, claim.epoch, self.what.kind, self.what.message, self.what.detail)

    def write(self, connection: sa.Connection) -> None:
        """Write it by a statement of its own."""
        if isinstance(self.what, ReceiverEvent):
            report_events(connection, [self.row()])
            return
        state, reason = self.what
        set_receiver_state(
            connection,
            receiver_id=self.queue.claim.receiver_id,
            assignment=self.queue.assignment,
            state=state,
            reason=reason,
            process_id=self.queue.process_id if state in (ReceiverState.ACTIVE, ReceiverState.PAUSED) else None,
        )


class StatusReporter:
    """Write all receivers' reports; see the module. ``start`` once, ``stop`` once."""

    def __init__(self, driver_log: DriverLog, *, clock: Clock | None = None) -> None:
        self._driver_log = driver_log
        self._clock = clock or Clock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queues: list[ReportQueue] = []
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="status reporter", daemon=True)

    def for_receiver(self, claim: Claim, *, assignment: int, process_id: int) -> ReceiverReporter:
        """Return a reporter for one receiver under one claim."""
        queue = ReportQueue(claim, assignment, process_id, written=threading.Condition(self._lock))
        with self._changed:
            self._queues.append(queue)
        return ReceiverReporter(queue, self._set_state, self._add_event)

    def detach(self, reporter: ReceiverReporter, timeout: float = 5.0) -> None:
        """Write the waiting reports of one receiver, for at most ``timeout`` seconds, and accept no more of them."""
        queue = reporter.queue
        deadline = self._clock.monotonic() + timeout
        with self._changed:
            queue.detached = True
            self._report_repeats(queue, due=False)
            self._changed.notify_all()
            while (
                (queue.state is not None or queue.events)
                and self._thread.is_alive()
                and (left := deadline - self._clock.monotonic()) > 0
            ):
                self._clock.wait_on(queue.written, left)
            if queue in self._queues:
                self._queues.remove(queue)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Write the waiting reports, for at most ``timeout`` seconds, and end."""
        with self._changed:
            self._stop_at = self._clock.monotonic() + timeout
            for queue in self._queues:
                self._report_repeats(queue, due=False)
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout + 1.0)

    def _set_state(self, queue: ReportQueue, state: ReceiverState, reason: str) -> None:
        with self._changed:
            if queue.detached or queue.last_state == (state, reason):
                return
            queue.state = queue.last_state = (state, reason)
            self._changed.notify_all()
        _log.info("receiver state", receiver_id=queue.claim.receiver_id, state=state.value, reason=reason)

    def _add_event(self, queue: ReportQueue, event: ReceiverEvent) -> None:
        now = self._clock.monotonic()
        with self._changed:
            if queue.detached:
                return
            key = (event.kind, event.message)
            if key not in queue.repeated and len(queue.repeated) >= _MAX_KINDS:
                event = ReceiverEvent(event.kind, _OTHER_KINDS, f"{event.message}: {event.detail}")
                key = (event.kind, event.message)
            repeated = queue.repeated.get(key)
            if repeated is not None and now - repeated.reported_at < REPEAT_SECONDS:
                repeated.unreported += 1
                repeated.event = event
                return
            queue.repeated[key] = RepeatedEvent(now, event)
            self._enqueue(queue, event)
        _log_event(queue, event)

    def _enqueue(self, queue: ReportQueue, event: ReceiverEvent) -> None:
        if len(queue.events) < _MAX_WAITING_EVENTS:
            queue.events.append(event)
            self._changed.notify_all()

    def _report_repeats(self, queue: ReportQueue, *, due: bool) -> None:
        """Report events that were repeated since their last report, once the interval is over. The lock is held.

        They are logged with the lock held, once an interval.
        """
        now = self._clock.monotonic()
        for key, repeated in list(queue.repeated.items()):
            if due and now - repeated.reported_at < REPEAT_SECONDS:
                continue
            if repeated.unreported:
                event = repeated.event
                detail = f"{event.detail} ({repeated.unreported} more since the last report)".strip()
                counted = ReceiverEvent(event.kind, event.message, detail)
                self._enqueue(queue, counted)
                with contextlib.suppress(Exception):
                    _log_event(queue, counted)
                repeated.reported_at, repeated.unreported = now, 0
            else:
                del queue.repeated[key]

    def _run(self) -> None:
        while (turn := self._next_turn()) is not None:
            try:
                self._driver_log.once(partial(self._write, turn))
            except TRANSIENT:
                self._pause()
            except BaseException as error:  # noqa: BLE001  the next report may be fine, and all receivers need this thread
                _log_refusal(error)
                for report in turn:
                    self._done(report)

    def _next_turn(self) -> list[_Report] | None:
        """Wait for reports; return the next one of each receiver that has one, or None at the end."""
        with self._changed:
            while True:
                turn: list[_Report] = []
                for queue in self._queues:
                    self._report_repeats(queue, due=True)
                    if queue.state is not None:
                        turn.append(_Report(queue, queue.state))
                    elif queue.events:
                        turn.append(_Report(queue, queue.events[0]))
                if turn:
                    return turn
                if self._stop_at is not None:
                    return None
                self._clock.wait_on(self._changed, REPEAT_SECONDS / 4)

    def _write(self, turn: Sequence[_Report], connection: sa.Connection) -> None:
        """Write the reports of a turn on one connection, the events by one statement. What was written is done."""
        events = [report for report in turn if isinstance(report.what, ReceiverEvent)]
        for report in turn:
            if not isinstance(report.what, ReceiverEvent):
                self._write_alone(report, connection)
        try:
            report_events(connection, [report.row() for report in events])
        except TRANSIENT:
            raise
        except Exception:  # noqa: BLE001  found and logged below
            # One of them was refused, and with it all.
            for report in events:
                self._write_alone(report, connection)
        else:
            for report in events:
                self._done(report)

    def _write_alone(self, report: _Report, connection: sa.Connection) -> None:
        """Write one report; one that the driver log refuses is logged and left out."""
        try:
            report.write(connection)
        except TRANSIENT:
            raise
        except Exception as error:  # noqa: BLE001  the next report may be fine
            _log_refusal(error)
        self._done(report)

    def _done(self, report: _Report) -> None:
        queue, what = report.queue, report.what
        with self._changed:
            if queue.state is what:
                queue.state = None
            elif queue.events and queue.events[0] is what:
                queue.events.popleft()
            if queue.state is None and not queue.events:
                queue.written.notify_all()

    def _pause(self) -> None:
        deadline = self._clock.monotonic() + _RETRY_SECONDS
        with self._changed:
            while (left := deadline - self._clock.monotonic()) > 0:
                if self._stop_at is not None and self._clock.monotonic() >= self._stop_at:
                    for queue in self._queues:
                        queue.state = None
                        queue.events.clear()
                    return
                self._clock.wait_on(self._changed, min(left, 0.2) if self._stop_at is not None else left)


def _log_event(queue: ReportQueue, event: ReceiverEvent) -> None:
    write = _log.warning if event.kind in _WARNINGS else _log.info
    write(
        "receiver event",
        receiver_id=queue.claim.receiver_id,
        kind=event.kind.value,
        message=event.message,
        detail=event.detail,
    )


def _log_refusal(error: BaseException) -> None:
    with contextlib.suppress(Exception):
        _log.error("a report was refused by the driver log", exc_info=error)
