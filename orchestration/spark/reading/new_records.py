"""Mark the records of a window that an output sees for the first time. Loads pyspark; reads nothing by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def marked(new: DataFrame, earlier: DataFrame, column: str) -> DataFrame:
    """Return the records of both, with a BOOLEAN column that is true for those of `new`.

    Raises ValueError if the stream has a column of this name: Spark would put the mark in its place.
    """
    taken = [name for name in new.columns if name.casefold() == column.casefold()]
    if taken:
        message = f"new_column={column!r}: the stream has a column {taken[0]!r}: give new_column another name"
        raise ValueError(message)
    return new.withColumn(column, F.lit(True)).unionAll(earlier.withColumn(column, F.lit(False)))  # noqa: FBT003  a value
