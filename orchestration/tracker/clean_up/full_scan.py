"""Take turns: in each round of clean-up another part of all receivers, streams and pipelines is asked about.

A round asks about what a look returned (`tracker_store.retention.cleanup.receivers_to_clean_up`), and that look repeats
the rules of the functions that decide. If it ever misses something, that is found at its turn. This module only counts.
"""

from __future__ import annotations

import random

from tracker_store.retention.cleanup import Slice

# After how many rounds each receiver, stream and pipeline was asked about; at one round per 30 s that is half an hour.
FULL_SCAN_ROUNDS = 60


class FullScan:
    """Say whose turn it is. The first one is chosen at random, so that leaders that soon end do not all begin alike."""

    def __init__(self, rounds: int = FULL_SCAN_ROUNDS) -> None:
        """Begin; `rounds` rounds are one look at all."""
        self._rounds = rounds
        self._number = random.randrange(rounds)  # noqa: S311  spreads load, keeps no secret

    def part(self) -> Slice:
        """Return whose turn it is in this round; the same until `done`."""
        return Slice(self._number, self._rounds)

    def done(self) -> None:
        """Let the next part have its turn: the round came to its end."""
        self._number = (self._number + 1) % self._rounds
