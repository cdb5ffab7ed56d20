"""Keep the agent's reports of receivers for the driver log, in order, while it is unavailable."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tracker_store.receivers.receivers import report_event, set_receiver_state
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

#: How many reports are kept; then the oldest are dropped.
MAX_REPORTS = 1000


class PendingReports:
    """Hold reports until ``write``."""

    def __init__(self) -> None:
        self._reports: deque[Callable[[sa.Connection], object]] = deque(maxlen=MAX_REPORTS)

    def event(self, receiver_id: int, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        """Report an event."""
        self._reports.append(
            lambda connection: report_event(
                connection, receiver_id=receiver_id, epoch=0, kind=kind, message=message, detail=detail
            )
        )

    def failed(self, receiver_id: int, assignment: int, reason: str) -> None:
        """Report that a receiver is FAILED."""
        # Before the state, so that a reader of that state finds the cause in the history.
        self.event(receiver_id, ReceiverEventKind.FAILED, reason)
        self._reports.append(
            lambda connection: set_receiver_state(
                connection, receiver_id=receiver_id, assignment=assignment, state=ReceiverState.FAILED, reason=reason
            )
        )

    def write(self, connection: sa.Connection) -> None:
        """Write what is kept. What raises stays, with all that follows it."""
        while self._reports:
            self._reports[0](connection)
            self._reports.popleft()
