"""Backpressure: set the rate of each receiver of a pipeline's streams after each completed batch (C03).

Owns the rates that follow from batches: an estimator per pipeline and stream, the slowest pipeline of a stream, each
receiver's share. Each decision is a row (`stream_rates`, `receivers.rate_limit`), written under the leader's term in a
transaction of its own, after the batch's; so a new leader continues with the same numbers. Only the time since when a
pipeline has made no progress is kept in memory; a new leader measures it again. It must never touch a batch.

Differences from the original, where rates lived in the driver's memory and were lost with it, a rate that was sent
before its receiver had registered was lost (K10), and a batch that a limit had cut short hid the records left behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import structlog

from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.policies.pid_rate_estimator import EstimatorState, PIDRateEstimator
from orchestration.tracker.liveness import CounterWatch
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.receivers import rates as store
from tracker_store.receivers.rates import CompletedBatch, StreamRate
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import sqlalchemy as sa

    from tracker_store.batches.pipelines import PipelineRow
    from tracker_store.receivers.rates import RatedReceiver

# Most batches per pipeline and stream in one tick: after a long time without a leader there are many, and the rest
# waits for the next tick.
BATCHES_PER_TICK = 200
# A pipeline without progress for this many intervals, and at least this many seconds, stands still.
STILL_AFTER_INTERVALS = 5
STILL_AFTER_SECONDS = 60.0
# Seconds between looks for pipelines that stand still, or go on, while rates are decided.
STILL_POLL_SECONDS = 5.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
# A batch that ended more than this many intervals before the latest one means that the clock was set back. The
# estimator ignores such a batch, so it starts again; otherwise the rate would not change until the clock caught up.
_SET_BACK = 10

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReckonedBatch:
    """Hold a completed batch with the number of records that its limit left to later ones (0 without a limit)."""

    batch: CompletedBatch
    left_behind: int = 0


def reckon(
    settings: PipelineSettings, interval: timedelta, before: StreamRate, batches: Iterable[ReckonedBatch]
) -> StreamRate:
    """Return the decision for a pipeline and stream after `batches`, taken in order."""
    estimator = _estimator(settings, interval, _state(before))
    decided = before
    for reckoned in batches:
        batch = reckoned.batch
        if batch.batch_time <= decided.batch_time:
            continue
        decided = replace(decided, batch_time=batch.batch_time, expired=False)
        if batch.started_at is None:
            continue
        if decided.latest_at is not None and decided.latest_at - batch.completed_at > _SET_BACK * interval:
            estimator = _estimator(settings, interval, None)
        known = estimator.state
        processing_ms = (batch.completed_at - batch.started_at) // _MILLISECOND
        scheduling_ms = max(0, (batch.started_at - batch.oldest_time) // _MILLISECOND)
        if batch.records > 0:
            # The records left behind wait as long as they take to process; the estimator counts that as delay.
            scheduling_ms += reckoned.left_behind * processing_ms // batch.records
        rate = estimator.compute(
            (batch.completed_at - _EPOCH) // _MILLISECOND, batch.records, processing_ms, scheduling_ms
        )
        state = estimator.state
        if state is not None and state != known:
            decided = replace(
                decided,
                latest_at=batch.completed_at,
                latest_rate=state.latest_rate,
                latest_error=state.latest_error,
                rate_limit=rate if rate is not None else decided.rate_limit,
            )
    return decided


def _estimator(settings: PipelineSettings, interval: timedelta, state: EstimatorState | None) -> PIDRateEstimator:
    return PIDRateEstimator(
        interval // _MILLISECOND,
        settings.backpressure_pid_proportional,
        settings.backpressure_pid_integral,
        settings.backpressure_pid_derived,
        settings.backpressure_pid_min_rate,
        state=state,
    )


def _state(decided: StreamRate) -> EstimatorState | None:
    if decided.latest_at is None or decided.latest_rate is None or decided.latest_error is None:
        return None
    return EstimatorState((decided.latest_at - _EPOCH) // _MILLISECOND, decided.latest_rate, decided.latest_error)


def receiver_rates(
    limits: Mapping[int, Sequence[float]], receivers: Iterable[RatedReceiver]
) -> dict[int, float | None]:
    """Return each receiver's rate: its share of the lowest rate that any pipeline has decided for its stream.

    Shares are equal among the receivers that may receive: one that is not wanted to run, or is FAILED, does not reduce
    the share of the others.
    """
    receivers = list(receivers)
    sharing: dict[int, int] = {}
    for receiver in receivers:
        receives = receiver.desired_state is DesiredState.RUNNING and receiver.state is not ReceiverState.FAILED
        sharing[receiver.stream_id] = sharing.get(receiver.stream_id, 0) + receives
    return {
        receiver.receiver_id: min(limits[receiver.stream_id]) / max(1, sharing[receiver.stream_id])
        if limits.get(receiver.stream_id)
        else None
        for receiver in receivers
    }


class RateController:
    """Backpressure of the leading tracker, which calls `tick` about every second. For one thread."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without observations; `clock` is monotonic, in seconds."""
        self._clock = clock
        self._watches: dict[tuple[int, timedelta], CounterWatch[int]] = {}
        self._counters: dict[int, int] = {}

    def tick(self, connection: sa.Connection, *, term: int) -> float | None:
        """Apply completed batches, find pipelines that stand still, and set the receivers' rates that follow.

        Returns the seconds until it must look again for pipelines that stand still; None: no rate is decided.
        """
        pipelines = {
            row.pipeline_id: row
            for row in list_pipelines(connection)
            if PipelineSettings.of_row(PipelineDeclaration.of(row.declaration).settings).backpressure_enabled
        }
        decided = {(rate.pipeline_id, rate.stream_id): rate for rate in store.stream_rates(connection)}
        wanted = [(row.pipeline_id, stream_id) for row in pipelines.values() for stream_id in row.stream_ids]
        after = {key: decided[key].batch_time if key in decided else None for key in wanted}
        completed = store.completed_batches(connection, after=after, limit=BATCHES_PER_TICK) if after else {}
        for (pipeline_id, stream_id), batches in completed.items():
            before = decided.get((pipeline_id, stream_id))
            self._reckon(connection, term, pipelines[pipeline_id], stream_id, before, batches)
        self._expire_stalled(connection, term, pipelines, decided.values())
        self._set_rates(connection, term, pipelines)
        return STILL_POLL_SECONDS if decided else None

    def _reckon(
        self,
        connection: sa.Connection,
        term: int,
        row: PipelineRow,
        stream_id: int,
        before: StreamRate | None,
        batches: Sequence[CompletedBatch],
    ) -> None:
        declared = PipelineDeclaration.of(row.declaration)
        limited = declared.max_records_per_batch is not None or declared.max_bytes_per_batch is not None
        reckoned = [
            ReckonedBatch(
                batch,
                store.records_left_behind(
                    connection, pipeline_id=row.pipeline_id, stream_id=stream_id, batch_time=batch.batch_time
                )
                if limited and batch.records
                else 0,
            )
            for batch in batches
        ]
        if before is None:
            before = StreamRate(row.pipeline_id, stream_id, _EPOCH, None, None, None, None, expired=False)
        decision = reckon(PipelineSettings.of_row(declared.settings), row.interval, before, reckoned)
        outcome = store.record_stream_rate(connection, term=term, decision=decision)
        if decision.rate_limit != before.rate_limit:
            log.info(
                "rate decided",
                pipeline=row.name,
                stream_id=stream_id,
                batch_time=decision.batch_time.isoformat(),
                rate=decision.rate_limit,
                outcome=outcome,
            )

    def _expire_stalled(
        self,
        connection: sa.Connection,
        term: int,
        pipelines: Mapping[int, PipelineRow],
        decided: Iterable[StreamRate],
    ) -> None:
        rates: dict[int, list[StreamRate]] = {}
        for rate in decided:
            rates.setdefault(rate.pipeline_id, []).append(rate)
        if not rates:
            return
        counters: dict[int, int] = {}
        watches: dict[tuple[int, timedelta], CounterWatch[int]] = {}
        for progress in store.pipeline_progress(connection):
            row = pipelines.get(progress.pipeline_id)
            if row is None or row.pipeline_id not in rates:
                continue
            key = (row.pipeline_id, row.interval)
            limit = max(STILL_AFTER_SECONDS, STILL_AFTER_INTERVALS * row.interval.total_seconds())
            watch = watches[key] = self._watches.get(key) or CounterWatch(limit, self._clock)
            counters[row.pipeline_id] = progress.counter
            moved = self._counters.get(row.pipeline_id, progress.counter) != progress.counter
            # A long batch does not count as standing still: its process is watched through its heartbeat.
            still = watch.unmoved([] if progress.running else [(row.pipeline_id, progress.counter)])
            goes_on = moved or progress.running
            changed = [rate for rate in rates[row.pipeline_id] if (goes_on if rate.expired else still)]
            outcomes = [
                store.record_stream_rate(connection, term=term, decision=replace(rate, expired=not rate.expired))
                for rate in changed
            ]
            if changed and still:
                log.warning("pipeline stands still: its rates limit no receiver", pipeline=row.name, outcomes=outcomes)
            elif changed:
                log.info("pipeline goes on: its rates limit receivers again", pipeline=row.name, outcomes=outcomes)
        self._counters, self._watches = counters, watches

    def _set_rates(self, connection: sa.Connection, term: int, pipelines: Mapping[int, PipelineRow]) -> None:
        limits: dict[int, list[float]] = {}
        for rate in store.stream_rates(connection):
            # Rates of removed pipelines, and of those that no longer read the stream or have backpressure off, expire.
            row = pipelines.get(rate.pipeline_id)
            if (
                row is not None
                and rate.stream_id in row.stream_ids
                and rate.rate_limit is not None
                and not rate.expired
            ):
                limits.setdefault(rate.stream_id, []).append(rate.rate_limit)
        receivers = store.rated_receivers(connection)
        wanted = receiver_rates(limits, receivers)
        changed = {
            receiver.receiver_id: wanted[receiver.receiver_id]
            for receiver in receivers
            if wanted[receiver.receiver_id] != receiver.rate_limit
        }
        if changed:
            store.set_rate_limits(connection, term=term, rates=changed)
