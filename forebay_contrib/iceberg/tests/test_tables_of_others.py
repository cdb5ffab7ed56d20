"""Check that an Iceberg table which its owner made otherwise than the sink can write it is refused, before any file."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from pyspark.sql import types
from pyspark.sql.types import StructField as Column
from pyspark.sql.types import StructType as Columns

from forebay import IcebergSink
from forebay_contrib.iceberg.files import store_of
from orchestration.declarations.sink import AttemptOutdatedError, SinkError
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask
    from pyspark.sql import DataFrame


@pytest.mark.parametrize("odd", ["file://host/w", "w", "file:///a%20b", "file:///a#b"])
def test_an_iceberg_location_that_programs_read_in_several_ways_is_refused(odd: str) -> None:
    with pytest.raises(SinkError, match="programs read in several ways: give the catalog a warehouse of file:///"):
        store_of(None, odd, attempt().name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("s.t%41", "name the table otherwise"),
        ("s.a#b", "name the table otherwise"),
        ("s.a?b", "name the table otherwise"),
        ("s." + "ä" * 128, "has 256 bytes: a file system takes 255"),
        ("s" * 253 + ".t", "has 256 bytes: a file system takes 255"),
    ],
    ids=["percent", "hash", "question", "long", "long namespace"],
)
def test_a_name_that_its_directory_can_not_have_is_refused_before_the_table_is_made(
    tmp_path: Path, name: str, why: str
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    sink = IcebergSink(name, catalog=catalog)
    assert why in sink.check_target().found
    with pytest.raises(SinkError, match=why):
        sink.write(words(("a", 1)), attempt())
    with load_catalog("forebay", **catalog) as loaded:
        assert loaded.list_namespaces() == []


def _field(source: int, transform: str) -> dict[str, Any]:
    return {"source-id": source, "field-id": 1000, "transform": transform, "name": f"p{source}"}


_TIME = NestedField(3, "_batch_time", TimestamptzType(), required=False)
_WORD = NestedField(1, "word", StringType(), required=False)
_NUMBER = NestedField(2, "n", LongType(), required=False)


@pytest.mark.parametrize(
    ("word", "options", "named"),
    [
        (
            NestedField(1, "s", StructType(NestedField(4, "a", LongType(), required=True)), required=False),
            {},
            r"the required column s\.a within another one",
        ),
        (
            NestedField(1, "word", StringType(), required=True),
            {"identifiers": [1]},
            r"the identifier fields word, .* mode='merge', key=\['word'\]",
        ),
    ],
)
def test_an_iceberg_table_is_refused(tmp_path: Path, word: NestedField, options: dict[str, Any], named: str) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    columns = Schema(word, _NUMBER, _TIME, identifier_field_ids=options.pop("identifiers", []))
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        loaded.create_table("s.t", schema=columns, **options)
    before = {*(tmp_path / "warehouse").rglob("*.parquet")}
    sink = IcebergSink("s.t", catalog=catalog)
    checked = sink.check_target()
    assert (checked.health, bool(re.search(named, checked.found))) == ("failed", True)
    with pytest.raises(SinkError, match=named):
        sink.write(words(("a", 1)), attempt())
    assert {*(tmp_path / "warehouse").rglob("*.parquet")} == before


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            {"partition-specs": [{"spec-id": 0, "fields": [_field(1, "zorder[2]")]}]},
            "the partition p1, whose transform pyiceberg does not know, which IcebergSink does not write",
        ),
        (
            {"partition-specs": [{"spec-id": 0, "fields": [_field(4, "identity")]}]},
            "the partition p4 of a float",
        ),
        (
            {"partition-specs": [{"spec-id": 0, "fields": [_field(9, "identity")]}]},
            "the partition p9 of a column that is gone",
        ),
    ],
)
def test_what_pyiceberg_itself_makes_in_no_table_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        value = NestedField(4, "value", DoubleType(), required=False)
        table = loaded.create_table("s.t", Schema(_WORD, _NUMBER, _TIME, value))
    metadata = Path(table.metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **change}))
    sink = IcebergSink("s.t", catalog=catalog)
    assert re.search(named, sink.check_target().found)
    with pytest.raises(SinkError, match=named):
        sink.write(words(("a", 1)), attempt())
    assert not [*(tmp_path / "warehouse").rglob("*.parquet")]


def test_null_in_a_required_column_is_refused_with_its_row(tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    word = NestedField(1, "word", StringType(), required=True)
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        table = loaded.create_table("s.t", Schema(word, _NUMBER, _TIME))
    with pytest.raises(RefusedRowsError, match="column word is null, and must have a value"):
        IcebergSink("s.t", catalog=catalog).write(words(("a", 1), (None, 2)), attempt())
    keeping = IcebergSink("s.t", catalog=catalog, on_bad_rows="dead_letter")
    written = keeping.write(words(("a", 1), (None, 2)), attempt())
    assert (written.rows, written.refused) == (1, 1)
    assert table.refresh().scan().to_arrow().to_pylist()[0]["word"] == "a"
    without = Columns([Column("n", types.LongType())])
    with pytest.raises(SinkError, match=r"the result has no column word \(.*string\), which must not be null"):
        IcebergSink("s.t", catalog=catalog).write(
            cast("DataFrame", FrameWithoutSpark([(1,)], schema=without)), attempt(2)
        )


def _values(task: FileScanTask) -> list[Any]:
    """Return the values of a file's partition."""
    return [task.file.partition[at] for at in range(len(task.file.partition))]


