"""Check that a Delta table which its owner made otherwise than the sink can write it is refused, before any file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import ArrayType, PrimitiveType, StructType

from forebay import DeclarationError, DeltaSink
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import attempt

TABLE = pa.table(
    {"word": pa.array(["x"]), "n": pa.array([1]), "_batch_time": pa.array([0], pa.timestamp("us", "UTC"))},
)


def files(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"partition_by": ["word"]}, "partition columns (word)"),
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


def test_a_delta_table_with_a_constraint_is_refused(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", TABLE)
    DeltaTable(tmp_path / "t").alter.add_constraint({"positive": "n > 0"})
    before = files(tmp_path)
    with pytest.raises(SinkError, match=r"the property delta\.constraints\.positive"):
        DeltaSink(tmp_path / "t").write(words(("a", -1)), attempt())
    assert files(tmp_path) == before


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


@pytest.mark.parametrize("path", ["s3://bucket/t", "gs://bucket/t", "abfss://c@a.dfs.core.windows.net/t", "file:///t"])
def test_a_url_is_no_directory(path: str) -> None:
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


def test_a_directory_with_a_colon_in_its_name_is_no_url(tmp_path: Path) -> None:
    assert DeltaSink(tmp_path / "a:" / "t").target == str(tmp_path / "a:" / "t")
