"""Report changes of the block store's replicas to operators: an event and a line in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tracker_store.blocks.replica_events import replica_back, replica_damaged, replica_lost
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from receiver_runtime.reporting.receiver_reporter import ReceiverReporter

_log = structlog.get_logger(__name__)


class ReplicaReports:
    """Listen to one receiver's block store. Every method returns at once."""

    def __init__(self, reporter: ReceiverReporter, *, receiver_id: int) -> None:
        self._reporter = reporter
        self._receiver_id = receiver_id

    def on_replica_lost(self, name: str, detail: str) -> None:
        """Report a lost replica. Blocks go to the others; the next segment tries this one again."""
        _log.warning("a replica of the block store is lost", receiver_id=self._receiver_id, replica=name, detail=detail)
        self._reporter.event(ReceiverEventKind.ERROR, replica_lost(name), detail)

    def on_replica_back(self, name: str) -> None:
        """Report that a replica is back; `forebay blocks repair` copies what it missed."""
        _log.info("a replica of the block store is back", receiver_id=self._receiver_id, replica=name)
        self._reporter.event(
            ReceiverEventKind.CONNECTED,
            replica_back(name),
            "what it lacks is copied to it by: forebay blocks repair",
        )

    def on_replica_damaged(self, name: str, receiver_id: int, detail: str) -> None:
        """Report a damaged replica. Another replica has the data; `forebay blocks repair` copies it."""
        del receiver_id
        _log.warning("a replica is damaged or lags", receiver_id=self._receiver_id, replica=name, detail=detail)
        self._reporter.event(ReceiverEventKind.ERROR, replica_damaged(name), detail)
