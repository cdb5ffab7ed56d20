"""Check columns that come later: they are added and widened with the first rows that have them, or refused by name."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import types

from forebay import IcebergSink
from forebay_contrib.iceberg.tests.test_modes import LAST, LATER, MERGE, Place
from orchestration.declarations.sink import SinkError, Step
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from orchestration.sinks.column_changes import ColumnPolicy

_INNER = types.StructType(
    [types.StructField("x.y", types.ArrayType(types.LongType())), types.StructField("z", types.StringType())]
)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def frame(rows: list[tuple[Any, ...]], **columns: types.DataType) -> DataFrame:
    return cast("DataFrame", FrameWithoutSpark(rows, schema=_struct(**columns)))


def wide(*rows: tuple[Any, ...]) -> DataFrame:
    return frame(list(rows), word=types.StringType(), n=types.LongType(), s=_INNER, **{"a b.c": types.DateType()})


def test_columns_are_added_in_the_commit_of_their_first_rows(place: Place) -> None:
    place.sink().write(words(("a", 1)), attempt())
    before = place.table()
    sink = place.sink()
    new = wide(("b", 2, {"x.y": [1, None], "z": None}, None))
    checked = sink.check_target(new.schema)
    assert (checked.health, checked.found) == ("ok", "s.t can be written; its next batch adds s, a b.c")
    assert place.table().schema() == before.schema()
    sink.write(new, attempt(time=LATER))
    table = place.table()
    assert [field.name for field in table.schema().fields] == ["word", "n", "_batch_time", "s", "a b.c"]
    # One version of the table has both the columns and the rows.
    log = [entry.metadata_file for entry in table.metadata.metadata_log]
    assert len(log) - log.index(before.metadata_location) == 1
    # Replays of a batch from before have null in them, and fit as before.
    place.sink().write(words(("a", 3)), attempt(2, time=TIME))
    rows = table.refresh().scan().to_arrow().to_pylist()
    assert [(row["word"], row["n"], row["s"], row["a b.c"]) for row in sorted(rows, key=lambda row: row["word"])] == [
        ("a", 3, None, None),
        ("b", 2, {"x.y": [1, None], "z": None}, None),
    ]


def test_columns_are_widened(place: Place) -> None:
    narrow = {"i": types.IntegerType(), "f": types.FloatType(), "d": types.DecimalType(5, 2)}
    place.sink().write(frame([(1, 0.5, Decimal("1.50"))], **narrow), attempt())
    wider = {"i": types.LongType(), "f": types.DoubleType(), "d": types.DecimalType(20, 2)}
    place.sink().write(frame([(2**40, 0.1, Decimal("123456789.25"))], **wider), attempt(time=LATER))
    assert [str(field.field_type) for field in place.table().schema().fields[:3]] == [
        "long",
        "double",
        "decimal(20, 2)",
    ]
    # Results of before still fit, and their values are those of the wider column.
    place.sink().write(frame([(3, 1.5, Decimal("2.50"))], **narrow), attempt(2))
    found = place.table().scan().to_arrow().to_pylist()
    assert sorted((row["i"], row["f"], row["d"]) for row in found) == [
        (3, 1.5, Decimal("2.50")),
        (2**40, 0.1, Decimal("123456789.25")),
    ]


def test_merge_finds_the_rows_of_before_a_key_was_widened(place: Place) -> None:
    options = {**MERGE, "key": ["i"]}
    place.sink(**options).write(frame([(1, "a"), (2, "b")], i=types.IntegerType(), word=types.StringType()), attempt())
    new = frame([(1, "c"), (2**40, "d")], i=types.LongType(), word=types.StringType())
    place.sink(**options).write(new, attempt(time=LATER))
    found = place.table().scan().to_arrow().to_pylist()
    assert sorted((row["i"], row["word"]) for row in found) == [(1, "c"), (2, "b"), (2**40, "d")]


@pytest.mark.parametrize("columns", ["add", "refuse"])
def test_a_merged_row_loses_what_the_result_lacks_only_if_the_columns_are_the_sinks(
    place: Place, columns: ColumnPolicy
) -> None:
    s, other = {"x.y": [1, None], "z": None}, {"x.y": None, "z": "z"}
    whole = {"word": types.StringType(), "n": types.LongType(), "s": _INNER, "more": types.StringType()}
    first = frame([("a", 1, s, "x"), ("b", 1, other, "y"), ("new", 1, s, "z"), ("late", 1, s, None)], **whole)
    place.sink(**MERGE, partition_by="more").write(first, attempt())
    place.sink(**MERGE).write(frame([("new", 9, other, "y")], **whole), attempt(time=LAST))
    with place.table().update_schema() as update:
        update.rename_column("more", "kept")
    sink = place.sink(**MERGE, columns=columns)
    # The newer row stays, and a replay finds what the attempt before it has kept.
    for number in (1, 2):
        sink.write(words(("a", 2), ("b", number), ("c", 2), ("new", 2)), attempt(number, time=LATER))
    read = sorted(place.table().scan().to_arrow().to_pylist(), key=lambda row: row["word"])
    keeps = columns == "refuse"
    assert [(row["word"], row["n"], row["s"], row["kept"]) for row in read] == [
        ("a", 2, *((s, "x") if keeps else (None, None))),
        ("b", 2, *((other, "y") if keeps else (None, None))),
        ("c", 2, None, None),
        ("late", 1, s, None),
        ("new", 9, other, "y"),
    ]
    partitions = {str(task.file.partition[0]) for task in place.table().scan().plan_files()}
    assert partitions == ({"x", "y", "None"} if keeps else {"y", "None"})


def test_two_batches_that_add_the_same_column_at_once_both_have_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sink().write(words(("a", 1)), attempt())
    sink, other = place.sink(), place.sink()

    def reached(step: Step) -> None:
        if step is Step.STAGED:
            other.write(wide(("c", 3, None, None)), attempt(time=LAST))

    monkeypatch.setattr(sink, "reached", reached)
    sink.write(wide(("b", 2, {"x.y": [7], "z": "z"}, None)), attempt(time=LATER))
    found = {row["word"]: row["s"] for row in place.table().scan().to_arrow().to_pylist()}
    assert found == {"a": None, "c": None, "b": {"x.y": [7], "z": "z"}}


def test_another_column_added_meanwhile_refuses_this_attempt(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the ids in files that are written: they are another column's now."""
    place.sink().write(words(("a", 1)), attempt())
    sink = place.sink()

    def reached(step: Step) -> None:
        if step is Step.STAGED:
            with place.table().update_schema() as update:
                update.add_column("theirs", LongType())

    monkeypatch.setattr(sink, "reached", reached)
    new = frame([("b", 2, 5)], word=types.StringType(), n=types.LongType(), m=types.LongType())
    with pytest.raises(SinkError, match=r"columns of the table .* since this attempt began, and m is another"):
        sink.write(new, attempt(time=LATER))
    place.sink().write(new, attempt(2, time=LATER))
    rows = place.table().scan().to_arrow().to_pylist()
    assert sorted((row["word"], row["theirs"], row["m"]) for row in rows if row["word"] == "b") == [("b", None, 5)]


