"""Give the rows of each bucket to the Spark task that reads or writes it.

A row has its bucket, its key's hash and columns by number, because Spark takes a name for an expression. A *mark* is a
row without a hash: it names a bucket that a task looks at though no key may be in it. Loads pyspark; its class is
sent to tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from orchestration.state.state_schema import Columns

_BUCKET, _HASH = "bucket", "hash"


def hashed_rows(frame: DataFrame, columns: Sequence[Column], *, key: int, buckets: int) -> DataFrame:
    """Return rows of these columns with their bucket and hash; the first `key` columns are the key's."""
    named = frame.select(*(column.alias(f"c{number}") for number, column in enumerate(columns)))
    hashed = F.xxhash64(*(F.col(f"c{number}") for number in range(key)))
    return named.select(
        F.pmod(hashed, F.lit(buckets).cast("bigint")).cast("int").alias(_BUCKET),
        hashed.alias(_HASH),
        *(F.col(f"c{number}") for number in range(len(columns))),
    )


def marks(session: SparkSession, chosen: Collection[int], columns: Columns) -> DataFrame:
    """Return a mark for each of some buckets; each column is null."""
    number = F.col("id")
    frame = session.range(0, max(chosen, default=-1) + 1, 1, 1)
    return frame.where(number.isin(sorted(chosen)) if chosen else F.lit(False)).select(  # noqa: FBT003  SQL's literal
        number.cast("int").alias(_BUCKET),
        F.lit(None).cast("bigint").alias(_HASH),
        *(F.lit(None).cast(kind).alias(f"c{at}") for at, (_, kind) in enumerate(columns)),
    )


def by_task(session: SparkSession, rows: DataFrame, buckets: int) -> DataFrame:
    """Return the rows so that one task has all of a bucket. There are as many tasks as Spark shuffles into."""
    shuffled = session.conf.get("spark.sql.shuffle.partitions") or ""
    # Some platforms say "auto".
    tasks = min(buckets, int(shuffled)) if shuffled.isdecimal() else buckets
    return rows.repartitionById(tasks, F.col(_BUCKET))


@dataclass(frozen=True, slots=True)
class BucketRows:
    """Hold the rows of one bucket without marks, in the columns of a schema."""

    bucket: int
    rows: pa.Table


def buckets_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[BucketRows]:
    """Yield the buckets of a task, in order, each with its rows in `schema`, whose first column is the hash."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return
    table = pa.Table.from_batches(found).combine_chunks()
    of_rows: np.ndarray[Any, Any] = table[_BUCKET].to_numpy()
    is_mark: np.ndarray[Any, Any] = table[_HASH].is_null().to_numpy()
    columns = [
        # In UTC, and without the names that Spark gives to what is in a list.
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns[1:], schema, strict=True)
    ]
    rows = pa.table(columns, schema=schema)
    order = np.argsort(of_rows, kind="stable")
    for bucket in np.unique(of_rows).tolist():
        begin, end = np.searchsorted(of_rows[order], [bucket, bucket + 1])
        chosen = order[begin:end]
        yield BucketRows(bucket, rows.take(pa.array(chosen[~is_mark[chosen]])))
