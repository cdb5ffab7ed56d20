"""Pass the clock as a constructor argument: code that waits asks it, so that a test can set the time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading


class Clock:
    """Give the machine's monotonic time, and the only way to wait on it. A test's child of it sets the time."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary point; never goes back."""
        return time.monotonic()

    def wait_on(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait, holding ``condition``, until it is notified or ``seconds`` have passed (None: until notified).

        May return early without a reason, so the caller checks again.
        """
        if seconds is None or seconds > 0:
            condition.wait(seconds)
