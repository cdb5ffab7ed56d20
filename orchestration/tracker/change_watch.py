"""Decide when a part of the tracker scans the driver log: when what it reads has changed, and now and then.

Owns which counter was seen, and since when a change may not be visible yet. It reads nothing, and never decides that a
scan is unnecessary for longer than `FULL_SCAN_SECONDS`: a change that no trigger counts is found then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracker_store.receivers.changes import Changes

# Longest time between two scans, in seconds.
FULL_SCAN_SECONDS = 30.0
# How long, in seconds, each tick scans again while a transaction that was open at a change has not ended. A longer one,
# most likely of another program in the same cluster, is followed up by the full scans.
FOLLOW_SECONDS = 10.0


class ChangeWatch:
    """Decide when one part of the tracker must scan. For one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start with a scan that is due; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._counter: int | None = None
        self._moved_at = clock()
        # Transactions below this id may have changes that were not visible at the last scan; None: there are none.
        self._open_below: int | None = None
        self._scan_at = clock()

    def is_due(self, counter: int, changes: Changes) -> bool:
        """Return whether to scan now. After the scan call `scanned`: without that, the next tick scans again."""
        now = self._clock()
        due = now >= self._scan_at
        if counter != self._counter:
            self._counter = counter
            self._moved_at = now
            self._open_below = changes.first_unstarted
            due = True
        elif self._open_below is not None:
            ended = changes.oldest_open >= self._open_below
            due = due or ended or now - self._moved_at < FOLLOW_SECONDS
            if ended:
                self._open_below = None
        if due:
            self._scan_at = now
        return due

    def scanned(self, again_in: float | None = None) -> None:
        """Record that the scan was finished; `again_in`: seconds until one is due without any change."""
        self._scan_at = self._clock() + min(FULL_SCAN_SECONDS if again_in is None else again_in, FULL_SCAN_SECONDS)
