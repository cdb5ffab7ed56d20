"""Check that an Iceberg table which its owner made otherwise than the sink can write it is refused, before any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, StructType, TimestamptzType
from pyspark.sql import types

from forebay import IcebergSink
from forebay_contrib.iceberg.sink import _directory
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt


@pytest.mark.parametrize("odd", ["file://host/w", "w", "file:///a%20b", "file:///a#b"])
def test_an_iceberg_location_that_programs_read_in_several_ways_is_refused(odd: str) -> None:
    with pytest.raises(SinkError, match="programs read in several ways: give the catalog a warehouse of file:///"):
        _directory(odd, attempt().name)


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


_TIME = NestedField(3, "_batch_time", TimestamptzType(), required=False)
_NUMBER = NestedField(2, "n", LongType(), required=False)


@pytest.mark.parametrize(
    ("word", "options", "named"),
    [
        (NestedField(1, "word", StringType(), required=True), {}, "the required column word"),
        (
            NestedField(1, "s", StructType(NestedField(4, "a", LongType(), required=True)), required=False),
            {},
            r"the required column s\.a",
        ),
        (
            NestedField(1, "word", StringType(), required=False),
            {"partition_spec": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "word"))},
            "the partition spec",
        ),
    ],
)
def test_an_iceberg_table_is_refused(tmp_path: Path, word: NestedField, options: dict[str, Any], named: str) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    with load_catalog("forebay", **catalog) as loaded:
        loaded.create_namespace("s")
        loaded.create_table("s.t", schema=Schema(word, _NUMBER, _TIME), **options)
    before = {*(tmp_path / "warehouse").rglob("*.parquet")}
    with pytest.raises(SinkError, match=named):
        IcebergSink("s.t", catalog=catalog).write(words(("a", 1)), attempt())
    assert {*(tmp_path / "warehouse").rglob("*.parquet")} == before


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
