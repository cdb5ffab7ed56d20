"""Show operators why a receiver is as it is: what hinders its blocks, what of its source is missing, what it says.

Owns which of these texts is shown. It must never change what the receiver does.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tracker_store.connection.errors import DriverLogError, OtherReleaseError
from tracker_store.receivers.receivers import DEGRADED, NOT_STORING
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter

#: The hindrance "no progress for a long time". The others are those of blocks.
PROGRESS = "make progress"
#: The degradation of a receiver that has restarted several times in a row.
UNREACHED = "unreached"


class ReceiverStatus:
    """Hold the status of one receiver under one claim. Every method returns at once; any thread.

    Its lock is also the lock of the receiver's supervisor: what a start does to the status and to the lifecycle is one
    step.
    """

    def __init__(self, reporter: UnfailingReporter, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._reporter = reporter
        self._now = now
        #: Guards everything below.
        self.lock = threading.RLock()
        # What keeps blocks from being registered, and why. While it holds anything, operators see that as the reason.
        self._hindrances: dict[str, str] = {}
        # What of the source is not received, and why; operators see it unless blocks are hindered.
        self._degradations: dict[str, str] = {}
        # Since when each has lasted, whatever else has become its reason meanwhile.
        self._degraded_since: dict[str, datetime] = {}
        self._notes: dict[str, str] = {}
        self._reason = "receiving"

    # -- what the receiver and its supervisor say --------------------------------------------------------------------

    def report_reached(self, how: str) -> None:
        """Report that the source, or its senders, can be reached."""
        self._reporter.event(ReceiverEventKind.CONNECTED, how)
        self.report_reason(how, reached=True)

    def report_reason(self, reason: str, *, reached: bool = False) -> None:
        """Show a reason while nothing is hindered, and nothing of the source is missing."""
        with self.lock:
            self._reason = reason
            if reached:
                self._degradations.pop(UNREACHED, None)
            shown = self._calm_reason()
        if shown is not None:
            self._reporter.reason(shown)

    @property
    def is_unreached(self) -> bool:
        """Return whether the receiver has restarted several times in a row."""
        return UNREACHED in self._degradations

    def report_receiving(self) -> None:
        """Show that the receiver runs for long enough to count as healthy."""
        with self.lock:
            self._reason = "receiving"
        self.report_degraded(UNREACHED, None)

    def report_degraded(self, what: str, reason: str | None) -> None:
        """Show that something of the source is not received, or no longer (None)."""
        with self.lock:
            if what not in self._degradations:
                self._degraded_since[what] = self._now()
            self._change(self._degradations, what, reason)

    def report_note(self, what: str, text: str | None) -> None:
        """Show a text behind the reason, or no longer (None)."""
        self._change(self._notes, what, text)

    def reset_degradations(self) -> None:
        """Forget what the receiver said before it was stopped: it is said again, if it is still so."""
        with self.lock:
            for what in self._degradations.keys() - {UNREACHED}:
                del self._degradations[what]

    # -- what keeps blocks from being registered ---------------------------------------------------------------------

    def hinder(self, what: str, reason: str) -> None:
        """Show what hinders blocks."""
        with self.lock:
            self._hindrances[what] = reason
            # A failure that repeats must not hide how long there has been no progress.
            shown = self._hindrances.get(PROGRESS, reason)
        self._reporter.reason(shown)

    def clear(self, what: str) -> str:
        """Remove a hindrance, and show the next one, or the reason that it hid. Return the removed one's reason."""
        if not self._hindrances:
            # The common case: this is called for each block that is stored.
            return ""
        with self.lock:
            was = self._hindrances.pop(what, "")
            shown = self._hindrances.get(PROGRESS) or next(iter(self._hindrances.values()), None) or self._calm_reason()
        if was and shown is not None:
            self._reporter.reason(shown)
        return was

    def report_no_progress(self, seconds: float, why: str) -> None:
        """Show that nothing gets stored or registered, and why. The watchdog calls it; receiving goes on."""
        self.hinder(PROGRESS, f"{NOT_STORING} for {seconds:g} s: {why}")
        self._reporter.event(
            ReceiverEventKind.ERROR, "data is held and nothing of it could be stored or registered, trying on", why
        )

    def driver_log_unavailable(self, what: str, error: Exception) -> None:
        """Show that ``what`` ("register blocks") has waited for ``REPORT_AFTER`` seconds, and goes on waiting."""
        self.hinder(what, f"the driver log does not {what}, reading stops when the queue is full: {_first_line(error)}")

    def driver_log_available(self, what: str, seconds: float) -> None:
        """Record in the history how long ``what`` had to wait for the driver log, and why."""
        why = self.clear(what)
        self._reporter.event(
            ReceiverEventKind.ERROR, "what was received had to wait for the driver log", f"{seconds:.1f} s: {why}"
        )

    def _change(self, of_these: dict[str, str], what: str, text: str | None) -> None:
        with self.lock:
            if of_these.get(what) == text:
                return
            if text is None:
                del of_these[what]
            else:
                of_these[what] = text
            shown = self._calm_reason()
        if shown is not None:
            self._reporter.reason(shown)

    def _calm_reason(self) -> str | None:
        """Return what operators see while no block is hindered; None if one is. The lock is held."""
        if self._hindrances:
            return None
        what, degraded = next(iter(self._degradations.items()), ("", ""))
        reason = self._reason
        if what:
            reason = f"{DEGRADED}: {degraded} (since {self._degraded_since[what]:%Y-%m-%dT%H:%M:%SZ})"
        return "; ".join([reason, *self._notes.values()])


def _first_line(error: Exception) -> str:
    """Return what the server said, without its hints; if another release migrated the driver log, what to do too."""
    if isinstance(error, OtherReleaseError):
        return str(error)
    said = (error.detail if isinstance(error, DriverLogError) else None) or str(error)
    return said.partition("\n")[0]
