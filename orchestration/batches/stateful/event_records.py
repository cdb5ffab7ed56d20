"""Owns what plans of outputs by event time share: the columns of a record with its time, and a plan's interface.

Times are BIGINT microseconds since 1970, so that windows are cut exactly. Loads pyspark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from orchestration.state.state_schema import ddl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from orchestration.state.state_schema import StateSchema

#: A record as one value, its event time, and its identity: the batch, the block in it and the number in the block.
RECORD, AT, BATCH, BLOCK, NUMBER = "record", "at", "batch", "block", "number"
#: The columns of a state's key that identify a record, as Spark's DDL.
IDENTITY = ((BATCH, "BIGINT"), (BLOCK, "INT"), (NUMBER, "BIGINT"))
#: Whether a record is one of this batch.
IS_NEW = "is_new"
START, END = "window_start_us", "window_end_us"


def of_micros(column: Column) -> Column:
    """Return the TIMESTAMP of microseconds."""
    return F.timestamp_micros(column)


def is_up_to(column: Column, watermark: int | None) -> Column:
    """Return whether a time is not after the watermark; without one, none is."""
    never = F.expr("false")
    return never if watermark is None else column <= F.lit(watermark)


class EventPlan(ABC):
    """Plan what one batch reads of the state, gives the output's function, and leaves in the state."""

    records: DataFrame
    _state: DataFrame

    def __init__(self) -> None:
        self._cached: list[DataFrame] = []

    @abstractmethod
    def schema(self) -> StateSchema:
        """Return the state's columns. Raises ValueError if a record has a key that no state can have."""

    @abstractmethod
    def groups(self) -> DataFrame | None:
        """Return the groups of the state that the batch needs; None: all of them."""

    def take(self, state: DataFrame) -> None:
        """Take the rows of those groups, and of each group of which the watermark has passed a row."""
        self._state = state

    @abstractmethod
    def given(self) -> Sequence[DataFrame]:
        """Return what the output's function gets first."""

    def arguments(self) -> Mapping[str, DataFrame]:
        """Return what it gets by name."""
        return {}

    def results(self, returned: object, where: str) -> tuple[Any, DataFrame]:  # noqa: ARG002  one plan needs it
        """Return the result, and the changed state."""
        return returned, self.changes()

    @abstractmethod
    def changes(self) -> DataFrame:
        """Return the changed rows of the state."""

    @abstractmethod
    def replaced(self) -> DataFrame | None:
        """Return the identities of the windows whose rows the result replaces; None: it replaces none."""

    def release(self) -> None:
        """Let go of what was cached."""
        for frame in self._cached:
            frame.unpersist()

    def _cache(self, frame: DataFrame) -> DataFrame:
        """Cache a frame that the result and the changed state are both computed of."""
        self._cached.append(frame.persist())
        return frame

    def no_groups(self) -> DataFrame:
        """Return no group."""
        return self._nothing(ddl(self.schema().group))

    def no_changes(self) -> DataFrame:
        """Return no row of the state."""
        return self._nothing(ddl(self.schema().columns))

    def _nothing(self, columns: str) -> DataFrame:
        return self.records.sparkSession.createDataFrame([], columns)
