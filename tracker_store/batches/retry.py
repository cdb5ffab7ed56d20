"""Define how long a batch waits for its next attempt, by the kind of the last failure, for all that record one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NONE = timedelta(0)
FIRST = timedelta(seconds=2)
LONGEST = timedelta(minutes=5)
# Longest pause after failures that don't count in max_attempts. It bounds how long a batch waits after its block store
# is back, or after what it runs on is stable again; shorter would cost more runs.
LONGEST_UNCOUNTED = timedelta(minutes=1)
# How many attempts of a batch may be lost (its process or host died): about 15 minutes, with the pauses below.
MAX_LOST_ATTEMPTS = 20


def _doubling(longest: timedelta) -> tuple[timedelta, ...]:
    pauses = [FIRST]
    while pauses[-1] < longest:
        pauses.append(min(pauses[-1] * 2, longest))
    return tuple(pauses)


#: The pauses after the first failure of a kind, the second, and so on; the last one applies to all later ones.
PAUSES: Mapping[AttemptFailure, Sequence[timedelta]] = {
    AttemptFailure.FAILED: _doubling(LONGEST),
    AttemptFailure.BLOCKED: _doubling(LONGEST_UNCOUNTED),
    # A killed process says nothing about the next one, which therefore starts at once.
    AttemptFailure.LOST: (NONE, *_doubling(LONGEST_UNCOUNTED)),
}
