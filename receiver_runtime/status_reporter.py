"""Report receivers' states and events in the driver log, for operators, by one thread per process.

Reporting never holds up receiving: a state waits until it can be written (only the newest counts), events wait in a
bounded queue, and repeated events are counted and reported once per interval. The process's own log has everything too.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import structlog

from receiver_runtime.clock import Clock, SystemClock
from tracker_store.errors import TRANSIENT
from tracker_store.receivers import report_event, set_receiver_state
from tracker_store.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from receiver_runtime.driver_log import DriverLog
    from tracker_store.blocks import Claim

_log = structlog.get_logger(__name__)

_RETRY_SECONDS = 1.0
_MAX_WAITING_EVENTS = 500
#: Seconds after which the same event of the same receiver is reported again, with its number of repeats.
REPEAT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Event:
    kind: ReceiverEventKind
    message: str
    detail: str


@dataclass(slots=True)
class _Repeated:
    reported_at: float
    event: _Event
    unreported: int = 0


@dataclass(slots=True, eq=False)
class _Queue:
    """Hold one receiver's reports, under the reporter's lock."""

    claim: Claim
    assignment: int
    process_id: int
    events: deque[_Event] = field(default_factory=deque)
    repeated: dict[tuple[ReceiverEventKind, str], _Repeated] = field(default_factory=dict)
    detached: bool = False
    # On the reporter's lock: no report of this receiver waits any more.
    written: threading.Condition = field(default_factory=threading.Condition)
    state: tuple[ReceiverState, str] | None = None
    last_state: tuple[ReceiverState, str] | None = None


class Reporter(Protocol):
    """Take a receiver's reports from its supervisor. Every method returns at once; any thread."""

    def state(self, state: ReceiverState, reason: str) -> None:
        """Report that the receiver is in this state now, for this reason."""
        ...

    def reason(self, reason: str) -> None:
        """Report a new reason for the same state."""
        ...

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        """Report an event. `message` names the kind of event (repeats are counted by it), `detail` this occurrence."""
        ...


class ReceiverReporter:
    """Take one receiver's reports. Every method returns at once; any thread."""

    def __init__(
        self,
        queue: _Queue,
        set_state: Callable[[_Queue, ReceiverState, str], None],
        add_event: Callable[[_Queue, _Event], None],
    ) -> None:
        self.queue = queue
        self._set_state = set_state
        self._add_event = add_event

    def state(self, state: ReceiverState, reason: str) -> None:
        """Report that the receiver is in this state now, for this reason."""
        self._set_state(self.queue, state, reason)

    def reason(self, reason: str) -> None:
        """Report a new reason for the same state."""
        state = self.queue.last_state
        if state is not None:
            self.state(state[0], reason)

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        """Report an event. ``message`` names its kind, by which repeats are counted, ``detail`` this occurrence."""
        self._add_event(self.queue, _Event(kind, message, detail))


class StatusReporter:
    """Write all receivers' reports; see the module. ``start`` once, ``stop`` once."""

    def __init__(self, driver_log: DriverLog, *, clock: Clock | None = None) -> None:
        self._driver_log = driver_log
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._queues: list[_Queue] = []
        self._stop_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="status reporter", daemon=True)

    def for_receiver(self, claim: Claim, *, assignment: int, process_id: int) -> ReceiverReporter:
        """Return a reporter for one receiver under one claim."""
        queue = _Queue(claim, assignment, process_id, written=threading.Condition(self._lock))
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

    def _set_state(self, queue: _Queue, state: ReceiverState, reason: str) -> None:
        with self._changed:
            if queue.detached or queue.last_state == (state, reason):
                return
            queue.state = queue.last_state = (state, reason)
            self._changed.notify_all()
        _log.info("receiver state", receiver_id=queue.claim.receiver_id, state=state.value, reason=reason)

    def _add_event(self, queue: _Queue, event: _Event) -> None:
        now = self._clock.monotonic()
        with self._changed:
            if queue.detached:
                return
            key = (event.kind, event.message)
            repeated = queue.repeated.get(key)
            if repeated is not None and now - repeated.reported_at < REPEAT_SECONDS:
                repeated.unreported += 1
                repeated.event = event
                return
            queue.repeated[key] = _Repeated(now, event)
            self._enqueue(queue, event)
        _log.info(
            "receiver event",
            receiver_id=queue.claim.receiver_id,
            kind=event.kind.value,
            message=event.message,
            detail=event.detail,
        )

    def _enqueue(self, queue: _Queue, event: _Event) -> None:
        if len(queue.events) < _MAX_WAITING_EVENTS:
            queue.events.append(event)
            self._changed.notify_all()

    def _report_repeats(self, queue: _Queue, *, due: bool) -> None:
        """Report events that were repeated since their last report, once the interval is over. The lock is held."""
        now = self._clock.monotonic()
        for key, repeated in list(queue.repeated.items()):
            if due and now - repeated.reported_at < REPEAT_SECONDS:
                continue
            if repeated.unreported:
                event = repeated.event
                detail = f"{event.detail} ({repeated.unreported} more since the last report)".strip()
                self._enqueue(queue, _Event(event.kind, event.message, detail))
                repeated.reported_at, repeated.unreported = now, 0
            else:
                del queue.repeated[key]

    def _run(self) -> None:
        while (work := self._next_work()) is not None:
            try:
                self._driver_log.once(work)
            except TRANSIENT:
                self._pause()
            except BaseException as error:  # noqa: BLE001  the next report may be fine, and all receivers need this thread
                self._done()
                with contextlib.suppress(Exception):
                    _log.error("a report was refused by the driver log", exc_info=error)
            else:
                self._done()

    def _next_work(self) -> Callable[[sa.Connection], object] | None:
        with self._changed:
            while True:
                for queue in self._queues:
                    self._report_repeats(queue, due=True)
                    if queue.state is not None:
                        self._current: tuple[_Queue, object] = (queue, queue.state)
                        return _state_statement(queue, *queue.state)
                    if queue.events:
                        self._current = (queue, queue.events[0])
                        return _event_statement(queue, queue.events[0])
                if self._stop_at is not None:
                    return None
                self._clock.wait_on(self._changed, REPEAT_SECONDS / 4)

    def _done(self) -> None:
        with self._changed:
            queue, what = self._current
            if queue.state is what:
                queue.state = None
            elif queue.events and queue.events[0] is what:
                queue.events.popleft()
            if queue in self._queues:
                # Move it to the end, so that one receiver with many reports does not hold up the others' reports.
                self._queues.remove(queue)
                self._queues.append(queue)
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


def _state_statement(queue: _Queue, state: ReceiverState, reason: str) -> Callable[[sa.Connection], object]:
    return lambda connection: set_receiver_state(
        connection,
        receiver_id=queue.claim.receiver_id,
        assignment=queue.assignment,
        state=state,
        reason=reason,
        process_id=queue.process_id if state in (ReceiverState.ACTIVE, ReceiverState.PAUSED) else None,
    )


def _event_statement(queue: _Queue, event: _Event) -> Callable[[sa.Connection], object]:
    return lambda connection: report_event(
        connection,
        receiver_id=queue.claim.receiver_id,
        epoch=queue.claim.epoch,
        kind=event.kind,
        message=event.message,
        detail=event.detail,
    )
