"""Check values beyond the suite of sinks: what is said of those that are refused, where they go, and large ones."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, cast

import pytest
from pyarrow import parquet
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from forebay import DeltaSink, EnvVar, IcebergSink, ParquetSink, PostgresSink
from forebay.testing.edge_values import TEXTS
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import Target, attempt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import Sink


pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("odd", "said"), [("'a\\u0000'", "a NUL character"), ("CAST(X'47FC' AS STRING)", "xfc.*not UTF-8")]
)
def test_a_text_that_postgres_lacks_is_named_with_what_to_do_or_put_aside(
    session: SparkSession, target: Target, odd: str, said: str
) -> None:
    """Check it in a column of each type that holds texts: each row has it in one of them."""
    values = ", ".join(
        f"if(id = {number}, {text.format(odd)}, NULL) AS `the column {number}`" for number, text in enumerate(TEXTS)
    )
    frame = session.sql(f"SELECT id, {values} FROM range({len(TEXTS) + 1})").repartition(1)
    count = len(TEXTS)
    with pytest.raises(Exception, match=rf"{count} rows, or more, can't be stored: .*on_bad_rows") as refused:
        PostgresSink(EnvVar("TARGET_URL"), "kept").write(frame, attempt())
    for number in range(count):
        assert re.search(rf"column the column {number} is .*{said}", str(refused.value))
    sink = PostgresSink(EnvVar("TARGET_URL"), "kept", on_bad_rows="dead_letter")
    assert sink.write(frame, attempt()).refused == count
    kept = target.rows("SELECT refused_row FROM forebay_refused_rows")
    assert sorted(json.loads(row)["id"] for (row,) in kept) == list(range(count))
    assert target.rows("SELECT id FROM kept") == [(count,)]


def test_char_and_varchar_are_texts(session: SparkSession, target: Target, tmp_path: Path) -> None:
    """Check the columns that Spark has if it is told to keep their types."""
    session.conf.set("spark.sql.preserveCharVarcharTypeInfo", "true")
    frame = session.sql("SELECT CAST('a' AS CHAR(3)) AS c, array(CAST('b ' AS VARCHAR(3))) AS v")
    assert frame.schema["c"].dataType.simpleString() == "char(3)"
    PostgresSink(EnvVar("TARGET_URL"), "kept").write(frame, attempt())
    assert target.rows("SELECT c, v FROM kept") == [("a  ", ["b "])]
    for sink in file_sinks(tmp_path):
        sink.write(frame, attempt())
    for file in tmp_path.rglob("part-*.parquet"):
        assert parquet.read_table(file, columns=["c", "v"]).to_pylist() == [{"c": "a  ", "v": ["b "]}]


def file_sinks(directory: Path) -> list[Sink]:
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/c.db", "warehouse": f"file://{directory}"}
    return [
        ParquetSink(str(directory / "files")),
        ParquetSink(str(directory / "compacted"), compact=True),
        DeltaSink(str(directory / "table")),
        IcebergSink("ns.values", catalog=catalog),
    ]


@pytest.mark.slow
def test_a_text_of_64_mib_is_kept_as_it_is(session: SparkSession, target: Target, tmp_path: Path) -> None:
    text = "Gr\u00fc\u00dfe, " * (2**26 // 10)
    # Of a column: Spark would fold a constant into each plan that it prints.
    large = session.range(1, 2).selectExpr("id", f"repeat(if(id = 1, 'Gr\u00fc\u00dfe, ', ''), {2**26 // 10}) AS text")
    PostgresSink(EnvVar("TARGET_URL"), "kept").write(large, attempt())
    assert target.rows("SELECT id, text FROM kept") == [(1, text)]
    for sink in file_sinks(tmp_path):
        sink.write(large, attempt())
    files = list(tmp_path.rglob("*.parquet"))
    assert len(files) == 4
    for file in files:
        assert parquet.read_table(file, columns=["id", "text"]).to_pylist() == [{"id": 1, "text": text}]


@pytest.mark.slow
def test_a_value_beyond_the_targets_own_limit_is_refused_with_its_column(target: Target) -> None:
    """Postgres takes at most 2^28 - 1 bytes as a text in jsonb."""
    schema = StructType([StructField("word", StringType()), StructField("list", ArrayType(StringType()))])
    rows = [("good", ["x"]), ("long", ["x" * 2**28])]
    frame = cast("DataFrame", FrameWithoutSpark(rows, schema=schema))
    with pytest.raises(RefusedRowsError, match=r"1 row\(s\) can't be stored: .*jsonb"):
        PostgresSink(EnvVar("TARGET_URL"), "kept").write(frame, attempt())
    written = PostgresSink(EnvVar("TARGET_URL"), "kept", on_bad_rows="dead_letter").write(frame, attempt())
    assert (written.rows, written.refused) == (1, 1)
    assert target.rows("SELECT word FROM kept") == [("good",)]
