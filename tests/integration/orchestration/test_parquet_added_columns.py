"""Test a ParquetSink whose result gains, loses and widens columns, in a directory and on an object store."""

from __future__ import annotations

import json
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from forebay import ParquetSink
from orchestration.declarations.sink import SinkError, Upkeep
from orchestration.sinks.parquet import parquet_columns, parquet_objects
from orchestration.sinks.parquet.parquet_columns import COLUMNS
from receiver_runtime.block_store.stores import objects
from receiver_runtime.block_store.stores.objects import Objects
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    Make = Callable[..., ParquetSink]


class LocalObjects(Objects):
    """Objects in a local directory, which is one that has no folders until something is in them."""

    def _made(self, key: str) -> str:
        self._filesystem.create_dir(self._at(key).rpartition("/")[0], recursive=True)
        return key

    def put(self, key: str, buffers: Sequence[Any]) -> None:
        super().put(self._made(key), buffers)

    def create(self, key: str) -> Any:  # noqa: ANN401
        return super().create(self._made(key))

    def copy(self, key: str, to: str) -> None:
        super().copy(key, self._made(to))

    def place(self, key: str) -> tuple[Any, str]:
        return super().place(self._made(key))


@pytest.fixture(params=["directory", "objects"])
def make(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    if request.param == "directory":
        return lambda **options: ParquetSink(tmp_path / "bucket" / "out", **options)
    local = SubTreeFileSystem(str(tmp_path), LocalFileSystem())
    for module in (objects, parquet_objects):
        monkeypatch.setattr(module, "open_objects", lambda _: LocalObjects(local, "bucket/out"))
    return lambda **options: ParquetSink("s3://bucket/out", **options)


def frame(*rows: tuple[Any, ...], **columns: DataType) -> DataFrame:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    return cast("DataFrame", FrameWithoutSpark(list(rows), schema=schema))


def write(sink: ParquetSink, result: DataFrame, number: int = 1, time: datetime = TIME) -> None:
    written = sink.write(result, attempt(number, time=time))
    sink.publish(written.location, batch_time=time)


def rows(sink: ParquetSink, *names: str) -> list[tuple[Any, ...]]:
    found = sink.dataset().to_table(columns=list(names)).to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


LATER = TIME + timedelta(seconds=10)
NARROW = {"n": IntegerType(), "x": FloatType(), "d": DecimalType(5, 2)}
WIDE = {"n": LongType(), "x": DoubleType(), "d": DecimalType(9, 2), "more": StringType()}


def test_readers_see_the_columns_of_all_batches_with_their_widest_types(make: Make) -> None:
    write(make(), frame((1, 0.5, Decimal("1.25")), **NARROW))
    write(make(), frame((2**40, 0.1, Decimal("1234567.25"), "x"), **WIDE), time=LATER)
    expected = [(1, 0.5, Decimal("1.25"), None), (2**40, 0.1, Decimal("1234567.25"), "x")]
    assert rows(make(), *WIDE) == expected
    assert make().dataset(TIME.date()).count_rows() == 2
    # A batch of older code, which is a replay here: its columns are written as all have them.
    write(make(), frame((3, 0.25, Decimal("1.25")), **NARROW), 2)
    assert rows(make(), *WIDE) == [expected[1], (3, 0.25, Decimal("1.25"), None)]
    assert {str(kind) for kind in make().dataset().schema.types} >= {"int64", "double", "decimal128(9, 2)"}


def test_a_type_that_no_reader_could_unite_is_refused_before_a_file(make: Make, tmp_path: Path) -> None:
    write(make(), frame((1, []), n=LongType(), a=ArrayType(IntegerType())))
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(SinkError) as refused:
        write(make(), frame(("1", []), n=StringType(), a=ArrayType(LongType())), time=LATER)
    said = str(refused.value)
    assert "column n is int64 in the table and string in the result: cast it to bigint in the output's function" in said
    assert "column a.element is int32 in the table and int64 in the result" in said
    assert said.endswith("Change the result, or give the output another path")
    with pytest.raises(SinkError, match=r"column N is n in the table, which differs in case alone"):
        write(make(), frame((1,), N=LongType()), time=LATER)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


def test_columns_that_must_stay_are_refused_and_one_that_is_missing_is_null(make: Make) -> None:
    strict = make(columns="refuse")
    write(strict, frame((1, 0.5, Decimal("1.25")), **NARROW))
    with pytest.raises(SinkError) as refused:
        write(strict, frame((2, 0.1, Decimal("1.25"), "x"), **WIDE), time=LATER)
    for said in ("no column more (string)", "column n is int32 in the table and int64 in the", "say columns='add'"):
        assert said in str(refused.value)
    write(strict, frame((2,), n=IntegerType()), time=LATER)
    assert rows(strict, "n", "x") == [(1, 0.5), (2, None)]


def test_folders_of_values_have_the_columns_of_all_batches(make: Make) -> None:
    parted = make(partition_by="word")
    write(parted, frame(("a", 1), word=StringType(), n=IntegerType()))
    write(parted, frame(("b", 2**40, "x"), word=StringType(), n=LongType(), more=StringType()), time=LATER)
    assert rows(parted, "word", "n", "more") == [("a", 1, None), ("b", 2**40, "x")]


def test_a_compacted_hour_has_the_columns_of_its_batches(make: Make) -> None:
    sink = make(compact=True)
    write(sink, frame((1, 0.5, Decimal("1.25")), **NARROW))
    write(sink, frame((2**40, 0.1, Decimal("1234567.25"), "x"), **WIDE), time=LATER)
    expected = rows(sink, *WIDE)
    turn = Upkeep("p", "o", hour=TIME, committed={TIME: 1, LATER: 1})
    assert sink.upkeep(turn) == {"hours": 1, "rows": 2}
    assert rows(sink, *WIDE) == expected
    write(sink, frame((2**41, 0.1, None, "y"), **WIDE), 2)
    assert rows(sink, *WIDE) == [expected[1], (2**41, 0.1, None, "y")]


def test_output_from_before_columns_were_kept_is_read_and_grows(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check many files too, of which the oldest and the newest are looked at."""
    monkeypatch.setattr(parquet_columns, "_LOOKED_AT", 1)
    for at, columns in enumerate(({"old": LongType()}, {"n": LongType()}, {"new": LongType()})):
        write(make(), frame((at,), **columns), time=TIME + timedelta(seconds=10 * at))
    [kept] = tmp_path.rglob(COLUMNS)
    kept.unlink()
    assert rows(make(), "old", "new") == [(0, None), (None, 2), (None, None)]
    write(make(), frame(("x",), newest=StringType()), time=LATER)
    assert pq.read_schema(kept).remove_metadata().names[:3] == make().dataset().schema.names[:3]
    assert {"old", "new", "newest"} <= {*make().dataset().schema.names}
    # Of two types that do not fit together, the newer one counts.
    kept.unlink()
    write(make(), frame(("x",), new=StringType()), time=LATER + timedelta(hours=1))
    write(make(), frame(("y",), new=StringType()), time=LATER + timedelta(hours=2))
    assert str(make().dataset().schema.field("new").type) == "string"


def test_the_check_says_what_the_next_batch_adds(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path)
    wide = frame((2, 0.1, None, "x"), **WIDE).schema
    assert sink.check_target(wide) == sink.check_target()
    write(sink, frame((1, 0.5, None), **NARROW))
    checked = sink.check_target(wide)
    assert checked is not None
    assert (checked.health, checked.found.rpartition("; ")[2]) == ("ok", "its next batch adds more and widens n, x, d")
    refused = ParquetSink(tmp_path, columns="refuse").check_target(wide)
    assert refused is not None
    assert (refused.health, "no column more" in refused.found) == ("failed", True)
    assert json.dumps(ParquetSink(tmp_path, columns="refuse").declaration()).count('"columns": "refuse"') == 1
