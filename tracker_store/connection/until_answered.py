"""Repeat a call on a driver log that may be unavailable until it is answered.

Only for idempotent calls. The caller decides how long to wait, what to report and when to give up: the data plane waits
until its process ends, a batch for two minutes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tracker_store.connection.errors import TRANSIENT

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
    """Make a call, repeatedly while the driver log is unavailable; return the answer.

    Args:
        delay: how long to wait now, in seconds; called after each failure.
        on_failure: called with each failure and the delay; an exception from it ends the calls.
        pause: waits; an exception from it ends the calls too.

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