def test_a_partition_spec_that_is_changed_meanwhile_parts_the_rows(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check rows that are in the files of tasks as they were parted before, or not at all."""
    for number, by in enumerate(([], ["word"]), start=1):
        sink = IcebergSink(f"s.t{number}", catalog=place.catalog, partition_by=by)
        sink.write(words(("a", 0)), attempt())
        with load_catalog("forebay", **place.catalog) as catalog:
            table = catalog.load_table(f"s.t{number}")

        def reached(step: Step, table: Table = table) -> None:
            if step is Step.STAGED:
                with table.update_spec() as update:
                    update.add_field("n", BucketTransform(4), "n_bucket")

        monkeypatch.setattr(sink, "reached", reached)
        sink.partition_by = ()
        sink.write(words(*(("a", n) for n in range(8)), parts=1), attempt(time=LATER))
        tasks = [*table.refresh().scan().plan_files()]
        bucket = BucketTransform(4).transform(LongType())
        found = {
            n
            for task in tasks
            if task.file.spec_id == table.spec().spec_id
            for n in parquet.read_table(task.file.file_path)["n"].to_pylist()
            if task.file.partition[number - 1] == bucket(n)
        }
        assert found == {*range(8)}


def test_a_column_that_is_required_meanwhile_refuses_this_attempt(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sink().write(words(("a", 1)), attempt())
    sink = place.sink()

    def reached(step: Step) -> None:
        if step is Step.STAGED:
            with place.table().update_schema(allow_incompatible_changes=True) as update:
                update.update_column("word", required=True)

    monkeypatch.setattr(sink, "reached", reached)
    with pytest.raises(SinkError, match="word, which has nulls in it, is required now: the next attempt writes it"):
        sink.write(words((None, 1)), attempt(time=LATER))


@pytest.mark.parametrize("columns", [None, "refuse", "add"])
def test_a_table_of_others_keeps_its_columns_unless_it_is_said(place: Place, columns: Any) -> None:  # noqa: ANN401
    with load_catalog("forebay", **place.catalog) as catalog:
        catalog.create_namespace("s")
        fields = (
            NestedField(1, "word", StringType(), required=False),
            NestedField(2, "_batch_time", TimestamptzType(), required=False),
        )
        catalog.create_table("s.t", Schema(*fields))
    sink = place.sink(columns=columns)
    if columns == "add":
        sink.write(words(("a", 1)), attempt())
        assert place.rows() == [("a", 1)]
        return
    checked = sink.check_target(words(("a", 1)).schema)
    assert (checked.health, "ALTER TABLE s.t ADD COLUMNS (n bigint)" in checked.found) == ("failed", True)
    with pytest.raises(SinkError, match="the table has no column n"):
        sink.write(words(("a", 1)), attempt())
    assert place.table().snapshots() == []


def test_a_type_that_the_format_does_not_widen_is_refused_before_a_row_is_written(place: Place, tmp_path: Path) -> None:
    inner, wider = _struct(y=types.LongType()), _struct(y=types.LongType(), z=types.LongType())
    place.sink().write(frame([(1, {"y": 1})], n=types.LongType(), s=inner), attempt())
    before = {*tmp_path.rglob("*.parquet")}
    for columns, why in (
        ({"n": types.StringType(), "s": inner}, r"column n is int64 in the table and string in the result.*cast"),
        ({"n": types.LongType(), "s": wider}, r"the table has no s\.z \(int64\)"),
    ):
        assert place.sink().check_target(_struct(**columns)).health == "failed"
        with pytest.raises(SinkError, match=why):
            place.sink(columns="add").write(frame([], **columns), attempt(2))
    assert {*tmp_path.rglob("*.parquet")} == before


def _struct(**fields: types.DataType) -> types.StructType:
    return types.StructType([types.StructField(name, type_) for name, type_ in fields.items()])
