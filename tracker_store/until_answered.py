"""Calls on a driver log that may be away: one function that makes a call until it is answered.

Only for calls that change nothing when they are repeated. How long to wait, whom to tell and when to give up is the
caller's to say: the data plane waits until its process ends, a batch for two minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tracker_store.errors import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Callable

Answer = TypeVar("Answer")


def until_answered(
    call: Callable[[], Answer],
    *,
    delay: Callable[[], float],
    on_failure: Callable[[Exception, float], None],
    pause: Callable[[float], None],
) -> Answer:
    """Make a call, again and again while the driver log is away; return the answer.

    Args:
        delay: how long to wait now, in seconds; asked after each failure.
        on_failure: given each failure and the delay; what it raises ends the calls.
        pause: waits; what it raises ends them too.

    Raises:
        Exception: what the driver log refuses for good.
    """
    while True:
        try:
            return call()
        except TRANSIENT as error:
            seconds = delay()
            on_failure(error, seconds)
        pause(seconds)
