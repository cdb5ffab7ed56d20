"""Provide places whose rows are in Parquet files, and what their readers see."""

from __future__ import annotations

import json
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from forebay.testing.sinks import SinkTarget
from orchestration.sinks.refused_rows import with_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql.types import StructType


class ArrowTarget(SinkTarget):
    """A place that is read by Arrow, and by others that read Parquet."""

    @abstractmethod
    def arrow(self) -> pa.Table | None:
        """Return all rows; None: there is no table."""

    @abstractmethod
    def files(self) -> list[str]:
        """Return the paths of the files that have the rows."""

    def read(self) -> list[dict[str, Any]]:
        found = self.arrow()
        rows: list[dict[str, Any]] = [] if found is None else found.to_pylist()
        return rows

    def numbers(self, schema: StructType) -> list[tuple[Any, ...]]:
        """Return the rows with numbers in place of dates and times, ordered by the first column."""
        found = self.arrow()
        assert found is not None
        found = found.select(schema.names).sort_by(schema.names[0])
        as_numbers = [field.with_type(with_leaves(field.type, _number)) for field in found.schema]
        return [tuple(row.values()) for row in found.cast(pa.schema(as_numbers)).to_pylist()]

    def readers(self) -> dict[str, Callable[[], list[dict[str, Any]]]]:
        files = self.files()
        return {reader.__name__: partial(reader, files) for reader in (_by_spark, _by_duckdb)}


def times_in(file: str) -> set[tuple[str, str, bool]]:
    """Return how a Parquet file has its times: the physical type, the unit, and whether they are in UTC."""
    schema = parquet.read_metadata(file.removeprefix("file://")).schema
    columns = [schema.column(at) for at in range(len(schema))]
    found = [(column.physical_type, json.loads(column.logical_type.to_json())) for column in columns]
    return {
        (physical, logical.get("timeUnit", ""), logical.get("isAdjustedToUTC", False))
        for physical, logical in found
        if physical == "INT96" or logical["Type"] == "Timestamp"
    }


def _by_spark(files: Sequence[str]) -> list[dict[str, Any]]:
    session = SparkSession.getActiveSession()
    assert session is not None
    rows: list[dict[str, Any]] = session.read.parquet(*files).toArrow().to_pylist()
    return rows


def _by_duckdb(files: Sequence[str]) -> list[dict[str, Any]]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.read_parquet(list(files), hive_partitioning=False).to_arrow_table()
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _number(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_date(type_):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(type_) else type_
