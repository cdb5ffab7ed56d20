"""Check that a Delta table which its owner made otherwise than the sink can write it is refused, before any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, TableFeatures, write_deltalake
from deltalake.schema import ArrayType, PrimitiveType, StructType

from forebay import DeclarationError, DeltaSink
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt

TIMES = pa.array([0], pa.timestamp("us", "UTC"))
TABLE = pa.table({"word": pa.array(["x"]), "n": pa.array([1]), "_batch_time": TIMES, "at": TIMES})


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"partition_by": ["_batch_time"]}, "the partition column _batch_time"),
        ({"partition_by": ["at"]}, "the partition column at (timestamp[us, tz=UTC])"),
        ({"configuration": {"delta.appendOnly": "true"}}, "the property delta.appendOnly=true"),
        ({"configuration": {"delta.appendOnly": "TRUE"}}, "the property delta.appendOnly=TRUE"),
    ],
)
def test_a_delta_table_is_refused(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    write_deltalake(tmp_path / "t", TABLE, **settings)
    before = files(tmp_path)
    with pytest.raises(SinkError) as refused:
        DeltaSink(tmp_path / "t").write(words(("a", 1)), attempt())
    assert f"has {named}, which DeltaSink does not write" in str(refused.value)
    assert files(tmp_path) == before


def test_a_directory_of_a_parquet_sink_is_refused(tmp_path: Path) -> None:
    """An output that was a ParquetSink's: readers of the directory would see both."""
    (tmp_path / "t" / "date=2026-01-01").mkdir(parents=True)
    before = files(tmp_path)
    sink = DeltaSink(tmp_path / "t")
    assert "has folders of Parquet files" in sink.check_target().found
    with pytest.raises(SinkError, match="has folders of Parquet files"):
        sink.write(words(("a", 1)), attempt())
    assert files(tmp_path) == before


def test_a_delta_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", TABLE)
    DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "n > 0"})
    before = files(tmp_path)
    with pytest.raises(SinkError, match=r"the property delta\.constraints\.positive"):
        DeltaSink(tmp_path / "t").write(words(("a", -1)), attempt())
    assert files(tmp_path) == before


def protocol(reader: int, writer: int, *features: str, reads: bool = False) -> dict[str, Any]:
    listed = {"writerFeatures": features} if writer == FEATURES else {}
    if reader == FEATURES_OF_READERS:
        listed["readerFeatures"] = features if reads else ()
    return {"minReaderVersion": reader, "minWriterVersion": writer, **listed}


