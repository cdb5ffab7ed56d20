"""Plans windows of one length by event time, with all records of each.

The state keeps each record of windows that are not final once, by its *pane*: the longest span of time that no window
begins or ends in. A batch reads the panes of the windows that have a new record, or that become final. Loads pyspark.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from orchestration.batches.stateful.event_records import (
    AT,
    BLOCK,
    END,
    IDENTITY,
    NUMBER,
    RECORD,
    START,
    EventPlan,
    is_up_to,
    of_micros,
)
from orchestration.declarations.state.event_time import WINDOW_END, WINDOW_START
from orchestration.state.state_schema import EXPIRES_AT, StateSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from orchestration.declarations.state.event_time import EventWindow

# A pane's records are read and written by this many tasks.
PARTS = 16
# More panes than these become final at once only after a gap; then all of the state is read.
_MOST_PANES = 20_000
_PANE, _PART = "pane", "part"
_TOUCHED = "is_touched"


class WindowPlan(EventPlan):
    """Plan one batch of windows; `watermarks`: before and after it, in microseconds."""

    def __init__(
        self,
        window: EventWindow,
        records: DataFrame,
        record_type: str,
        watermarks: tuple[int | None, int | None],
        *,
        updates: bool,
    ) -> None:
        super().__init__()
        microsecond = timedelta(microseconds=1)
        self._length, self._slide, self._pane = (
            each // microsecond for each in (window.length, window.slide, window.pane)
        )
        self.records = records
        self._type = record_type
        self._before, self._after = watermarks
        self._updates = updates

    def schema(self) -> StateSchema:
        """Return the columns: a group is a part of a pane."""
        key = ((_PANE, "BIGINT"), (_PART, "INT"), *IDENTITY)
        return StateSchema(key, ((EXPIRES_AT, "TIMESTAMP"), (AT, "BIGINT"), (RECORD, self._type)), grouped_by=2)

    def groups(self) -> DataFrame | None:
        """Return the panes of the windows that have a new record, or that become final."""
        panes = self._panes_of_final()
        if panes is None:
            return None
        if self._updates:
            panes = panes.unionAll(self._panes_of_touched()).distinct()
        return panes.select(_PANE, F.explode(F.sequence(F.lit(0), F.lit(PARTS - 1))).alias(_PART))

    def _touched(self) -> DataFrame:
        """Return the windows that have a new record and are not final."""
        windows = in_windows(self._panes_of_records(), self._length, self._slide, self._before).select(START)
        return windows if self._slide == self._length else windows.distinct()

    def _panes_of_records(self) -> DataFrame:
        """Return the starts of the panes of the new records; all times of a pane are in the same windows."""
        return self.records.select(self._pane_of(F.col(AT)).alias(AT)).distinct()

    def _pane_of(self, time: Column) -> Column:
        return time - F.pmod(time, F.lit(self._pane))

    def _panes_of_touched(self) -> DataFrame:
        at = F.col(AT)
        last = last_start(at, self._slide) + F.lit(self._length - self._pane)
        first = first_start(at, self._length, self._slide)
        panes = F.explode(F.sequence(first, last, F.lit(self._pane)))
        return self._panes_of_records().select(panes.alias(_PANE)).distinct()

    def _panes_of_final(self) -> DataFrame | None:
        """Return the panes of the windows that become final, also of those without any record; None: too many."""
        session = self.records.sparkSession
        final = self._final()
        if not final:
            return session.range(0).select(F.col("id").alias(_PANE))
        count = (final[-1] + self._length - final[0]) // self._pane
        if count > _MOST_PANES:
            return None
        return session.range(count).select((F.col("id") * self._pane + F.lit(final[0])).alias(_PANE))

    def _final(self) -> range:
        """Return the starts of the windows that become final, also of those without any record."""
        # Without a watermark before, there is no state yet.
        if self._before is None or self._after is None:
            return range(0)
        first, last = (last_start_at(time - self._length, self._slide) for time in (self._before, self._after))
        return range(first + self._slide, last + 1, self._slide)

    def given(self) -> Sequence[DataFrame]:
        """Return the records of the windows that the result has, with each window's start and end."""
        columns = [RECORD, AT]
        flat, names = in_columns(self.records.select(*columns).unionAll(self._state.select(*columns)))
        rows = in_windows(flat, self._length, self._slide, self._before)
        in_result = is_up_to(F.col(END), self._after)
        if self._updates:
            # A window that becomes final comes once more: a batch that runs again may have another watermark.
            touched = self._touched().withColumn(_TOUCHED, F.expr("true"))
            rows = rows.join(F.broadcast(touched), START, "left")
            in_result = in_result | F.coalesce(F.col(_TOUCHED), F.expr("false"))
        rows = rows.where(in_result)
        return [rows.select(*(F.col(of_flat).alias(name) for of_flat, name in names), *window_columns())]

    def changes(self) -> DataFrame:
        """Return the new records that are in a window that is not final. What is final expires by itself."""
        last = last_start(F.col(AT), self._slide) + F.lit(self._length)
        rows = self.records.where(~is_up_to(last, self._after))
        return rows.select(
            self._pane_of(F.col(AT)).alias(_PANE),
            F.pmod(F.col(BLOCK) + F.col(NUMBER), F.lit(PARTS)).cast("int").alias(_PART),
            *(name for name, _ in IDENTITY),
            of_micros(last).alias(EXPIRES_AT),
            AT,
            RECORD,
        )

    def replaced(self) -> DataFrame | None:
        """Return the starts of the windows that have a new record, or become final."""
        if not self._updates:
            return None
        starts, final = self._touched(), self._final()
        if final:
            ids = self.records.sparkSession.range(len(final))
            starts = starts.unionAll(ids.select((F.col("id") * self._slide + F.lit(final[0])).alias(START)))
        return starts.select(of_micros(F.col(START)).alias(WINDOW_START))


def in_columns(records: DataFrame) -> tuple[DataFrame, list[tuple[str, str]]]:
    """Return the records' fields as columns, with AT, and which column has which field.

    Spark 4.3 loses a field that is taken out of a record above `explode` and a join ("Could not find _extract_…" in an
    INTERNAL_ERROR_ATTRIBUTE_NOT_FOUND). So they are taken out below.
    """
    names = records.select(f"{RECORD}.*").columns
    flat = [(f"field{number}", name) for number, name in enumerate(names)]
    fields = [F.col(RECORD).getField(name).alias(of_flat) for of_flat, name in flat]
    return records.select(*fields, AT), flat


def in_windows(records: DataFrame, length: int, slide: int, final: int | None) -> DataFrame:
    """Return each record once for each of its windows that ends after `final`, with START and END."""
    at = F.col(AT)
    every = F.sequence(first_start(at, length, slide), last_start(at, slide), F.lit(slide))
    exploded = records.withColumn(START, F.explode(every))
    rows = exploded.withColumn(END, F.col(START) + F.lit(length))
    return rows if final is None else rows.where(F.col(END) > F.lit(final))


def first_start(at: Column, length: int, slide: int) -> Column:
    """Return the start of the first window that a time is in."""
    return last_start(at - F.lit(length), slide) + F.lit(slide)


def last_start_at(at: int, slide: int) -> int:
    """Return the same as ``last_start``, of a number."""
    return at - at % slide


def last_start(at: Column, slide: int) -> Column:
    """Return the start of the last window that a time is in."""
    return at - F.pmod(at, F.lit(slide))


def window_columns() -> list[Column]:
    """Return the columns that say which window a row is of."""
    return [of_micros(F.col(START)).alias(WINDOW_START), of_micros(F.col(END)).alias(WINDOW_END)]
