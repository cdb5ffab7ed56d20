"""Give the rows of a result to the tasks of a sink, whatever its columns are named.

Spark's `mapInArrow` takes a name for an expression, in which a dot leads into a struct and a backtick quotes, so that a
column of such a name fails. Loads neither Spark nor Dagster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_OF_EXPRESSIONS = frozenset(".`")


def answers_of(result: DataFrame, task: Task, answer: str) -> list[Any]:
    """Run `task` on each partition's rows, and return the rows of its answers, whose columns are `answer`, as DDL."""
    names = list(result.columns)
    if not any(_OF_EXPRESSIONS & set(name) for name in names):
        return result.mapInArrow(task, answer).collect()

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from task(batch.rename_columns(names) for batch in batches)

    return result.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(renamed, answer).collect()