def made(path: Path, protocol: dict[str, Any], kind: str = "string") -> Path:
    """Write the log of a table that deltalake would not make."""
    fields = [("word", kind), ("n", "long"), ("_batch_time", "timestamp")]
    schema = {
        "type": "struct",
        "fields": [{"name": name, "type": type_, "nullable": True, "metadata": {}} for name, type_ in fields],
    }
    metadata = {
        "id": "x",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    log = path / "_delta_log"
    log.mkdir(parents=True)
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (log / f"{0:020}.json").write_text("\n".join(lines))
    return path


FEATURES, FEATURES_OF_READERS = 7, 3
WRITTEN = {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "columnMapping", "timestampNtz"}
OF_WRITERS = {
    *("appendOnly", "invariants", "checkConstraints", "generatedColumns", "allowColumnDefaults", "changeDataFeed"),
    *("identityColumns", "domainMetadata", "rowTracking", "clustering", "inCommitTimestamp", "icebergCompatV1"),
    *("icebergCompatV2", "materializePartitionColumns", "collations", "checkpointProtection", "of-2030"),
}
OF_READERS = {
    *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"),
    *("timestampNanos", "variantType", "variantType-preview", "variantShredding-preview", "catalogManaged", "of-2031"),
}


@pytest.mark.parametrize("version", range(1, 10))
def test_a_delta_table_of_each_version_is_written_or_refused(tmp_path: Path, version: int) -> None:
    table = made(tmp_path / "t", protocol(1, version))
    before = files(tmp_path)
    if version in {1, 2, 3, 4, 5, FEATURES}:
        assert DeltaSink(table).write(words(("a", 1)), attempt()).rows == 1
        return
    with pytest.raises(SinkError, match=f"has writer version {version} of Delta's protocol, which DeltaSink does not"):
        DeltaSink(table).write(words(("a", 1)), attempt())
    assert files(tmp_path) == before


def test_a_delta_table_with_each_feature_is_written_or_refused_by_its_name(tmp_path: Path) -> None:
    known = {feature.lower() for feature in vars(TableFeatures) if not feature.startswith("_")}
    here = {feature.replace("-", "").lower() for feature in OF_WRITERS | OF_READERS}
    assert known - here == {"timestampwithouttimezone"}, "named timestampNtz in a log"
    for feature in sorted(OF_WRITERS | OF_READERS):
        reads = feature in OF_READERS
        table = made(tmp_path / feature, protocol(3 if reads else 1, FEATURES, feature, reads=reads))
        before = files(table)
        sink = DeltaSink(table)
        if feature in WRITTEN:
            for number in (1, 2):
                assert sink.write(words(("a", 1)), attempt(number)).rows == 1
            continue
        # deltalake itself does not open some, and does not name each.
        named = "catalog-managed" if feature == "catalogManaged" else feature
        with pytest.raises(SinkError, match=f"output 'counts' .* the Delta table {table} .*{named}"):
            sink.write(words(("a", 1)), attempt())
        assert sink.check_target().health == "failed"
        assert files(table) == before


@pytest.mark.parametrize("kind", ["variant", "char(3)", "timestamp_ntz"])
def test_a_delta_table_that_deltalake_does_not_open_is_refused(tmp_path: Path, kind: str) -> None:
    table = made(tmp_path / "t", protocol(1, 2), kind)
    with pytest.raises(SinkError, match=r"output 'counts' .* the Delta table .* can't be opened: .*") as refused:
        DeltaSink(table).write(words(("a", 1)), attempt())
    assert kind.upper() in str(refused.value).upper()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("inner", "named"),
    [
        (Field("a", PrimitiveType("integer"), nullable=False), "column s.a, which must not be null"),
        (
            Field("a", PrimitiveType("integer"), metadata={"delta.generationExpression": "1"}),
            "delta.generationExpression of column s.a",
        ),
        (
            Field("l", ArrayType(PrimitiveType("integer"), contains_null=False)),
            "column s.l.element, which must not be null",
        ),
    ],
)
def test_a_delta_table_with_such_a_field_within_a_column_is_refused(tmp_path: Path, inner: Field, named: str) -> None:
    time = Field("_batch_time", PrimitiveType("timestamp"))
    DeltaTable.create(tmp_path / "t", schema=Schema([Field("s", StructType([inner])), time]))
    with pytest.raises(SinkError, match=named):
        DeltaSink(tmp_path / "t").write(words(("a", 1)), attempt())


def test_a_delta_table_with_comments_on_its_columns_is_written(tmp_path: Path) -> None:
    fields = [("word", "string"), ("n", "long"), ("_batch_time", "timestamp")]
    schema = Schema([Field(name, PrimitiveType(kind), metadata={"comment": "x"}) for name, kind in fields])
    DeltaTable.create(tmp_path / "t", schema=schema)
    assert DeltaSink(tmp_path / "t").write(words(("a", 1)), attempt()).rows == 1


@pytest.mark.parametrize("path", ["file:///t", "s3a://bucket/t", "http://host/t"])
def test_a_url_of_another_scheme_is_no_directory(path: str) -> None:
    with pytest.raises(
        DeclarationError, match=r"DeltaSink: path '.*': it is a URL that is none here: write a directory, which"
    ):
        DeltaSink(path)


@pytest.mark.parametrize(
    "path", ["", "~/out", "$HOME/out", "/data/${DAY}", Path("s3://bucket/p"), "file:/data", "dbfs:/x"]
)
def test_what_would_become_a_directory_of_that_name_is_refused(path: str | Path) -> None:
    with pytest.raises(DeclarationError, match=r"DeltaSink: .*: .*(write|give)"):
        DeltaSink(path)


def test_a_path_that_delta_would_decode_is_refused(tmp_path: Path) -> None:
    """The table would be made there, and looked for in `tA` from the second batch on."""
    with pytest.raises(DeclarationError, match="has '%41', which Delta's readers take for a character's code"):
        DeltaSink(tmp_path / "t%41")
    DeltaSink(tmp_path / "90%").write(words(("a", 1)), attempt())
    assert DeltaSink(tmp_path / "90%").check_target().health == "ok"


def test_a_directory_with_a_colon_in_its_name_is_no_url(tmp_path: Path) -> None:
    assert DeltaSink(tmp_path / "a:" / "t").target == str(tmp_path / "a:" / "t")
