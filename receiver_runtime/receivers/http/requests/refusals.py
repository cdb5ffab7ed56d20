"""Define the error that refuses a request, and when its sender may send the request again.

This module never decides whether a request is refused.
"""

from __future__ import annotations

from receiver_runtime.receivers.http.requests.pushed import LONGEST_DETAIL
from receiver_runtime.receivers.http.requests.route import Refused
from tracker_store.long_texts import shortened

#: Seconds until a sender tries again, where the reason passes by itself: a full buffer, a receiver that restarts.
RETRY_SECONDS = 1
#: Seconds until a sender tries again while the driver log does not answer: an outage takes longer.
AWAY_RETRY_SECONDS = 5
#: Seconds until a sender tries again while a person has paused the receiver: that lasts for minutes.
PAUSED_RETRY_SECONDS = 10


class RefusedError(Exception):
    """Refuse a request. ``refused`` holds the answer's status, detail and headers."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail)
        self.refused = refused


def release(error: BaseException) -> None:
    """Drop the frames of an error that is answered, and of its causes: they hold the request's body.

    A future keeps its error, and the frame that waited for the future keeps both: a circle, which would keep the body
    until the next full garbage collection. Each way out of a request ends here.
    """
    left, seen = [error], {error}
    while left:
        one = left.pop()
        one.__traceback__ = None
        more = {cause for cause in (one.__cause__, one.__context__) if cause is not None} - seen
        left += more
        seen |= more


def refusal(status: int, detail: str, *, retry_after: int | None = None, **headers: str) -> RefusedError:
    """Return the error to raise for a request that is refused.

    Args:
        status: of the answer.
        detail: what is wrong, with the value, and what to do.
        retry_after: seconds until the sender may send the request again, where that helps.
        headers: more headers of the answer, with underscores in place of hyphens.
    """
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return RefusedError(Refused(status, shortened(detail, LONGEST_DETAIL), retry_after, named))
