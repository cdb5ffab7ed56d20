"""Hold the time limits of requests that wait, so that a server that stops can let all of them pass at once.

This module never answers a request: the code that waits decides what a passed limit means.
"""

from __future__ import annotations

import asyncio


class Deadlines:
    """Hold the time limits that are running. Its methods belong to the server's loop."""

    def __init__(self) -> None:
        self._timeouts: set[asyncio.Timeout] = set()

    def create(self, seconds: float) -> asyncio.Timeout:
        """Return a time limit, to be entered by ``async with`` and then given to ``discard``."""
        timeout = asyncio.timeout(seconds)
        self._timeouts.add(timeout)
        return timeout

    def discard(self, timeout: asyncio.Timeout) -> None:
        """Forget a time limit that has ended."""
        self._timeouts.discard(timeout)

    def expire(self) -> None:
        """Let all time limits pass now."""
        now = asyncio.get_running_loop().time()
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(now)
