"""Take one receiver's reports of its state and its events, until ``status_reporter`` writes them.

Owns no thread and writes nothing: a report is in the receiver's queue when the call returns.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracker_store.blocks.blocks import Claim
    from tracker_store.schema.states import ReceiverEventKind, ReceiverState


@dataclass(frozen=True, slots=True)
class ReceiverEvent:
    """Hold an event of a receiver, before it has a row."""

    kind: ReceiverEventKind
    message: str
    detail: str


@dataclass(slots=True)
class RepeatedEvent:
    """Count an event that is reported again and again."""

    reported_at: float
    event: ReceiverEvent
    unreported: int = 0


@dataclass(slots=True, eq=False)
class ReportQueue:
    """Hold one receiver's reports, under the reporter's lock."""

    claim: Claim
    assignment: int
    process_id: int
    events: deque[ReceiverEvent] = field(default_factory=deque)
    repeated: dict[tuple[ReceiverEventKind, str], RepeatedEvent] = field(default_factory=dict)
    detached: bool = False
    # On the reporter's lock: no report of this receiver waits any more.
    written: threading.Condition = field(default_factory=threading.Condition)
    state: tuple[ReceiverState, str] | None = None
    last_state: tuple[ReceiverState, str] | None = None


class ReceiverReporter:
    """Take one receiver's reports. Every method returns at once; any thread."""

    def __init__(
        self,
        queue: ReportQueue,
        set_state: Callable[[ReportQueue, ReceiverState, str], None],
        add_event: Callable[[ReportQueue, ReceiverEvent], None],
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
        self._add_event(self.queue, ReceiverEvent(kind, message, detail))
