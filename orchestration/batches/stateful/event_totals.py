"""Plans windows by event time with a state of the user's own: a batch reads new records and the state of their keys.

A key of the state is one of a window; it expires when its window is final. The function's result and changed state are
computed as for all windows alike: what is not due yet, or is final, is left out here. Loads pyspark.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from orchestration.batches.stateful.event_records import END, START, EventPlan, is_up_to
from orchestration.batches.stateful.event_windows import in_columns, in_windows, window_columns
from orchestration.batches.stateful.state_function import checked_pair
from orchestration.declarations.pipeline import STATE_PARAMETER
from orchestration.declarations.sink import SinkError, checked_result
from orchestration.declarations.state.event_time import WINDOW_END, WINDOW_START
from orchestration.state.state_schema import EXPIRES_AT
from receiver_runtime.sources.records.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from orchestration.declarations.state.event_time import EventWindow
    from orchestration.state.state_schema import StateSchema


class TotalPlan(EventPlan):
    """Plan one batch; `watermarks`: before and after it, in microseconds."""

    def __init__(
        self,
        window: EventWindow,
        records: DataFrame,
        schema: StateSchema,
        watermarks: tuple[int | None, int | None],
        *,
        updates: bool,
    ) -> None:
        super().__init__()
        length, slide = (each // timedelta(microseconds=1) for each in (window.length, window.slide))
        self._length = length
        self._schema = schema
        before, self._after = watermarks
        self._updates = updates
        flat, names = in_columns(records)
        rows = in_windows(flat, length, slide, before)
        self.records = rows.select(*(F.col(of_flat).alias(name) for of_flat, name in names), START, END)

    def schema(self) -> StateSchema:
        """Return the user's columns, with those of the window."""
        return self._schema

    def given(self) -> Sequence[DataFrame]:
        """Return the new records, once for each of their windows."""
        names = [name for name in self.records.columns if name not in (START, END)]
        return [self.records.select(*(F.col(f"`{name}`") for name in names), *window_columns())]

    def groups(self) -> DataFrame | None:
        """Return the keys that occur in the new records, of each window."""
        frame = self.given()[0]
        names = {name.casefold() for name in frame.columns}
        if missing := [name for name in self._schema.key_names if name.casefold() not in names]:
            raise SinkError(
                f"the state has the key {missing[0]!r}, and the records have {', '.join(frame.columns)}: name a column"
            )
        return frame.select(*self._schema.key_names)

    def arguments(self) -> Mapping[str, DataFrame]:
        """Return the state of these keys, with the end of their window; `is_expired`: the window is final."""
        state = self._state.drop(EXPIRES_AT).withColumn(WINDOW_END, self._end())
        return {STATE_PARAMETER: state}

    def _end(self) -> Column:
        return F.timestamp_micros(F.unix_micros(F.col(WINDOW_START)) + F.lit(self._length))

    def results(self, returned: object, where: str) -> tuple[Any, DataFrame]:
        """Return what is due of the result, and the changes of windows that are not final."""
        result, changes = checked_pair(returned, where)
        for what, frame in (("result", result), ("changed state", changes)):
            if WINDOW_START not in checked_result(frame, where).columns:
                raise SinkError(f"{where}: its {what} has no column {WINDOW_START}: keep it in the function")
        is_final = is_up_to(F.unix_micros(self._end()), self._after)
        due = result if self._updates else result.where(is_final)
        # A key without a value is deleted: it has no time either.
        values = {name.casefold() for name, _ in self._schema.value}
        has_value = (F.col(quoted(name)).isNotNull() for name in changes.columns if name.casefold() in values)
        end = F.when(reduce(or_, has_value, F.expr("false")), self._end())
        return due, changes.drop(WINDOW_END).where(~is_final).withColumn(EXPIRES_AT, end)

    def changes(self) -> DataFrame:
        """Return nothing: the function does."""
        return self.no_changes()

    def replaced(self) -> DataFrame | None:
        """Return None: a row of the result has its key, and takes the place of that one."""
        return None
