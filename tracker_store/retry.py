"""How long a batch waits for its next attempt, by why the last one failed: one place for all who may record it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tracker_store.states import AttemptFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NONE = timedelta(0)
FIRST = timedelta(seconds=2)
LONGEST = timedelta(minutes=5)
# How soon a batch goes on after its store is back, or after what it ran on stays alive; each try costs a run.
LONGEST_UNCOUNTED = timedelta(minutes=1)
# How often what a batch runs on may die under it: with the pauses below that takes about 15 minutes.
MAX_LOST_ATTEMPTS = 20


def _doubling(longest: timedelta) -> tuple[timedelta, ...]:
    pauses = [FIRST]
    while pauses[-1] < longest:
        pauses.append(min(pauses[-1] * 2, longest))
    return tuple(pauses)


#: The pause after the first failure of a kind, the second, and so on; the last one holds for all that follow.
PAUSES: Mapping[AttemptFailure, Sequence[timedelta]] = {
    AttemptFailure.FAILED: _doubling(LONGEST),
    AttemptFailure.BLOCKED: _doubling(LONGEST_UNCOUNTED),
    # A process that was killed says nothing about the next one: that starts at once.
    AttemptFailure.LOST: (NONE, *_doubling(LONGEST_UNCOUNTED)),
}
