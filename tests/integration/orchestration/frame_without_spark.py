"""Provide a DataFrame as sinks see one, without Spark: a sink's steps run many times, and starting a JVM takes seconds.

Tests that are about tasks have a real Spark (`test_sinks_on_spark.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame

WORDS = StructType([StructField("word", StringType()), StructField("n", LongType())])


class FrameWithoutSpark:
    """Partitions of rows; each is a task, which runs when the frame is collected."""

    isStreaming = False  # noqa: N815  Spark's name

    def __init__(self, *partitions: list[tuple[Any, ...]], schema: StructType = WORDS) -> None:
        self.schema = schema
        self._partitions = partitions
        self._function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self.schema.fields]

    def toDF(self, *names: str) -> FrameWithoutSpark:  # noqa: N802
        """Return a frame with other names, as Spark's method does."""
        fields = [StructField(name, field.dataType) for name, field in zip(names, self.schema.fields, strict=True)]
        return FrameWithoutSpark(*self._partitions, schema=StructType(fields))

    def mapInArrow(  # noqa: N802
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str
    ) -> FrameWithoutSpark:
        """Return a frame with the function applied, as Spark's method does."""
        made = FrameWithoutSpark(*self._partitions, schema=self.schema)
        made._function = function
        return made

    def persist(self, _: object) -> FrameWithoutSpark:
        """Return this frame: its tasks run again, with the same rows."""
        return self

    def unpersist(self) -> FrameWithoutSpark:
        """Return this frame."""
        return self

    def select(self, *names: str) -> FrameWithoutSpark:
        """Return a frame of these columns of the function's answers, as Spark's method does."""
        function = self._function
        assert function is not None
        return self.mapInArrow(lambda batches: (one.select(list(names)) for one in function(batches)), "")

    def toArrow(self) -> pa.Table:  # noqa: N802
        """Return the rows, or what `collect` returns of their function; then a table without columns of no rows."""
        if self._function is None:
            return pa.Table.from_batches([self.batch(rows) for rows in self._partitions])
        answers = self.collect()
        return pa.Table.from_pylist(answers) if answers else pa.table({"block": pa.array([], pa.binary())})

    def batch(self, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
        fields = list(to_arrow_schema(self.schema, timezone="UTC"))
        arrays = [_array([row[at] for row in rows], field.type) for at, field in enumerate(fields)]
        return pa.record_batch(arrays, schema=pa.schema(fields))

    def collect(self) -> list[dict[str, Any]]:
        """Run one task per partition, in order."""
        assert self._function is not None
        answers: list[dict[str, Any]] = []
        for rows in self._partitions:
            for answer in self._function(iter([self.batch(rows)])):
                answers.extend(answer.to_pylist())
        return answers


def _array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return a column. A text may hold bytes that are not UTF-8, as Python escapes them."""
    if type_ != pa.string():
        return pa.array(values, type_)
    encoded = [None if value is None else value.encode(errors="surrogateescape") for value in values]
    return pa.array(encoded, pa.binary()).view(pa.string())


def words(*rows: tuple[Any, ...], parts: int = 2) -> DataFrame:
    """Return a frame of (word, n) rows, distributed over this number of partitions."""
    return cast("DataFrame", FrameWithoutSpark(*(list(rows[part::parts]) for part in range(parts))))


class SessionWithoutSpark:
    """A session that reads nothing: a pipeline's output function gets its frames, and must not look at them."""

    def __getattr__(self, _: str) -> SessionWithoutSpark:
        return self

    def __call__(self, *_: object, **__: object) -> SessionWithoutSpark:
        return self
