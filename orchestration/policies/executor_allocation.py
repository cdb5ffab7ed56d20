"""Decide how many executors Spark should have, from processing times: the original's ExecutorAllocationManager (O04).

Pure: it takes processing times and returns numbers, which the scaling schedule records. A new Spark session on a
cluster reads its number of executors from the record; where Spark runs inside batch drivers, an agent reads its number
of batch drivers. `forebay status` shows them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# Mean processing time as a fraction of the interval: from the first on, scale up; up to the second, scale down.
SCALING_UP_RATIO = 0.9
SCALING_DOWN_RATIO = 0.3
SCALING_INTERVAL = timedelta(seconds=60)
#: Batches that must have run before people are advised: the first ones after a start also start Spark.
ADVICE_BATCHES = 3

MAX_EXECUTORS = "spark.dynamicAllocation.maxExecutors"

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Scaling:
    """`ratio`: mean processing time of `batches` batches to interval; `executors`: how many to add, or -1."""

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
    """Return what follows from the completed batches of one scaling interval; None if there were none.

    Failed batches must not be included. Raises ValueError for ratios in the wrong order.
    """
    if not 0 < scaling_down_ratio < scaling_up_ratio:
        raise ValueError(
            f"a ratio of {scaling_up_ratio:g} to scale up and one of {scaling_down_ratio:g} to scale down: "
            "both must be more than 0, and the first the larger one"
        )
    if not processing_times:
        return None
    # In whole milliseconds, as the original computes.
    mean = sum(time // _MILLISECOND for time in processing_times) // len(processing_times)
    ratio = mean / (interval // _MILLISECOND)
    if ratio >= scaling_up_ratio:
        executors = max(math.floor(ratio + 0.5), 1)
    else:
        executors = -1 if ratio <= scaling_down_ratio else 0
    return Scaling(ratio, len(processing_times), executors)


def executors_in_all(current: int, more: int, *, least: int, most: int | None = None) -> int:
    """Return the number that `current` becomes after adding `more` (or -1), within the bounds."""
    if more > 0:
        return max(current + more if most is None else min(most, current + more), least)
    return current - 1 if more < 0 and current > least else current


@dataclass(frozen=True, slots=True)
class Bounds:
    """Hold the bounds of a pipeline's numbers; `batch_drivers`: how many of its batches may run at a time."""

    least: int = 1
    most: int | None = None
    batch_drivers: int = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """Hold the numbers that are wanted from now on, and the reason."""

    executors: int
    batch_drivers: int
    reason: str


def has_executors(master: str) -> bool:
    """Return whether a session on a Spark master has its own executors; a local master uses the batch driver."""
    # The executors of a Connect server belong to the server.
    return not master.startswith(("local", "sc://")) or master.startswith("local-cluster")


def decide(
    found: Scaling, *, executors: int, batch_drivers: int, bounds: Bounds, master: str, applied: bool
) -> Decision:
    """Return the decision that follows from `found`; `executors` and `batch_drivers` are the numbers wanted so far."""
    takes = f"batches take {found.ratio:.0%} of their interval (mean of {found.batches})"
    if has_executors(master):
        wanted = executors_in_all(executors, found.executors, least=bounds.least, most=bounds.most)
        if bounds.most is not None:
            # The bound may have been lowered since the last decision.
            wanted = min(wanted, bounds.most)
        if wanted == executors:
            at_bound = ", the most that is allowed: lengthen the interval" if found.executors > 0 else ""
            return Decision(wanted, 1, f"{takes}: {_count(wanted, 'executor')} as before{at_bound}")
        how = "the next Spark session has them" if applied else "advice, dynamic_allocation_enabled is off"
        return Decision(wanted, 1, f"{takes}: {_count(wanted, 'executor')} instead of {executors}; {how}")
    wanted = min(
        executors_in_all(batch_drivers, found.executors, least=1, most=bounds.batch_drivers), bounds.batch_drivers
    )
    if wanted != batch_drivers:
        how = "agents start them" if applied else "advice, dynamic_allocation_enabled is off"
        return Decision(1, wanted, f"{takes}: {_count(wanted, 'batch driver')} instead of {batch_drivers}; {how}")
    if found.executors > 0:
        return Decision(
            1,
            wanted,
            f"{takes}, and no more than {_count(wanted, 'batch')} of it may run at a time: lengthen the interval, "
            "raise concurrent_batches, or give Spark a larger machine",
        )
    return Decision(1, wanted, f"{takes}: {_count(wanted, 'batch driver')} as before")


def executor_configuration(master: str, *, executors: int, least: int) -> dict[str, str]:
    """Return the Spark settings for a session with `executors` executors; empty if the master has no executors."""
    if not has_executors(master):
        return {}
    return {
        "spark.dynamicAllocation.enabled": "true",
        # So that no external shuffle service is needed.
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": str(min(least, executors)),
        "spark.dynamicAllocation.initialExecutors": str(executors),
        MAX_EXECUTORS: str(executors),
    }


def _count(number: int, what: str) -> str:
    plural = "batches" if what == "batch" else f"{what}s"
    return f"{number} {what if number == 1 else plural}"
