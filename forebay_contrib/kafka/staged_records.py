"""Keep the records of a result on the disks of Spark's workers until they are sent, and bring them to this process.

The workers compute a result once, side by side. One process sends it, because a transaction has one producer. It holds
the blocks of two partitions of the result at a time, or all of a small result.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from forebay_contrib.kafka.records import ANSWER, unpacked
from orchestration.declarations.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from forebay_contrib.kafka.records import RecordColumns

# Names that Spark takes for an expression.
_OF_EXPRESSIONS: Final = frozenset(".`")
# A result whose blocks have at most as many bytes is fetched at once, as Arrow: several times as fast as row by row.
_MOST_AT_ONCE: Final = 64 << 20


class StagedRecords:
    """Hold the records of a result: how many there are, and to which topics their rows say they go."""

    def __init__(self, blocks: DataFrame, where: str) -> None:
        self._blocks, self._where = blocks, where
        # It computes the result, and keeps the blocks: what is asked for here is little.
        answers = blocks.select("records", "topics", "bytes").collect()
        self.count = sum(answer["records"] for answer in answers)
        self.topics = sorted({topic for answer in answers for topic in answer["topics"]})
        self._bytes = sum(answer["bytes"] for answer in answers)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the records. Raises SinkError after the last one if they are more or fewer than before."""
        blocks = self._blocks.select("block")
        left = self.count
        if self._bytes <= _MOST_AT_ONCE:
            packed = (block.as_py() for block in blocks.toArrow()["block"])
        else:
            packed = (row["block"] for row in blocks.toLocalIterator(prefetchPartitions=True))
        for block in packed:
            records = unpacked(block)
            left -= records.num_rows
            yield records
        if left:
            # The part of a lost worker is computed again, and must have the same rows.
            raise SinkError(
                f"{self._where} had {self.count} rows, and {self.count - left} when they were sent: it changes"
            )


@contextmanager
def staged_records(result: DataFrame, columns: RecordColumns, where: str) -> Iterator[StagedRecords]:
    """Stage a result's records while the context lasts; `where` names the output."""
    from pyspark import StorageLevel  # noqa: PLC0415  declaring a sink needs no Spark

    blocks = _blocks(result, columns).persist(StorageLevel.DISK_ONLY)
    try:
        yield StagedRecords(blocks, where)
    finally:
        blocks.unpersist()


def _blocks(result: DataFrame, columns: RecordColumns) -> DataFrame:
    names = list(result.columns)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from columns.blocks(batch.rename_columns(names) for batch in batches)

    given: Any = result
    if any(_OF_EXPRESSIONS & set(name) for name in names):
        given = result.toDF(*(f"c{number}" for number in range(len(names))))
    made: DataFrame = given.mapInArrow(task, ANSWER)
    return made
