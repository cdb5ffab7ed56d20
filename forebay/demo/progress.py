"""Decide from one look at the system which step the demo is in, whether it is over, and what is stuck.

Pure functions over one look; this module must never talk to a service itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

COMPLETED = "COMPLETED"
QUARANTINED = "QUARANTINED"
SERVED = "served"


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """One batch as the driver log has it. Delays are in seconds, None while they are not known."""

    time: datetime
    state: str
    records: int
    attempts: int = 0
    scheduling_delay: float | None = None
    processing_time: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class ProgressSnapshot:
    """One look at replay server and driver log; `at` is in seconds since the demo's start (monotonic)."""

    at: float
    expected: int
    replay_state: str = ""
    replayed: int = 0
    replay_seconds: float = 0.0
    receiver_state: str = ""
    receiver_reason: str = ""
    received: int = 0
    blocks: int = 0
    batches: Sequence[BatchFacts] = field(default=())

    @property
    def completed_records(self) -> int:
        """Return the number of records in COMPLETED batches."""
        return sum(batch.records for batch in self.batches if batch.state == COMPLETED)

    @property
    def waits_for_a_batch(self) -> bool:
        """Return whether a batch with records is not COMPLETED. Empty batches keep coming, and are ignored."""
        return any(batch.state != COMPLETED for batch in self.batches if batch.records)

    @property
    def lag(self) -> int:
        """Return the number of records that were received and are in no COMPLETED batch yet."""
        return max(0, self.received - self.completed_records)

    def count(self, state: str) -> int:
        """Return how many batches are in this state."""
        return sum(batch.state == state for batch in self.batches)

    def batches_by_state(self) -> dict[str, int]:
        """Return how many batches are in each state, in the order in which a batch passes through the states."""
        counts = Counter(batch.state for batch in self.batches)
        order = ("ALLOCATED", "RUNNING", "FAILED", "BLOCKED", QUARANTINED, COMPLETED)
        ranked = sorted(counts, key=lambda state: order.index(state) if state in order else -1)
        return {state: counts[state] for state in ranked}


def is_finished(look: ProgressSnapshot) -> bool:
    """Return whether every line was sent, every batch with records is COMPLETED, and no expected record is missing."""
    return look.replay_state == SERVED and look.completed_records >= look.expected and not look.waits_for_a_batch


def is_short(look: ProgressSnapshot) -> bool:
    """Return whether every line was sent and all received records are in COMPLETED batches, but some are missing."""
    return (
        look.replay_state == SERVED
        and look.lag == 0
        and look.completed_records < look.expected
        and not look.waits_for_a_batch
    )


def what_it_does(look: ProgressSnapshot) -> str:  # noqa: C901, PLR0911  one sentence a state
    """Return one sentence: the step that the demo is in, or what it waits for."""
    if is_finished(look):
        return "all records are in completed batches"
    if look.count(QUARANTINED):
        return "a batch has used up its attempts"
    if look.received == 0:
        if look.receiver_state != "ACTIVE":
            state = look.receiver_state or "not placed yet"
            return f"waiting for the receiver (it is {state}{_because(look.receiver_reason)})"
        return "the receiver is connected and waits for the first records"
    running = [batch for batch in look.batches if batch.state == "RUNNING"]
    if running:
        return f"Spark works on the batch of {_clock(running[0].time)} ({running[0].records:,} records)"
    failed = [batch for batch in look.batches if batch.state == "FAILED"]
    if failed:
        return f"the batch of {_clock(failed[0].time)} failed and will be tried again{_because(failed[0].error)}"
    allocated = [batch for batch in look.batches if batch.state == "ALLOCATED"]
    if allocated:
        return f"Dagster starts the run of the batch of {_clock(allocated[0].time)}"
    if not look.batches:
        return "the first batch waits for the end of its interval of 10 s"
    if is_short(look):
        missing = look.expected - look.completed_records
        return f"all lines were sent, yet {missing:,} records are in no block"
    if look.received >= look.expected:
        return "all records are received; the next batch is to be allocated"
    return "receiving; the next batch waits for the end of its interval"


def what_is_stuck(look: ProgressSnapshot | None) -> str:
    """Return what keeps the demo from finishing, and where to look; for the error at the deadline."""
    if look is None:
        return "The driver log could never be read."
    parts: list[str] = []
    if look.replay_state != SERVED:
        parts.append(f"the replay server has sent {look.replayed:,} of {look.expected:,} lines ({look.replay_state})")
    if look.received < look.expected:
        parts.append(
            f"the receiver has registered {look.received:,} of {look.expected:,} records "
            f"({look.receiver_state or 'not placed'}{_because(look.receiver_reason)})"
        )
    parts.extend(
        f"the batch of {_clock(batch.time)} is {batch.state} after {batch.attempts} attempts{_because(batch.error)}"
        for batch in look.batches
        if batch.state != COMPLETED and batch.records
    )
    if look.lag and not look.waits_for_a_batch:
        parts.append(f"{look.lag:,} received records wait for a batch: does the batch sensor run?")
    return "; ".join(parts) or "nothing is known to be stuck"


@dataclass(frozen=True, slots=True)
class Timings:
    """Hold the run's figures. Times are in seconds from the command's start; None where nothing was seen."""

    first_batch_completed: float | None
    finished: float | None
    records_per_second: float | None
    batches: int
    median_scheduling_delay: float | None
    median_processing_time: float | None


class Watch:
    """Turns a series of looks into timings, and decides when the demo is over."""

    def __init__(self, settle_seconds: float = 45.0) -> None:
        self._settle_seconds = settle_seconds
        self._first_completed_at: float | None = None
        self._short_since: float | None = None
        self._last: ProgressSnapshot | None = None

    @property
    def last(self) -> ProgressSnapshot | None:
        """Return the newest look."""
        return self._last

    def see(self, look: ProgressSnapshot) -> bool:
        """Record a look; return whether the demo is over: finished, short for good, or a batch is quarantined.

        "For good" means that everything was sent and nothing has been waiting for `settle_seconds`.
        """
        if self._first_completed_at is None and any(
            batch.state == COMPLETED and batch.records for batch in look.batches
        ):
            self._first_completed_at = look.at
        if not is_short(look) or self._last is None or self._last.received != look.received:
            self._short_since = look.at if is_short(look) else None
        self._last = look
        short_for_good = self._short_since is not None and look.at - self._short_since >= self._settle_seconds
        return is_finished(look) or short_for_good or look.count(QUARANTINED) > 0

    def timings(self) -> Timings:
        """Return the figures of the looks so far. Batches without records are left out of the medians."""
        batches = [batch for batch in self._last.batches if batch.records] if self._last else []
        return Timings(
            first_batch_completed=self._first_completed_at,
            finished=self._last.at if self._last else None,
            records_per_second=_rate(self._last),
            batches=len(batches),
            median_scheduling_delay=_median([batch.scheduling_delay for batch in batches]),
            median_processing_time=_median([batch.processing_time for batch in batches]),
        )


def _rate(look: ProgressSnapshot | None) -> float | None:
    """Return the records per second that the receiver took.

    They are counted as they are sent: the receiver stops reading when it can't store, so the sender is never far ahead.
    """
    return look.replayed / look.replay_seconds if look is not None and look.replay_seconds > 0 else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _clock(time: datetime) -> str:
    return time.astimezone().strftime("%H:%M:%S")
