"""Choose what `forebay status` and `top` show of a large installation: sums of each stream, and what needs attention.

Owns the limits and the order. It reads nothing and prints nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tracker_store.receivers.receivers import is_degraded, is_not_storing
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracker_store.reports.state_status import OutputState
    from tracker_store.reports.status import PipelineStatus, ReceiverStatus, StreamLag

MOST_ROWS = 100  # a table of more rows is shortened: it is too long to read, and each row takes more than 1 ms
SHORT_ROWS = 20  # rows of a shortened table

Row = TypeVar("Row")
_NO_LAG = timedelta(0)


@dataclass(frozen=True, slots=True)
class StreamSums:
    """Sums of a stream's receivers; `attention` counts those that need some, `states` names how many are in which.

    `records_per_second`: None if it is not known of any; `lag`: of the slowest pipeline.
    """

    stream: str
    running: int
    receivers: int
    attention: int
    states: str
    records: int
    queued_blocks: int
    dead_letters: int
    records_per_second: float | None = None
    lag: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Shown(Generic[Row]):
    """Hold the rows that are shown, and how many others there are."""

    rows: Sequence[Row]
    left_out: int


def shortened(rows: Sequence[Row], urgency: Callable[[Row], tuple[Any, ...]], *, everything: bool) -> Shown[Row]:
    """Return all of at most MOST_ROWS rows; of more, the SHORT_ROWS most urgent ones, most urgent first."""
    if everything or len(rows) <= MOST_ROWS:
        return Shown(rows, 0)
    chosen = sorted(rows, key=urgency, reverse=True)[:SHORT_ROWS]
    return Shown(chosen, len(rows) - len(chosen))


def needs_attention(receiver: ReceiverStatus) -> bool:
    """Return whether the receiver does not run, is degraded, or has dead letters."""
    is_active = receiver.state == ReceiverState.ACTIVE
    return not is_active or receiver.dead_letters > 0 or is_degraded(receiver.reason)


def receiver_urgency(receiver: ReceiverStatus) -> tuple[bool, bool, bool, bool, int, int]:
    """Order receivers by: failed, not running though it should, not storing, degraded, queue, dead letters."""
    return (
        receiver.state == ReceiverState.FAILED,
        receiver.state != ReceiverState.ACTIVE and receiver.desired_state == DesiredState.RUNNING,
        is_not_storing(receiver.reason),
        is_degraded(receiver.reason),
        receiver.queued_blocks or 0,
        receiver.dead_letters,
    )


def pipeline_urgency(pipeline: PipelineStatus) -> tuple[bool, bool, bool, timedelta]:
    """Return what orders pipelines: halted, stale, not running; then the age of the oldest block that waits."""
    return (
        pipeline.halted_by is not None,
        pipeline.is_stale,
        pipeline.state != "RUNNING",
        pipeline.lag or _NO_LAG,
    )


def lag_urgency(lag: StreamLag) -> tuple[timedelta, int]:
    """Return what orders lags: the age of the oldest block that waits, then the records."""
    return (lag.lag or _NO_LAG, lag.waiting_records)


def watermark_urgency(state: OutputState) -> tuple[timedelta, int]:
    """Return what orders outputs by event time: how far the watermark is behind the batch, then the late records."""
    return (state.watermark_lag or _NO_LAG, state.late_total or 0)


def source_urgency(receiver: ReceiverStatus) -> tuple[timedelta, int]:
    """Return what orders receivers by what their sources have: the age of the oldest unread record, then how much."""
    return (receiver.source_lag or _NO_LAG, receiver.unread or 0)


def sums_urgency(sums: StreamSums) -> tuple[int, int]:
    """Return what orders streams: receivers that need attention, then blocks in queues."""
    return (sums.attention, sums.queued_blocks)


def stream_sums(
    receivers: Sequence[ReceiverStatus], rates: Mapping[int, float] | None = None, lags: Sequence[StreamLag] = ()
) -> list[StreamSums]:
    """Return the sums of each stream, in the order in which the receivers come. `rates`: by receiver id."""
    of_streams: dict[str, list[ReceiverStatus]] = {}
    for receiver in receivers:
        of_streams.setdefault(receiver.stream, []).append(receiver)
    known = rates or {}
    slowest: dict[str, timedelta] = {}
    for one in lags:
        if one.lag is not None:
            slowest[one.stream] = max(one.lag, slowest.get(one.stream, one.lag))
    return [
        StreamSums(
            stream,
            sum(row.state == ReceiverState.ACTIVE for row in rows),
            len(rows),
            sum(map(needs_attention, rows)),
            ", ".join(f"{count:,} {state}" for state, count in Counter(row.condition for row in rows).most_common()),
            sum(row.records for row in rows),
            sum(row.queued_blocks or 0 for row in rows),
            sum(row.dead_letters for row in rows),
            sum(found) if (found := [known[row.receiver_id] for row in rows if row.receiver_id in known]) else None,
            slowest.get(stream),
        )
        for stream, rows in of_streams.items()
    ]
