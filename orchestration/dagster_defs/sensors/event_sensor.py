"""Run a user's function once for each event of the driver log, as a Dagster run: the event sensor.

The sensor's cursor is the last event that it has looked at, so that no event is missed, however long Dagster is down.
Each event of a wanted kind becomes one run. Its run key belongs to the event, and Dagster makes one run per key, even
if the daemon is killed between the requests and the cursor. The function is called in that run, never in a tick, which
Dagster may evaluate again. This module must never move the cursor past an event that was not requested.
"""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import dagster as dg
import sqlalchemy as sa
from pydantic import BaseModel

from orchestration.dagster_defs.sensors.batch_sensor import PIPELINE_TAG
from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.connection.errors import DriverLogError
from tracker_store.reports.listener_events import (
    START,
    EventKind,
    EventPosition,
    ListenerEvent,
    events_after,
    newest_position,
)

EVENT_TAG = "forebay/event"
KIND_TAG = "forebay/event_kind"

MOST_RUNS_PER_TICK = 20
# Events per statement, and statements per tick: they bound a tick if few events are wanted.
_PAGE = 1_000
_MOST_PAGES = 20


class EventConfig(dg.Config):
    """Hold the event, as `ListenerEvent.as_json` gives it, without what is null; the event sensor fills it in."""

    event: dict[str, Any]

    @classmethod
    def of(cls, event: ListenerEvent) -> "EventConfig":
        """Return the configuration of an event's run. Dagster refuses a null in it."""
        return cls(event={name: value for name, value in event.as_json().items() if value is not None})


class EventCursor(BaseModel):
    """Hold the sensor's cursor: a position in the log of events."""

    transaction_id: int
    id: int
    at: datetime

    @classmethod
    def of(cls, position: EventPosition) -> "EventCursor":
        """Return the cursor for a position."""
        return cls(transaction_id=position.transaction_id, id=position.id, at=position.at)

    @property
    def position(self) -> EventPosition:
        """Return the position."""
        return EventPosition(self.transaction_id, self.id, self.at)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Say which events become runs: those of these kinds for which `where` is true, at most `most` in a tick."""

    kinds: Collection[str]
    where: Callable[[ListenerEvent], bool]
    most: int


def next_wanted(
    connection: sa.Connection, position: EventPosition, wanted: Wanted
) -> tuple[list[ListenerEvent], EventPosition]:
    """Return the wanted events after a position, and the position after the last event that was looked at."""
    found: list[ListenerEvent] = []
    for _ in range(_MOST_PAGES):
        page = events_after(connection, position, limit=_PAGE)
        for event in page:
            position = event.position
            if event.kind in wanted.kinds and wanted.where(event):
                found.append(event)
                if len(found) == wanted.most:
                    return found, position
        if len(page) < _PAGE:
            break
    return found, position


def run_key(event: ListenerEvent) -> str:
    """Return the event's run key. It has the time, because ids begin again after the driver log was restored."""
    # Not the transaction: clean-up may replace it after a restore (clean_up_events), and the event stays the same.
    return f"{event.position.id}:{event.at.isoformat()}"


def _request(event: ListenerEvent, op_name: str) -> dg.RunRequest:
    of_pipeline = {} if event.pipeline is None else {PIPELINE_TAG: event.pipeline}
    return dg.RunRequest(
        run_key=run_key(event),
        run_config=dg.RunConfig({op_name: EventConfig.of(event)}),
        tags={EVENT_TAG: event.event_id, KIND_TAG: event.kind, **of_pipeline},
    )


def _event_job(
    name: str, function: Callable[[ListenerEvent], object], retry_policy: dg.RetryPolicy | None
) -> dg.JobDefinition:
    @dg.op(name=f"{name}__call", description=function.__doc__, retry_policy=retry_policy)
    def call(config: EventConfig) -> None:
        function(ListenerEvent.from_json(config.event))

    @dg.job(
        name=name,
        executor_def=dg.in_process_executor,
        description=f"Calls {function.__name__} with one event of the driver log; launched by the sensor {name}.",
    )
    def event_job() -> None:
        call()

    return event_job


def event_sensor(
    function: Callable[[ListenerEvent], object],
    *,
    kinds: Iterable[EventKind | str],
    where: Callable[[ListenerEvent], bool] = lambda _event: True,
    name: str = "",
    start: Literal["latest", "earliest"] = "latest",
    most_runs_per_tick: int = MOST_RUNS_PER_TICK,
    retry_policy: dg.RetryPolicy | None = None,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.RUNNING,
) -> dg.SensorDefinition:
    """Return a sensor that calls `function` with each event of these kinds, in one Dagster run per event.

    Each event gets exactly one run, in the order of the log; runs of several events may overlap. A run that fails stays
    failed, unless `retry_policy` or a person starts it again: then the function is called again with the same event.

    Args:
        function: called with a ListenerEvent in a run of its own.
        kinds: which kinds become runs, as listed in docs/how-to/listeners.md.
        where: only events for which this is true. It is called in the sensor's tick, possibly more than once: it must
            have no effect.
        name: the sensor's and its job's name; the function's name unless given.
        start: where a sensor without a cursor begins: after the newest event, or with the oldest that is kept.
        most_runs_per_tick: how many runs one tick may request; the rest waits for the next tick, about 5 s later.
        retry_policy: whether a call that raises is repeated in its run.
        default_status: whether the sensor runs without being turned on.

    Raises:
        ValueError: a kind does not exist, none is given, or `most_runs_per_tick` is not positive.
    """
    wanted = Wanted(frozenset(str(EventKind(kind)) for kind in kinds), where, most_runs_per_tick)
    if not wanted.kinds or most_runs_per_tick < 1:
        message = f"an event sensor needs kinds, and runs per tick: kinds={sorted(wanted.kinds)}, {most_runs_per_tick=}"
        raise ValueError(message)
    name = name or function.__name__
    job = _event_job(name, function, retry_policy)
    connections = SensorConnections()

    @dg.sensor(
        name=name,
        job=job,
        # As with the batch sensor: the daemon's loop is 5 s.
        minimum_interval_seconds=1,
        default_status=default_status,
        description=f"Calls {function.__name__} with each event of the kinds {', '.join(sorted(wanted.kinds))}.",
    )
    def evaluate(context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            database_url = Settings().require_database_url()
        except DatabaseUrlMissingError as error:
            return dg.SkipReason(str(error))
        try:
            with connections.connect(database_url) as connection:
                if context.cursor:
                    before = EventCursor.model_validate_json(context.cursor).position
                elif start == "earliest":
                    before = START
                else:
                    before = newest_position(connection)
                found, position = next_wanted(connection, before, wanted)
        except DriverLogError as error:
            return dg.SkipReason(f"the driver log can't be asked, trying again: {error}")
        return dg.SensorResult(
            run_requests=[_request(event, f"{name}__call") for event in found],
            skip_reason=None if found else dg.SkipReason("no event of these kinds is new"),
            cursor=EventCursor.of(position).model_dump_json(),
        )

    return evaluate
