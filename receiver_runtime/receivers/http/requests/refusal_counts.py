"""Count the requests that are refused by a sender's fault, by reason, and show them to operators.

A sender that is refused often drops what it could not send, and no one looks at its log. Each reason is an event, which
the reporter repeats with a count once a minute; the sum stands behind the receiver's reason until there was no refusal
for ten minutes. This module never decides whether a request is refused. For one thread.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.requests.refusals import RefusedError
from tracker_store.receivers.receivers import REFUSALS_SHOWN_SECONDS, refused_requests

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

    from receiver_runtime.receivers.http.requests.route import Refused
    from receiver_runtime.supervisor.receiver import Receiver

_SHOW_SECONDS = 5.0  # how often a new sum is shown, at most
_MOST_REASONS = 100
_OTHER = "other reasons"
_LONGEST = 100  # characters of a reason: a path may have any length
#: From here on the fault is not the sender's.
_SERVER_ERRORS = 500
_NOT_FOUND = (404, 405)


class RefusalCounts:
    """See the module."""

    def __init__(self, receiver: Receiver, loop: AbstractEventLoop) -> None:
        self._receiver = receiver
        self._loop = loop
        self._counts: Counter[str] = Counter()
        self._timer: TimerHandle | None = None
        self._newest = 0.0

    def count(self, refused: Refused, path: str) -> None:
        """Count a refused request to this path; pass over what its sender can't help."""
        if refused.status >= _SERVER_ERRORS:
            return
        about = path if refused.status in _NOT_FOUND else refused.detail.partition(":")[0]
        reason = f"{refused.status} {about[:_LONGEST]}"
        if reason not in self._counts and len(self._counts) >= _MOST_REASONS:
            reason = _OTHER
        self._counts[reason] += 1
        self._newest = self._loop.time()
        self._receiver.report_error(f"requests were refused: {reason}", RefusedError(refused))
        if self._timer is None:
            self._show()

    def close(self) -> None:
        """Show nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._receiver.report_note("requests", None)

    def _show(self) -> None:
        left = self._newest + REFUSALS_SHOWN_SECONDS - self._loop.time()
        if left <= 0:
            self._counts.clear()
            self._timer = None
            self._receiver.report_note("requests", None)
            return
        self._timer = self._loop.call_later(min(_SHOW_SECONDS, left), self._show)
        [(most, number)] = self._counts.most_common(1)
        total = self._counts.total()
        self._receiver.report_note("requests", refused_requests(total, most, number))
