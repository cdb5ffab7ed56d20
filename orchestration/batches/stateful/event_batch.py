"""Computes a batch of an output by event time: its records with their times, the watermark, and what is too late.

Which windows or pairs there are is the business of ``event_windows``, ``event_sessions`` and ``event_pairs``. All of it
depends on the batch's records, the state before it and the batch time alone. Loads pyspark; knows no driver log.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it
from pyspark.sql.pandas.types import to_arrow_schema

from orchestration.batches.stateful.event_pairs import PairPlan, names_of
from orchestration.batches.stateful.event_records import AT, BATCH, BLOCK, NUMBER, RECORD, EventPlan, of_micros
from orchestration.batches.stateful.event_sessions import SessionPlan
from orchestration.batches.stateful.event_totals import TotalPlan
from orchestration.batches.stateful.event_windows import WindowPlan, last_start
from orchestration.batches.stateful.watermark import EventProgress, Patience, advanced
from orchestration.declarations.sink import SinkError, checked_result
from orchestration.declarations.state.event_time import (
    WATERMARK,
    WINDOW_END,
    WINDOW_START,
    EventJoin,
    EventWindow,
    SessionWindow,
)
from orchestration.spark.reading.record_numbers import BLOCK_NUMBER, RECORD_NUMBER
from orchestration.spark.reading.spark_types import spark_type
from orchestration.state.state_frame import microseconds, time_of
from receiver_runtime.sources.fields.units import MOST_DAYS
from receiver_runtime.sources.records.ddl import parse_spark_types, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Row

    from orchestration.declarations.pipeline import Output
    from orchestration.declarations.state.event_time import EventOutput, EventTime, TimedStream
    from orchestration.state.state_schema import StateSchema

#: The time by which keys expire while there is no watermark.
BEFORE_ALL = datetime.min.replace(tzinfo=UTC)
# A time in the calendar's first or last century is none: the times that are computed of it would be outside of it.
_CENTURY = timedelta(days=MOST_DAYS)
_FIRST, _LAST = BEFORE_ALL + _CENTURY, datetime.max.replace(tzinfo=UTC) - _CENTURY
_LATE = "is_late"


class Computed(NamedTuple):
    """Hold what a batch makes: its result, the changed state, and the identities of windows that it replaces."""

    result: DataFrame
    changes: DataFrame
    replaced: DataFrame | None


class EventBatch:
    """Compute one batch of an output by event time.

    Args:
        output: by event time.
        frames: of the output's inputs. Those by event time have BLOCK_NUMBER and RECORD_NUMBER beside their columns.
        sources: of each input by event time, by its place: the source of each block, by the block's number.
        before: the progress before the batch.
        batch_time: of the batch.
        after: the progress after the batch, if it is known: the batch's result is computed as it was.

    Reads the batch's records once, for their times. Raises SinkError for a column that is no time, or a key that a
    state can't have.
    """

    def __init__(
        self,
        output: Output,
        frames: Sequence[DataFrame],
        sources: Mapping[int, Sequence[str]],
        before: EventProgress,
        batch_time: datetime,
        *,
        after: EventProgress | None = None,
    ) -> None:
        assert output.event is not None
        self._where = f"output {output.name!r} of pipeline {output.pipeline.name!r}"
        self._output = output
        self._event: EventOutput = output.event
        self._frames = list(frames)
        self._before = None if before.watermark is None else microseconds(before.watermark)
        self._batch_time = batch_time
        #: The name of each input by event time, by its place among the inputs.
        self._names = dict(
            zip(self._event.times, names_of([time.stream.name for time in self._event.times.values()]), strict=True)
        )
        self._timed = {place: self._prepared(frames[place], time) for place, time in self._event.times.items()}
        for frame in self._timed.values():
            frame.persist()
        try:
            self.progress = self._advanced(before, sources) if after is None else after
            watermark = self.progress.watermark
            self._plan = self._planned(None if watermark is None else microseconds(watermark))
            #: The columns of the state.
            self.schema: StateSchema = self._plan.schema()
        except ValueError as error:
            self._release_records()
            raise SinkError(f"{self._where}: {error}") from error
        except BaseException:
            self._release_records()
            raise

    @property
    def clock(self) -> datetime:
        """Return the time by which keys of the state expire: the watermark."""
        return self.progress.watermark or BEFORE_ALL

    def keys(self) -> DataFrame | None:
        """Return the groups of the state that the batch needs; None: all of them."""
        return self._plan.no_groups() if self._event.only_late else self._plan.groups()

    def compute(self, state: DataFrame, extra: Mapping[str, Any]) -> Computed:
        """Call the output's function. `state`: what ``keys`` asked for. `extra`: further arguments by name."""
        plan = self._plan
        if self._event.only_late:
            return Computed(self._late_records(), plan.no_changes(), None)
        plan.take(state)
        returned = self._output.function(*self._arguments(plan.given()), **plan.arguments(), **extra)
        result, changes = plan.results(returned, self._where)
        return Computed(checked_result(result, self._where), changes, plan.replaced())

    def _arguments(self, given: Sequence[DataFrame]) -> list[DataFrame]:
        """Return the function's arguments in the order of the inputs; those that are joined are one."""
        times = self._event.times
        others = [frame for place, frame in enumerate(self._frames) if place not in times]
        if isinstance(self._event.kind, EventJoin):
            return [*given, *others]
        return [given[0] if place in times else frame for place, frame in enumerate(self._frames)]

    def release(self) -> None:
        """Let go of what was cached."""
        self._release_records()
        self._plan.release()

    def _release_records(self) -> None:
        for frame in self._timed.values():
            frame.unpersist()

    # -- times ---------------------------------------------------------------------------------------------------------

    def _prepared(self, frame: DataFrame, time: EventTime) -> DataFrame:
        """Return the records, each as one value, with its time in microseconds and whether it is too late."""
        names = [name for name in frame.columns if name not in (BLOCK_NUMBER, RECORD_NUMBER)]
        self._check_names(names, time)
        at = F.expr(time.column if time.column not in names else quoted(time.column))
        try:
            kind = frame.select(at.alias(AT)).schema[AT].dataType.typeName()
        except PySparkException as error:
            raise SinkError(
                f"{self._where}: event time {time.column!r} of stream {time.stream.name!r}: {error}"
            ) from error
        if kind != "timestamp":
            raise SinkError(
                f"{self._where}: event time {time.column!r} of stream {time.stream.name!r} is {kind.upper()}, and must "
                f"be TIMESTAMP: declare the column so, or write an expression, as try_to_timestamp({time.column})"
            )
        micros = F.unix_micros(at)
        rows = frame.select(
            F.struct(*(F.col(quoted(name)) for name in names)).alias(RECORD),
            F.when(micros.between(F.lit(microseconds(_FIRST)), F.lit(microseconds(_LAST))), micros).alias(AT),
            F.lit(microseconds(self._batch_time)).alias(BATCH),
            F.col(BLOCK_NUMBER).alias(BLOCK),
            F.col(RECORD_NUMBER).alias(NUMBER),
        )
        return rows.withColumn(_LATE, self._is_late(time))

    def _check_names(self, names: Sequence[str], time: EventTime) -> None:
        """Refuse records that have a column of a name that is added to them."""
        if isinstance(self._event.kind, EventJoin):
            return
        added = {WATERMARK} if self._event.only_late else {WINDOW_START, WINDOW_END}
        if taken := [name for name in names if name.casefold() in added]:
            raise SinkError(
                f"{self._where}: stream {time.stream.name!r} has a column {taken[0]!r}, and one of this name is added "
                "to its records: rename it in records=…"
            )

    def _is_late(self, time: EventTime) -> Column:
        newest = microseconds(_later(self._batch_time, time.ahead))
        outside = F.col(AT).isNull() | (F.col(AT) > F.lit(newest))
        if self._before is None:
            return outside
        return outside | (self._last_end() <= F.lit(self._before))

    def _last_end(self) -> Column:
        """Return the end of the last window that a record is in; of a join, the time after which it is too late."""
        kind = self._event.kind
        if isinstance(kind, EventWindow):
            slide, length = (each // timedelta(microseconds=1) for each in (kind.slide, kind.length))
            return last_start(F.col(AT), slide) + F.lit(length)
        gap = kind.gap // timedelta(microseconds=1) if isinstance(kind, SessionWindow) else 1
        return F.col(AT) + F.lit(gap)

    def _advanced(self, before: EventProgress, sources: Mapping[int, Sequence[str]]) -> EventProgress:
        """Return the progress after the batch, of one look at its records."""
        found: dict[tuple[str, str], datetime] = {}
        late = 0
        looks = [self._look(place) for place in self._event.times if sources[place]]
        for place, block, partition, latest, late_here in _summed(looks):
            late += late_here
            if latest is not None:
                source = "/".join(map(str, partition)) if partition else sources[place][block]
                key = (self._names[place], source)
                found[key] = max(time_of(latest), found.get(key, BEFORE_ALL))
        streams = {self._names[place]: Patience(time.lateness, time.idle) for place, time in self._event.times.items()}
        return advanced(before, found, streams, batch_time=self._batch_time, late=late)

    def _look(self, place: int) -> DataFrame:
        """Return of each record of an input where it is from, its time unless that is wrong, and if it is too late."""
        time = self._event.times[place]
        newest = microseconds(_later(self._batch_time, time.ahead))
        partition = [F.col(f"{RECORD}.{quoted(name)}").cast("string") for name in _partition_columns(time.stream)]
        return self._timed[place].select(
            F.lit(place).alias("place"),
            BLOCK,
            F.array(*partition).cast("array<string>").alias("partition"),
            F.when(F.col(AT) <= F.lit(newest), F.col(AT)).alias(AT),
            _LATE,
        )

    # -- windows and pairs ---------------------------------------------------------------------------------------------

    def _planned(self, after: int | None) -> EventPlan:
        event, kind = self._event, self._event.kind
        timely = {place: frame.where(~F.col(_LATE)).drop(_LATE) for place, frame in self._timed.items()}
        ddl = {place: _ddl(frame) for place, frame in timely.items()}
        if isinstance(kind, EventJoin):
            names = (self._names[0], self._names[1])
            return PairPlan(kind, (timely[0], timely[1]), (ddl[0], ddl[1]), names, after)
        [(place, records)] = timely.items()
        if isinstance(kind, SessionWindow):
            return SessionPlan(kind, records, ddl[place], after, updates=event.updates)
        if event.state is not None:
            state = self._output.state
            assert state is not None
            return TotalPlan(kind, records, state.schema, (self._before, after), updates=event.updates)
        return WindowPlan(kind, records, ddl[place], (self._before, after), updates=event.updates)

    def _late_records(self) -> DataFrame:
        """Return the records that are too late, with the watermark that they came after."""
        watermark = F.lit(self._before).cast("bigint")
        late = [
            frame.where(F.col(_LATE)).select(F.lit(place).alias("place"), RECORD)
            for place, frame in self._timed.items()
        ]
        if len(late) == 1:
            return late[0].select(f"{RECORD}.*", of_micros(watermark).alias(WATERMARK))
        both = [
            frame.select(
                *(
                    (F.col(RECORD) if at == place else F.lit(None).cast(late[at].schema[RECORD].dataType)).alias(name)
                    for at, name in self._names.items()
                )
            )
            for place, frame in enumerate(late)
        ]
        return reduce(_together, both).withColumn(WATERMARK, of_micros(watermark))


def _summed(looks: Sequence[DataFrame]) -> Sequence[Row]:
    """Return of each input, block and partition the newest time and the number of records that are too late."""
    if not looks:
        return []
    grouped = reduce(_together, looks).groupBy("place", BLOCK, "partition")
    return grouped.agg(F.max(AT), F.count_if(F.col(_LATE))).collect()


def _ddl(frame: DataFrame) -> str:
    """Return the type of a record as a state has it."""
    arrow = to_arrow_schema(frame.select(RECORD).schema, timezone="UTC").field(0).type
    [(_, kind)] = parse_spark_types(f"{RECORD} {spark_type(arrow)}")
    return kind


def _partition_columns(stream: TimedStream) -> list[str]:
    """Return the columns of the records that name their partition."""
    source, records = stream.source, stream.records
    if records is None:
        return list(source.partition_columns)
    named = records.beside(dict(source.columns), source.record_column)
    # Without one of them, partitions can't be told apart.
    found = [named[name] for name in source.partition_columns if name in named]
    return found if len(found) == len(source.partition_columns) else []


def _together(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.unionAll(other)


def _later(time: datetime, by: timedelta) -> datetime:
    return time + min(by, datetime.max.replace(tzinfo=UTC) - time)
