"""Let a command that follows something outlast an outage of the driver log: it waits, with growing pauses.

Owns the pauses and the patience. It never hides an error: it prints the first of an outage, and raises the last.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.cli.terminal.console import Console

FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 10.0
_PATIENCE_SECONDS = 600.0  # how long to wait for a driver log that is unavailable


class TerminalOutage:
    """Count how long the driver log has been unavailable. For one thread."""

    def __init__(self, console: Console) -> None:
        """Begin without an outage; report the next one on `console`."""
        self._console = console
        self._pause = FIRST_PAUSE_SECONDS
        self._since: float | None = None

    def over(self) -> None:
        """Say that the driver log has answered."""
        self._pause, self._since = FIRST_PAUSE_SECONDS, None

    def wait(self, error: Exception) -> None:
        """Return when it is time to try again. Raises `error` if the outage has lasted for too long."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._console.print(f"trying again: {error}", style="yellow", markup=False)
        if now - self._since > _PATIENCE_SECONDS:
            raise error
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)
