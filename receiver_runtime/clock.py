"""The clock as a constructor argument: what waits for time to pass asks it, so that a test can move the hands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import threading


class Clock(Protocol):
    """A monotonic clock and the only way to wait on it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""
        ...

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait, holding ``condition``, until it is notified or ``seconds`` have passed (None: until notified).

        May return early for no reason: the caller looks again.
        """
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary point; never goes back."""
        return time.monotonic()

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait, holding ``condition``, until it is notified or ``seconds`` have passed (None: until notified)."""
        if seconds is None or seconds > 0:
            condition.wait(seconds)
