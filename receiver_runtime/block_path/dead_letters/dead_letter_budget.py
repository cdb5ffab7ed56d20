"""Limit how much each sender may put aside: 1,000 dead letters and 1 MiB a minute; the rest is only counted.

Anyone who can reach a listener can send bad records, and has no acknowledgement of them, or is refused and sends them
again. Without a limit, one sender fills the block store and the driver log. Owns the senders' budgets. It never stores
anything, and never limits records that a source acknowledges or that have no peer: of those, the dead letter may be the
only copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.block_store.frames.frame import DeadLetterReason
    from receiver_runtime.watching.clock import Clock

#: Letters of one peer that are kept in one minute.
MOST_LETTERS = 1000
#: Bytes of them: as many as one part of a record that is too large.
MOST_BYTES = 2**20
#: Seconds.
WINDOW = 60.0
# The most peers with a budget of their own; all others share one, so that forged addresses fill nothing either.
_MOST_PEERS = 100
_OTHERS = "\0others"


@dataclass(slots=True)
class Dropped:
    """Count what was over a budget: records, and their bytes."""

    letters: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class _Budget:
    until: float
    letters: int = MOST_LETTERS
    nbytes: int = MOST_BYTES


class DeadLetterBudget:
    """Keep the budgets of one receiver's peers. One thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._budgets: dict[str, _Budget] = {}

    def take(self, letters: Iterable[DeadLetter]) -> tuple[list[DeadLetter], dict[DeadLetterReason, Dropped]]:
        """Return the letters to keep, in order, and what is over their peers' budgets, by reason."""
        now = self._clock.monotonic()
        kept: list[DeadLetter] = []
        over: dict[DeadLetterReason, Dropped] = {}
        for letter in letters:
            if not letter.peer:
                kept.append(letter)
                continue
            budget = self._of(letter.peer, now)
            nbytes = len(letter.data)
            if budget.letters > 0 and budget.nbytes >= nbytes:
                budget.letters -= 1
                budget.nbytes -= nbytes
                kept.append(letter)
                continue
            dropped = over.setdefault(letter.reason, Dropped())
            dropped.letters += 1
            dropped.nbytes += nbytes
        return kept, over

    def _of(self, peer: str, now: float) -> _Budget:
        budget = self._budgets.get(peer)
        if budget is None and len(self._budgets) >= _MOST_PEERS:
            self._budgets = {name: one for name, one in self._budgets.items() if now < one.until}
            if len(self._budgets) >= _MOST_PEERS:
                peer = _OTHERS
                budget = self._budgets.get(peer)
        if budget is None or now >= budget.until:
            budget = self._budgets[peer] = _Budget(now + WINDOW)
        return budget
