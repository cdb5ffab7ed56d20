"""Report streams, minutes, quarantined batches and cheap checks to Dagster, without a run: the observation sensor.

It reports every half minute and writes only Dagster events, which are a view of the driver log. What it misses while
Dagster is down is still in the driver log; of missed minutes it reports afterwards as many as a plot can hold. Its
cursor records what was reported; a lost cursor only costs repeated events.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import dagster as dg
from pydantic import BaseModel, Field, ValidationError

from orchestration.dagster_defs.checks.batch_checks import check_batches
from orchestration.dagster_defs.checks.checks import check_pipeline, check_receivers
from orchestration.dagster_defs.checks.quarantined_batches import observe_quarantined
from orchestration.dagster_defs.shared.batch_plots import batch_materialization, minute_materialization
from orchestration.dagster_defs.shared.page_links import page_of_batch
from orchestration.dagster_defs.shared.stream_assets import stream_key
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.errors import DriverLogError, NotAppliedError
from tracker_store.reports.batch_statistics import (
    MinuteFigures,
    completed_minutes,
    database_time,
    newest_empty_batch,
)
from tracker_store.reports.checks import is_short
from tracker_store.reports.status import receiver_status, stream_lag
from tracker_store.schema.states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import sqlalchemy as sa

    from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
    from orchestration.declarations.pipeline import Pipeline, Stream
    from tracker_store.reports.status import ReceiverStatus, StreamLag

Event = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation

# The daemon's loop is 5 s and skips a sensor whose interval ends some ms later: 29 means every 30 s.
INTERVAL_SECONDS = 29
# Most minutes that one tick reports: a plot holds 100 events.
MOST_MINUTES = 100
# An unchanged check result is reported again after this time, so that its page shows that the check still runs.
REPEAT_CHECKS = timedelta(minutes=10)
# A log with at most this number of a pipeline's batches, and of its streams' blocks, is proved within a tick.
MOST_PROVED = 5_000
_MINUTE = timedelta(minutes=1)


class SeenStream(BaseModel):
    """Hold the totals that a stream's receivers had registered at a look; rates are differences of two looks."""

    records: int
    bytes: int
    at: datetime


class SeenCheck(BaseModel):
    """Hold the last reported result of a check."""

    passed: bool
    at: datetime


class ObservationCursor(BaseModel):
    """Record what has been reported; Dagster keeps it as the sensor's cursor."""

    minute: datetime | None = None
    streams: dict[str, SeenStream] = Field(default_factory=dict)
    checks: dict[str, SeenCheck] = Field(default_factory=dict)
    #: The quarantined batches that were reported.
    quarantined: list[datetime] = Field(default_factory=list)
    #: The newest batch without records that was reported.
    empty: datetime | None = None
    #: The outputs whose proofs have been reported, or are left to the job `PIPELINE_checks`.
    proved: list[str] = Field(default_factory=list)

    @classmethod
    def parse(cls, text: str | None) -> ObservationCursor:
        """Return the cursor of the last tick; an empty one if there is none, or it is of another release."""
        try:
            return cls() if text is None else cls.model_validate_json(text)
        except ValidationError:
            return cls()


def observe(
    connection: sa.Connection, pipeline: Pipeline, streams: Sequence[Stream], cursor: ObservationCursor
) -> tuple[list[Event], ObservationCursor]:
    """Return the events to report now, and the cursor after them. Raises NotAppliedError."""
    applied = get_pipeline(connection, pipeline.name)
    pipeline_id = applied.pipeline_id
    now = database_time(connection)
    events: list[Event] = []

    # Older minutes would not fit in the plot; after days without Dagster they would come first, and reading their
    # batches would be expensive.
    oldest = now - timedelta(minutes=MOST_MINUTES)
    minutes = completed_minutes(connection, pipeline_id, after=max(cursor.minute or oldest, oldest), limit=MOST_MINUTES)
    minutes += _quiet_minute(pipeline, now, cursor.minute, minutes)
    events += [minute_materialization(pipeline, minute) for minute in minutes]

    # A plot joins its points: so that it shows a gap, the newest batch is reported at each tick, also if it was empty.
    empty = newest_empty_batch(connection, pipeline_id)
    if empty is not None and (cursor.empty is None or empty.batch_time > cursor.empty):
        events.append(batch_materialization(pipeline, empty, page_of_batch(pipeline, empty.batch_time)))

    given_up, quarantined = observe_quarantined(connection, pipeline, applied, cursor.quarantined)
    events += given_up

    names = [stream.name for stream in streams]
    receivers = receiver_status(connection, names)
    lags = stream_lag(connection, names)
    seen: dict[str, SeenStream] = {}
    for stream in streams:
        mine = [row for row in receivers if row.stream == stream.name]
        seen[stream.name] = SeenStream(
            records=sum(row.records for row in mine), bytes=sum(row.bytes for row in mine), at=now
        )
        events.append(
            _observation(
                stream,
                mine,
                [row for row in lags if row.stream == stream.name],
                cursor.streams.get(stream.name),
                seen[stream.name],
            )
        )

    checks: dict[str, SeenCheck] = {}
    for result in (*check_batches(connection, pipeline), *check_receivers(streams, receivers)):
        evaluation = _evaluation(result)
        name = f"{evaluation.asset_key.to_user_string()}:{evaluation.check_name}"
        before = cursor.checks.get(name)
        if before is None or before.passed != evaluation.passed or now - before.at >= REPEAT_CHECKS:
            events.append(evaluation)
            before = SeenCheck(passed=evaluation.passed, at=now)
        checks[name] = before
    if not set(pipeline.outputs) <= set(cursor.proved) and is_short(connection, pipeline_id, most=MOST_PROVED):
        # Once, for Dagster shows checks that never ran as not passed. From then on the job runs them.
        events += [_evaluation(result) for result in check_pipeline(connection, pipeline)]
    return events, ObservationCursor(
        minute=minutes[-1].minute if minutes else cursor.minute,
        streams=seen,
        checks=checks,
        quarantined=quarantined,
        empty=cursor.empty if empty is None else empty.batch_time,
        proved=sorted(pipeline.outputs),
    )


