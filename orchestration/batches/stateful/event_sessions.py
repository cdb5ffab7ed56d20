"""Plans sessions by event time, with all records of each: a session ends a gap after its last record.

The state keeps each record of sessions that are not final once, by the session's key. A batch reads all of the keys
that have a new record, and of those of which the watermark has passed a record. Loads pyspark.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it
from pyspark.sql.pandas.types import to_arrow_schema

from orchestration.batches.stateful.event_records import (
    AT,
    END,
    IDENTITY,
    IS_NEW,
    RECORD,
    START,
    EventPlan,
    is_up_to,
    of_micros,
)
from orchestration.batches.stateful.event_windows import window_columns
from orchestration.declarations.sink import SinkError
from orchestration.declarations.state.event_time import WINDOW_START
from orchestration.spark.reading.spark_types import spark_type
from orchestration.state.state_schema import EXPIRES_AT, IS_EXPIRED, StateSchema
from receiver_runtime.sources.records.ddl import parse_spark_types, quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from orchestration.declarations.state.event_time import SessionWindow

_OLD_START = "old_start"
_SESSION = "session"


class SessionPlan(EventPlan):
    """Plan one batch of sessions; `watermark`: after it, in microseconds."""

    def __init__(
        self, window: SessionWindow, records: DataFrame, record_type: str, watermark: int | None, *, updates: bool
    ) -> None:
        super().__init__()
        self._names = window.key
        self._gap = window.gap // timedelta(microseconds=1)
        self._type = record_type
        self._after = watermark
        self._updates = updates
        self._key = keys_of_records(records, window.key, "a session's key")
        self._columns = [name for name, _ in self._key]
        self.records = with_keys(records, window.key)

    def schema(self) -> StateSchema:
        """Return the columns: a group is a session's key."""
        value = ((EXPIRES_AT, "TIMESTAMP"), (AT, "BIGINT"), (RECORD, self._type))
        return StateSchema((*self._key, *IDENTITY), value, grouped_by=len(self._key))

    def groups(self) -> DataFrame | None:
        """Return the keys that have a new record."""
        return self.records.select(*self._columns)

    def take(self, state: DataFrame) -> None:
        """Take the state, and find the sessions before and after the batch."""
        super().take(state)
        columns = [*self._columns, *(name for name, _ in IDENTITY), AT, RECORD]
        of_state = self._with_sessions(state.select(*columns, IS_EXPIRED)).withColumnRenamed(START, _OLD_START)
        new = self.records.select(*columns, F.expr("false").alias(IS_EXPIRED), F.expr("true").alias(IS_NEW))
        all_rows = (
            of_state.drop(END)
            .withColumn(IS_NEW, F.expr("false"))
            .unionByName(new.withColumn(_OLD_START, F.lit(None).cast("bigint")))
        )
        self._rows = self._cache(self._with_sessions(all_rows))

    def _with_sessions(self, rows: DataFrame) -> DataFrame:
        """Return the rows with START and END of their session."""
        in_time = Window.partitionBy(*self._columns).orderBy(AT)
        before = F.lag(AT).over(in_time)
        begins = (before.isNull() | (F.col(AT) - before >= F.lit(self._gap))).cast("int")
        numbered = rows.withColumn("begins", begins).withColumn(
            _SESSION, F.sum("begins").over(in_time.rowsBetween(Window.unboundedPreceding, Window.currentRow))
        )
        whole = Window.partitionBy(*self._columns, _SESSION)
        return (
            numbered.withColumn(START, F.min(AT).over(whole))
            .withColumn(END, F.max(AT).over(whole) + F.lit(self._gap))
            .drop("begins", _SESSION)
        )

    def _in_result(self) -> DataFrame:
        if not self._updates:
            return self._rows.where(is_up_to(F.col(END), self._after))
        # One that becomes final comes once more, as windows do.
        has_new = F.max(IS_NEW).over(Window.partitionBy(*self._columns, START))
        return self._rows.withColumn("has_new", has_new).where(F.col("has_new") | is_up_to(F.col(END), self._after))

    def given(self) -> Sequence[DataFrame]:
        """Return the records of the sessions that the result has, with each session's start and end."""
        return [self._in_result().select(f"{RECORD}.*", *window_columns())]

    def changes(self) -> DataFrame:
        """Return the records of sessions that are not final: the new ones, and those that would expire before it."""
        rows = self._rows.where(~is_up_to(F.col(END), self._after) & (F.col(IS_NEW) | F.col(IS_EXPIRED)))
        return rows.select(
            *self._columns, *(name for name, _ in IDENTITY), of_micros(F.col(END)).alias(EXPIRES_AT), AT, RECORD
        )

    def replaced(self) -> DataFrame | None:
        """Return the sessions as they were, of those in the result, and as they are: one may take up several."""
        if not self._updates:
            return None
        rows = self._in_result()
        starts = rows.select(*self._columns, F.explode(F.array(START, F.coalesce(_OLD_START, START))).alias("us"))
        return starts.distinct().select(
            *(F.col(key).alias(name) for key, name in zip(self._columns, self._names, strict=True)),
            of_micros(F.col("us")).alias(WINDOW_START),
        )


def keys_of_records(records: DataFrame, names: Sequence[str], what: str) -> tuple[tuple[str, str], ...]:
    """Return the state's columns for some columns of the records. Raises SinkError for one that there is not."""
    fields = to_arrow_schema(records.select(f"{RECORD}.*").schema, timezone="UTC")
    if missing := [name for name in names if name not in fields.names]:
        raise SinkError(f"{what} has the column {missing[0]!r}, and the records have {', '.join(fields.names)}")
    types = ", ".join(f"key{number} {spark_type(fields.field(name).type)}" for number, name in enumerate(names))
    return parse_spark_types(types)


def with_keys(records: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return the records with some of their columns as a state's key has them."""
    keys = {f"key{number}": F.col(f"{RECORD}.{quoted(name)}") for number, name in enumerate(names)}
    return records.withColumns(keys)
