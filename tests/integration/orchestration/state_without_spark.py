"""Read and write a state without Spark: its tasks run in this process, on rows that are made here.

What is replaced is Spark's part alone, which is the hash, the shuffle and the columns' types; reading, writing, frames
and files are the real ones. `test_state_on_spark.py` has Spark's part.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions

from orchestration.state import bucketed_rows, matched_columns
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.sources.records.ddl import parse_ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import pytest

# So few that different keys have the same one.
_HASHES = 5
_TASKS = 2


class Given:
    """A DataFrame as an output's function returns it, or is given one: rows in Arrow."""

    isStreaming = False  # noqa: N815  Spark's name
    mapInArrow = None  # noqa: N815  the same; no sink gets it

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def select(self, *_: str) -> Given:
        """Return this frame."""
        return self

    def persist(self) -> Given:
        """Return this frame, whose rows are here already."""
        return self

    def unpersist(self) -> None:
        """Do nothing."""


class _Column:
    def __init__(self, name: str) -> None:
        self._name = name

    def alias(self, _: str) -> str:
        """Return where the column is: the names are given by the table's order."""
        return self._name


class _Rows:
    """Rows with their bucket and hash."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def distinct(self) -> _Rows:
        """Return each row once."""
        return _Rows(self.table.group_by(self.table.column_names, use_threads=False).aggregate([]))

    def unionAll(self, other: _Rows) -> _Rows:  # noqa: N802
        """Return the rows of both."""
        return _Rows(pa.concat_tables([self.table, other.table]))

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> _Answers:  # noqa: N802
        """Run each task with all rows of its buckets."""
        buckets = self.table["bucket"].to_pylist()
        answers: list[pa.RecordBatch] = []
        for task in range(_TASKS):
            rows = self.table.take(pa.array([at for at, one in enumerate(buckets) if one % _TASKS == task], pa.int64()))
            answers.extend(function(iter(rows.to_batches())))
        return _Answers(answers)


class _Found(list[dict[str, Any]]):
    """Rows that are here already: nothing is cached of them."""

    def persist(self) -> _Found:
        return self

    def unpersist(self) -> None:
        pass


class _Answers:
    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches

    def collect(self) -> list[dict[str, Any]]:
        """Return the answers as rows."""
        return [row for batch in self._batches for row in batch.to_pylist()]

    def select(self, *_: str) -> _Found:
        """Return the answers as rows, with numbers for names."""
        return _Found(self.collect())


def _hashed_rows(frame: Given, columns: Sequence[pa.ChunkedArray], *, key: int, buckets: int) -> _Rows:
    del frame
    keys = zip(*(column.to_pylist() for column in columns[:key]), strict=True)
    hashes = [zlib.crc32(repr(values).encode()) % _HASHES for values in keys]
    arrays = [pa.array([each % buckets for each in hashes], pa.int32()), pa.array(hashes, pa.int64()), *columns]
    return _Rows(pa.table(arrays, names=["bucket", "hash", *(f"c{at}" for at in range(len(columns)))]))


def _marks(_: object, chosen: Collection[int], columns: Sequence[tuple[str, str]]) -> _Rows:
    types = [_type(kind) for _, kind in columns]
    nulls = [pa.nulls(len(chosen), kind) for kind in (pa.int64(), *types)]
    arrays = [pa.array(sorted(chosen), pa.int32()), *nulls]
    return _Rows(pa.table(arrays, names=["bucket", "hash", *(f"c{at}" for at in range(len(columns)))]))


def _matched(frame: Given, columns: Sequence[tuple[str, str]], _: str, *, exactly: bool) -> list[pa.ChunkedArray]:
    del exactly
    return [frame.table[name].cast(_type(kind)) for name, kind in columns]


def _type(kind: str) -> pa.DataType:
    return arrow_schema(parse_ddl(f"c {kind}").columns).field(0).type


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let states be read and written without Spark; an output's function gets a list of rows, `c0` and so on."""
    monkeypatch.setattr(bucketed_rows, "hashed_rows", _hashed_rows)
    monkeypatch.setattr(bucketed_rows, "marks", _marks)
    monkeypatch.setattr(bucketed_rows, "by_task", lambda _, rows, __: rows)
    monkeypatch.setattr(matched_columns, "matched_columns", _matched)
    monkeypatch.setattr(functions, "col", _Column)
