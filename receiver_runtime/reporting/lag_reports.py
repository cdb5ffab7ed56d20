"""Write what the process's receivers have not read of their sources, with its heartbeats: what changed, in one call.

This module owns the pace of the writing: a hundredth of the time at most. A report that fails is made again with a
later heartbeat; it must never make a heartbeat fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tracker_store.receivers.source_lag import report_source_lag

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from receiver_runtime.reporting.source_lag import SourceLag
    from receiver_runtime.watching.clock import Clock

_log = structlog.get_logger(__name__)

_TIMES = 100  # the pause after a report, in times of its duration
_RETRY_SECONDS = 30.0


class LagReports:
    """Write the reports of a process's receivers; only the thread of the heartbeats uses it.

    Args:
        lags: returns those of the receivers that the process has; it must not wait.
    """

    def __init__(self, lags: Callable[[], Sequence[SourceLag]], *, clock: Clock) -> None:
        self._lags = lags
        self._clock = clock
        self._next_at = 0.0

    def write(self, connection: sa.Connection, process_id: int) -> None:
        """Write what has changed, if it is time to."""
        began = self._clock.monotonic()
        if began < self._next_at:
            return
        changed = [(lag, report) for lag in self._lags() if (report := lag.changes()) is not None]
        if not changed:
            return
        try:
            recorded = report_source_lag(connection, process_id=process_id, reports=[report for _, report in changed])
        except Exception as error:  # noqa: BLE001  logged; the heartbeat was answered
            _log.warning("what sources have was not recorded, trying again", error=str(error))
            self._next_at = began + _RETRY_SECONDS
            return
        for lag, report in changed:
            if report.receiver_id in recorded:
                lag.note_written(report)
        ended = self._clock.monotonic()
        self._next_at = ended + _TIMES * (ended - began)