# Hashes that the specification of Iceberg has in its appendix B.
_BUCKETS = {"number": 2017239379, "name": 1210000089, "bytes": -188683207, "price": -500754589, "day": -653330422}


def test_rows_lie_in_the_partitions_that_the_specification_says(tmp_path: Path) -> None:
    """Check each transform, on values of the specification's own; others' tables have any of them."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    columns = Schema(
        NestedField(1, "number", LongType(), required=False),
        NestedField(2, "name", StringType(), required=False),
        NestedField(3, "bytes", BinaryType(), required=False),
        NestedField(4, "price", DecimalType(9, 2), required=False),
        NestedField(5, "day", DateType(), required=False),
        NestedField(6, "at", TimestamptzType(), required=False),
        NestedField(7, "s", StructType(NestedField(8, "of.it", LongType(), required=False)), required=False),
        NestedField(9, "_batch_time", TimestamptzType(), required=False),
        NestedField(10, "unwritten", LongType(), required=False),
    )
    transforms: list[tuple[int, Transform[Any, Any]]] = [
        *((number, BucketTransform(1000)) for number in range(1, 6)),
        (1, TruncateTransform(10)),
        (2, TruncateTransform(3)),
        (3, TruncateTransform(2)),
        (4, TruncateTransform(50)),
        (6, YearTransform()),
        (6, MonthTransform()),
        (6, DayTransform()),
        (6, HourTransform()),
        (8, IdentityTransform()),
        (9, DayTransform()),
        (10, IdentityTransform()),
        (2, VoidTransform()),
    ]
    spec = PartitionSpec(
        *(PartitionField(of, 1000 + at, transform, f"p{at}") for at, (of, transform) in enumerate(transforms))
    )
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        table = loaded.create_table("s.t", columns, partition_spec=spec)
    frame = FrameWithoutSpark(
        [
            (
                34,
                "iceberg",
                b"\0\1\2\3",
                Decimal("14.20"),
                date(2017, 11, 16),
                datetime(1969, 12, 31, 23, tzinfo=UTC),
                {"of.it": 7},
            ),
            (-1, None, None, Decimal("-0.01"), None, None, None),
            (
                34,
                "iceberg",
                b"\0\1\2\3",
                Decimal("14.20"),
                date(2017, 11, 16),
                datetime(1969, 12, 31, 23, tzinfo=UTC),
                {"of.it": 7},
            ),
        ],
        schema=Columns(
            [
                Column("number", types.LongType()),
                Column("name", types.StringType()),
                Column("bytes", types.BinaryType()),
                Column("price", types.DecimalType(9, 2)),
                Column("day", types.DateType()),
                Column("at", types.TimestampType()),
                Column("s", Columns([Column("of.it", types.LongType())])),
            ]
        ),
    )
    for number in (1, 2):
        IcebergSink("s.t", catalog=catalog).write(cast("DataFrame", frame), attempt(number))
    files = {task.file.record_count: _values(task) for task in table.refresh().scan().plan_files()}
    batch_day = TIME.toordinal() - date(1970, 1, 1).toordinal()
    buckets = [(hashed & 0x7FFFFFFF) % 1000 for hashed in _BUCKETS.values()]
    nothing = [None] * 5
    assert files[2] == [*buckets, 30, "ice", b"\0\1", Decimal("14.00"), -1, -1, -1, -1, 7, batch_day, None, None]
    assert files[1][1:] == [
        None,
        None,
        files[1][3],
        None,
        -10,
        None,
        None,
        Decimal("-0.50"),
        *nothing,
        batch_day,
        None,
        None,
    ]
    # Readers skip files by their partitions and statistics.
    for filtered in ("number = 34", "name = 'iceberg'", "day = '2017-11-16'", "at < '1970-01-01T00:00:00+00:00'"):
        assert len(table.scan(row_filter=filtered).to_arrow()) == 2


@pytest.mark.parametrize(
    ("version", "named"),
    [(1, None), (2, None), (3, "has format version 3, which IcebergSink does not write"), (4, "'4'")],
)
def test_an_iceberg_table_of_each_format_version_is_written_or_refused(
    tmp_path: Path, version: int, named: str | None
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    fields = (NestedField(1, "word", StringType(), required=False), _NUMBER, _TIME)
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        table = loaded.create_table("s.t", schema=Schema(*fields), properties={"format-version": str(min(version, 2))})
    sink = IcebergSink("s.t", catalog=catalog)
    if named is None:
        for number in (1, 2):
            assert sink.write(words(("a", 1)), attempt(number)).rows == 1
        with pytest.raises(AttemptOutdatedError):
            sink.write(words(("a", 1)), attempt(2))
        return
    # pyiceberg makes none of these.
    metadata = Path(table.metadata_location.removeprefix("file://"))
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), "format-version": version}))
    with pytest.raises(SinkError, match=f"output 'counts' .*: the Iceberg table s.t .*{named}"):
        sink.write(words(("a", 1)), attempt())
    assert sink.check_target().health == "failed"
    assert not [*(tmp_path / "warehouse").rglob("*.parquet")]


@pytest.mark.parametrize(
    ("column", "path"),
    [
        (types.StructType([types.StructField("b", types.LongType())]), "a.b"),
        (types.ArrayType(types.LongType()), "a.element"),
        (types.MapType(types.LongType(), types.LongType()), "a.key"),
    ],
)
def test_a_name_that_iceberg_takes_for_a_path_is_refused(column: types.DataType, path: str) -> None:
    schema = types.StructType([types.StructField("a", column), types.StructField(path, types.LongType())])
    with pytest.raises(SinkError, match=f"column '{path}' is to Iceberg also that of a field within another column"):
        IcebergSink("s.t", catalog={"type": "sql"}).check_columns(schema, "counts")


def test_a_value_stays_in_its_column_whatever_it_and_others_are_called_later(tmp_path: Path) -> None:
    """Check the ids in the files: by names, the new column would show the values of the old one."""
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    mapping = {"schema.name-mapping.default": '[{"field-id": 1, "names": ["word", "n"]}]'}
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        fields = (NestedField(1, "word", StringType(), required=False), _NUMBER, _TIME)
        loaded.create_table("s.t", schema=Schema(*fields), properties=mapping)
        IcebergSink("s.t", catalog=catalog).write(words(("a", 1)), attempt())
        assert [row["n"] for row in loaded.load_table("s.t").scan().to_arrow().to_pylist()] == [1]
        with loaded.load_table("s.t").update_schema() as update:
            update.rename_column("n", "count")
        with loaded.load_table("s.t").update_schema() as update:
            update.add_column("n", LongType())
        [row] = loaded.load_table("s.t").scan().to_arrow().to_pylist()
        assert (row["word"], row["count"], row["n"]) == ("a", 1, None)
