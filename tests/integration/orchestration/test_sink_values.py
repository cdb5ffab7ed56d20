"""Check that each value of each of Spark's types is read back from a sink as it is, or refused by name."""

from __future__ import annotations

import json
import math
from datetime import date, datetime
from decimal import Decimal
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import psycopg2
import pytest
from deltalake import DeltaTable
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from forebay import DeltaSink, EnvVar, IcebergSink, ParquetSink, PostgresSink
from orchestration.declarations.sink import SinkError
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import Target, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import Sink


pytestmark = pytest.mark.spark

_NINES = "9" * 38
# A column's type, and its values as Spark's SQL writes them; each has a null too.
VALUES: Mapping[str, Sequence[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128Y", "127Y"],
    "SMALLINT": ["-32768S", "32767S"],
    "INT": ["-2147483648", "2147483647"],
    "BIGINT": ["-9223372036854775808L", "9223372036854775807L"],
    "FLOAT": [f"CAST('{one}' AS FLOAT)" for one in ("NaN", "Infinity", "-Infinity", "-0.0", "1.4E-45", "3.4028235E38")],
    "DOUBLE": [
        f"CAST('{one}' AS DOUBLE)"
        for one in ("NaN", "Infinity", "-Infinity", "-0.0", "4.9E-324", "1.7976931348623157E308", "0.1")
    ],
    "DECIMAL(38, 0)": [f"{_NINES}BD", f"-{_NINES}BD", "0BD"],
    "DECIMAL(38, 38)": [f"0.{_NINES}BD", f"-0.{_NINES}BD", "0.00000000000000000000000000000000000001BD"],
    "DECIMAL(10, 2)": ["99999999.99BD", "-0.01BD", "1.50BD"],
    "STRING": [
        *("''", "' '", "'NULL'", "'\\\\N'", "'\"'", "','", "'a\\tb\\nc\\rd'", "'ü😀'", "'\\uFEFFx'", "'\\uFFFF'"),
        *("'\\u0001\\u007F'", "repeat('x', 1000000)"),
    ],
    "BINARY": ["X''", "X'00FF5C'", "CAST('\\\\x41' AS BINARY)"],
    "DATE": [f"DATE'{one}'" for one in ("0001-01-01", "1582-10-04", "1582-10-15", "1969-12-31", "9999-12-31")],
    "TIMESTAMP": [
        f"TIMESTAMP'{one}'"
        for one in (
            *("0001-01-01 00:00:00Z", "1582-10-10 00:00:00Z", "1883-11-18 12:03:57Z", "1969-12-31 23:59:59.999999Z"),
            *("2026-03-29 01:30:00Z", "9999-12-31 23:59:59.999999Z"),
        )
    ],
    "TIMESTAMP_NTZ": [
        f"TIMESTAMP_NTZ'{one}'"
        for one in ("0001-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2026-03-29 02:30:00", "9999-12-31 23:59:59")
    ],
    "ARRAY<INT>": ["array()", "array(1, null, 3)"],
    "ARRAY<STRING>": ["array('', null, 'a\"b', '{}')"],
    "ARRAY<ARRAY<DOUBLE>>": ["array(array(), null, array(1.5D))"],
    "MAP<STRING, INT>": ["map()", "map('', 1, 'a\"b', null)"],
    "STRUCT<a: INT, b: STRING>": ["named_struct('a', CAST(NULL AS INT), 'b', '')", "named_struct('a', 1, 'b', 'x')"],
    "ARRAY<STRUCT<at: DATE, of: MAP<STRING, DECIMAL(5, 1)>>>": [
        "array(named_struct('at', DATE'2026-01-02', 'of', map('k', 1.5BD)), null)"
    ],
}
NAMES = {kind: f"c{number}" for number, kind in enumerate(VALUES)}


@pytest.fixture
def frame(session: SparkSession) -> DataFrame:
    """Return rows of each type's values side by side, nulls below where a type has fewer, and at the end."""
    rows = [*zip_longest(*VALUES.values(), fillvalue="NULL"), ["NULL"] * len(VALUES)]
    selects = [
        f"SELECT {number} AS id, "
        + ", ".join(f"CAST({value} AS {kind}) AS {NAMES[kind]}" for kind, value in zip(VALUES, row, strict=True))
        for number, row in enumerate(rows)
    ]
    return session.sql(" UNION ALL ".join(selects)).coalesce(1)


def plain(value: Any) -> Any:  # noqa: ANN401  any value of a column
    """Return a value so that equal ones are equal: NaN and the sign of zero by their text, maps sorted."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return sorted((key, plain(one)) for key, one in value.items())
    return value


def differences(frame: DataFrame, found: Sequence[Mapping[str, Any]], read: Callable[[str, Any], Any]) -> list[str]:
    """Return the values that are others than Spark's, after `read` of both sides of a column's type."""
    rows = {row["id"]: row for row in found}
    wrong = []
    for expected in frame.toArrow().to_pylist():
        row = rows[expected["id"]]
        for kind, name in NAMES.items():
            was, now = plain(read(kind, expected[name])), plain(row[name])
            if was != now:
                wrong.append(f"{kind} {str(was)[:80]} -> {str(now)[:80]}")
    assert len(rows) == len(found) == frame.count()
    return wrong


def _same(_: str, value: Any) -> Any:  # noqa: ANN401
    return value


@pytest.mark.parametrize("compact", [False, True])
def test_parquet(frame: DataFrame, tmp_path: Path, compact: bool) -> None:
    sink = ParquetSink(str(tmp_path / "files"), compact=compact)
    written = sink.write(frame, attempt())
    sink.publish(written.location, batch_time=attempt().batch_time)
    assert differences(frame, sink.dataset().to_table().to_pylist(), _same) == []


def test_delta(frame: DataFrame, tmp_path: Path) -> None:
    DeltaSink(str(tmp_path / "table")).write(frame, attempt())
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert differences(frame, found, _same) == []


def test_iceberg(frame: DataFrame, tmp_path: Path) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/c.db", "warehouse": f"file://{tmp_path}"}
    IcebergSink("ns.values", catalog=catalog).write(frame, attempt())
    scan = load_catalog("forebay", **catalog).load_table("ns.values").scan()
    # Its own reader gives empty lists for null ones of structs, so that the files are read by another.
    found = [row for task in scan.plan_files() for row in parquet.read_table(task.file.file_path).to_pylist()]
    assert differences(frame, found, _same) == []


def _in_postgres(kind: str, value: Any) -> Any:  # noqa: ANN401
    """Return a value as Postgres has it: reals in the fewest digits, nested ones as JSON, dates in it as text."""
    if value is not None and kind == "FLOAT":
        return float(str(np.float32(value)))
    if value is None or not kind.startswith(("ARRAY", "MAP", "STRUCT")):
        return value
    if kind.startswith("MAP"):
        return dict(value)

    def jsonable(one: Any) -> Any:  # noqa: ANN401
        if isinstance(one, list):
            pairs = one and all(isinstance(pair, tuple) for pair in one)
            return {key: jsonable(item) for key, item in one} if pairs else [jsonable(item) for item in one]
        if isinstance(one, dict):
            return {name: jsonable(item) for name, item in one.items()}
        return str(one) if isinstance(one, date | Decimal) else one

    return jsonable(value)


def test_postgres(frame: DataFrame, target: Target) -> None:
    PostgresSink(EnvVar("TARGET_URL"), "kept").write(frame, attempt())
    with psycopg2.connect(target.url) as connection, connection.cursor() as cursor:
        cursor.execute("SET timezone = 'UTC'")
        cursor.execute("SELECT * FROM kept")
        columns = [column.name for column in cursor.description]
        rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
    found = [{k: bytes(v) if isinstance(v, memoryview) else v for k, v in row.items()} for row in rows]
    assert differences(frame, found, _in_postgres) == []


@pytest.mark.parametrize(
    "value", ["'a\\u0000'", "array('a\\u0000')", "map('a\\u0000', 1)", "named_struct('a', array('\\u0000'))"]
)
def test_a_nul_in_postgres_is_refused_with_its_column_and_what_to_do(
    session: SparkSession, target: Target, value: str
) -> None:
    odd = session.sql(f"SELECT 1 AS id, {value} AS `the column` UNION ALL SELECT 2, NULL")
    with pytest.raises(Exception, match=r"column the column is .*a NUL character.*on_bad_rows"):
        PostgresSink(EnvVar("TARGET_URL"), "kept").write(odd, attempt())
    sink = PostgresSink(EnvVar("TARGET_URL"), "kept", on_bad_rows="dead_letter")
    assert sink.write(odd, attempt()).refused == 1
    [(row,)] = target.rows("SELECT refused_row FROM forebay_refused_rows")
    assert json.loads(row)["id"] == 1
    assert target.rows("SELECT id FROM kept") == [(2,)]


def file_sinks(directory: Path) -> list[Sink]:
    catalog = {"type": "sql", "uri": f"sqlite:///{directory}/c.db", "warehouse": f"file://{directory}"}
    return [
        ParquetSink(str(directory / "files")),
        ParquetSink(str(directory / "compacted"), compact=True),
        DeltaSink(str(directory / "table")),
        IcebergSink("ns.values", catalog=catalog),
    ]


@pytest.mark.parametrize("kind", ["INTERVAL DAY TO SECOND", "INTERVAL YEAR TO MONTH", "VARIANT", "STRUCT<>"])
def test_a_type_that_a_sink_lacks_is_refused_with_its_column(
    session: SparkSession, target: Target, tmp_path: Path, kind: str
) -> None:
    del target
    odd = session.sql(f"SELECT 1 AS id, array(CAST(NULL AS {kind})) AS `the column`")
    for sink in (PostgresSink(EnvVar("TARGET_URL"), "kept"), *file_sinks(tmp_path)):
        with pytest.raises(SinkError, match="the column"):
            sink.write(odd, attempt())


@pytest.mark.parametrize("value", ["NULL", "array(NULL)", "map()"])
def test_a_column_of_nulls_without_a_type_is_refused_by_files(
    session: SparkSession, tmp_path: Path, value: str
) -> None:
    odd = session.sql(f"SELECT 1 AS id, {value} AS `the column`")
    for sink in file_sinks(tmp_path):
        with pytest.raises(SinkError, match=r"the column.*void.*cast it"):
            sink.write(odd, attempt())


@pytest.mark.parametrize(
    "value", ["{}", "array({})", "named_struct('a', {})", "map({}, 1)", "array(map('k', named_struct('a', {})))"]
)
def test_a_text_that_is_not_utf_8_is_refused_with_its_column(
    session: SparkSession, target: Target, tmp_path: Path, value: str
) -> None:
    """Spark's cast of bytes to a string checks nothing, and readers of the file would fail."""
    odd = session.sql(
        f"SELECT id, {value.format('CAST(value AS STRING)')} AS odd "
        "FROM VALUES (1, X'C3BC'), (2, X'4772FC6E'), (3, X'78') AS t(id, value)"
    ).coalesce(1)
    said = r"1 row\(s\) can't be stored: column odd is .*Gr.*xfcn.*not UTF-8"
    for sink in (PostgresSink(EnvVar("TARGET_URL"), "kept"), *file_sinks(tmp_path)):
        with pytest.raises(Exception, match=said):
            sink.write(odd, attempt())
    sink = PostgresSink(EnvVar("TARGET_URL"), "kept", on_bad_rows="dead_letter")
    assert sink.write(odd, attempt()).refused == 1
    assert target.rows("SELECT id FROM kept ORDER BY 1") == [(1,), (3,)]
    [(row,)] = target.rows("SELECT refused_row FROM forebay_refused_rows")
    assert json.loads(row)["id"] == 2


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


def test_the_times_are_those_of_the_calendar(frame: DataFrame) -> None:
    """Check the check: what Spark hands on is what its SQL says."""
    column = frame.toArrow().column(NAMES["TIMESTAMP"]).to_pylist()
    assert datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00") in column