def _quiet_minute(
    pipeline: Pipeline, now: datetime, reported: datetime | None, minutes: Sequence[MinuteFigures]
) -> list[MinuteFigures]:
    """Return the newest minute that is over if no batch completed in it, though it should have had one.

    Only the newest, because Dagster plots an event at the time at which it is reported.
    """
    newest = (now - timedelta(seconds=5)).replace(second=0, microsecond=0) - _MINUTE
    last = minutes[-1].minute if minutes else reported
    if last is None or last >= newest or pipeline.interval > _MINUTE:
        return []
    return [MinuteFigures(newest, 0, 0, 0, None, None, None, None)]


def _observation(
    stream: Stream,
    receivers: Iterable[ReceiverStatus],
    lags: Iterable[StreamLag],
    before: SeenStream | None,
    now: SeenStream,
) -> dg.AssetObservation:
    """Return rate and lag as numbers to plot, and receivers' states as text (K07, O01 of the original)."""
    rows, waiting = list(receivers), list(lags)
    metadata: dict[str, dg.MetadataValue] = {
        "records": dg.MetadataValue.int(now.records),
        "lag_records": dg.MetadataValue.int(max((lag.waiting_records for lag in waiting), default=0)),
        "lag_blocks": dg.MetadataValue.int(max((lag.waiting_blocks for lag in waiting), default=0)),
        "lag_seconds": dg.MetadataValue.float(
            max((lag.lag.total_seconds() for lag in waiting if lag.lag is not None), default=0.0)
        ),
        "receivers": dg.MetadataValue.int(len(rows)),
        "receivers_active": dg.MetadataValue.int(sum(row.state == ReceiverState.ACTIVE for row in rows)),
        "dead_letters": dg.MetadataValue.int(sum(row.dead_letters for row in rows)),
    }
    if before is not None and now.at > before.at:
        seconds = (now.at - before.at).total_seconds()
        metadata["rate"] = dg.MetadataValue.float(max(0, now.records - before.records) / seconds)
        metadata["byte_rate"] = dg.MetadataValue.float(max(0, now.bytes - before.bytes) / seconds)
    limits = [row.rate_limit for row in rows if row.rate_limit is not None]
    if limits:
        metadata["rate_limit"] = dg.MetadataValue.float(sum(limits))
    if any(row.unread is not None for row in rows):
        metadata["source_unread"] = dg.MetadataValue.int(sum(row.unread or 0 for row in rows))
        metadata["source_lag_seconds"] = dg.MetadataValue.float(
            max((row.source_lag.total_seconds() for row in rows if row.source_lag is not None), default=0.0)
        )
    for row in rows:
        where = f" on {row.host}" if row.host else ""
        why = f": {row.reason}" if row.reason else ""
        metadata[f"receiver {row.ordinal}"] = dg.MetadataValue.text(f"{row.state}{where}{why}")
    return dg.AssetObservation(stream_key(stream), metadata=metadata)


def _evaluation(result: dg.AssetCheckResult) -> dg.AssetCheckEvaluation:
    assert result.asset_key is not None
    assert result.check_name is not None
    return dg.AssetCheckEvaluation(
        asset_key=result.asset_key,
        check_name=result.check_name,
        passed=result.passed,
        metadata=result.metadata,
        severity=result.severity,
        description=result.description,
    )


def observation_sensor(
    pipeline: Pipeline, streams: Sequence[Stream], connections: SensorConnections
) -> dg.SensorDefinition:
    """Return the sensor `PIPELINE_observations`, which runs by default.

    `streams`: those that no other pipeline's sensor observes.
    """

    @dg.sensor(
        name=f"{pipeline.name}_observations",
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=(
            f"Reports every half minute what {pipeline.name}'s streams receive, the minutes that are over, the batches "
            "that were given up or had no records, and whether batches keep up. Launches no run."
        ),
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            database_url = Settings().require_database_url()
        except DatabaseUrlMissingError as error:
            return dg.SkipReason(str(error))
        try:
            with connections.connect(database_url) as connection:
                events, cursor = observe(connection, pipeline, streams, ObservationCursor.parse(context.cursor))
        except NotAppliedError as error:
            return dg.SkipReason(str(error))
        except DriverLogError as error:
            return dg.SkipReason(f"the driver log can't be asked, trying again: {error}")
        return dg.SensorResult(
            asset_events=events,
            cursor=cursor.model_dump_json(),
            skip_reason=dg.SkipReason(f"{len(events)} events reported; this sensor launches no run"),
        )

    return evaluate
