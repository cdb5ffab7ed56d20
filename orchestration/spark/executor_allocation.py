"""How many executors Spark should have, by how long batches take: the original's ExecutorAllocationManager (O04).

Pure: it looks at processing times and answers with a number; who may act on it does. Forebay runs each batch in a Spark
session of its own, so that nothing here adds or removes an executor of a running one: `forebay status` recommends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Of the interval: from this part on batches take too long, up to this one they have time to spare.
SCALING_UP_RATIO = 0.9
SCALING_DOWN_RATIO = 0.3
SCALING_INTERVAL = timedelta(seconds=60)

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Scaling:
    """`ratio`: mean processing time to interval, of so many `batches`; `executors`: how many more, or -1."""

    ratio: float
    batches: int
    executors: int


def scaling(
    processing_times: Sequence[timedelta],
    interval: timedelta,
    *,
    scaling_up_ratio: float = SCALING_UP_RATIO,
    scaling_down_ratio: float = SCALING_DOWN_RATIO,
) -> Scaling | None:
    """What the completed batches of one scaling interval ask for; None where there was none.

    Failed batches are not among them. Raises ValueError for ratios in the wrong order.
    """
    if not 0 < scaling_down_ratio < scaling_up_ratio:
        raise ValueError(
            f"a ratio of {scaling_up_ratio:g} to scale up and one of {scaling_down_ratio:g} to scale down: "
            "both must be more than 0, and the first the larger one"
        )
    if not processing_times:
        return None
    # In whole milliseconds, as the original reckons.
    mean = sum(time // _MILLISECOND for time in processing_times) // len(processing_times)
    ratio = mean / (interval // _MILLISECOND)
    if ratio >= scaling_up_ratio:
        executors = max(math.floor(ratio + 0.5), 1)
    else:
        executors = -1 if ratio <= scaling_down_ratio else 0
    return Scaling(ratio, len(processing_times), executors)


def executors_in_all(current: int, more: int, *, least: int, most: int | None = None) -> int:
    """How many there should be of `current` after `more` (or -1), between the bounds."""
    if more > 0:
        return max(current + more if most is None else min(most, current + more), least)
    return current - 1 if more < 0 and current > least else current
