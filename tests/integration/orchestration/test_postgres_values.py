"""Check each type of Spark in each type of a column that somebody else made: a value is kept, or its row refused."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import psycopg2
import pytest
from pyspark.sql import types
from pyspark.sql.types import LongType, StructField, StructType

from forebay import EnvVar, PostgresSink
from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_catalog import columns_of_table
from orchestration.sinks.postgres.postgres_columns import Table, columns_of, fitted
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import Target, attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

TABLE_TYPES = (
    *("text", "varchar", "varchar(5)", "char(5)", '"char"', "name", "json", "jsonb", "xml", "uuid", "mood", "text[]"),
    *("boolean", "smallint", "integer", "bigint", "real", "double precision", "oid", "money"),
    *("numeric", "numeric(5,2)", "numeric(38,10)", "numeric(5,-2)"),
    *("date", "time", "timetz", "timestamp", "timestamptz", "timestamp(0)", "timestamptz(3)", "interval"),
    *("bytea", "bit(3)", "varbit", "inet", "cidr", "macaddr", "int4range", "tsvector", "point"),
    *("short", "cents"),
)
_TIMES = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC),
]
TEXTS = (
    *("", "ab   ", "abcde", "abcde  ", "x" * 70, "a", '{"b":1,"a":2, "a":1E400}', "101", "B101"),
    *("3f1f9ee0-3d7b-4b2f-9f0f-0d6d3c1c2b1a", "3F1F9EE0-3D7B-4B2F-9F0F-0D6D3C1C2B1A"),
    *("10.0.0.1", "10.0.0.1/32", "10/8", "10.0.0.0/8", "0:0::1", "08:00:2b:01:02:03", "08-00-2B-01-02-03"),
)
_INTEGERS = "cents bigint numeric numeric(5,2) numeric(38,10)"
_JSON = "json jsonb"
#: Types of Spark, values, and the types of a table that they are written to.
CASES: tuple[tuple[DataType, Sequence[Any], str], ...] = (
    (
        types.StringType(),
        TEXTS,
        "text varchar varchar(5) char(5) name json xml uuid mood bit(3) varbit inet cidr macaddr short",
    ),
    (types.BooleanType(), (True, False), "boolean"),
    (types.ByteType(), (-128, 127), f"smallint integer real double {_INTEGERS}"),
    (types.ShortType(), (-(2**15), 999, 0), f"smallint integer real double {_INTEGERS}"),
    (types.IntegerType(), (-(2**31), 2**31 - 1, 999), f"smallint integer double {_INTEGERS}"),
    (types.LongType(), (-(2**63), 2**63 - 1, 2**53 + 1, 5), f"smallint integer {_INTEGERS}"),
    (types.FloatType(), (math.nan, math.inf, -math.inf, -0.0, 0.1, 1.4e-45, 3.4028235e38), "real double numeric"),
    (types.DoubleType(), (math.nan, math.inf, -math.inf, -0.0, 0.1, 5e-324, 2.0**53 + 2), "double numeric"),
    (
        types.DecimalType(5, 2),
        tuple(map(Decimal, ("999.99", "-0.01", "1.50"))),
        "numeric numeric(5,2) numeric(38,10) real double cents",
    ),
    (
        types.DecimalType(10, 4),
        tuple(map(Decimal, ("999.9951", "0.0001", "1.5000"))),
        "numeric numeric(38,10) double",
    ),
    (types.DecimalType(38, 0), tuple(map(Decimal, ("9" * 38, "-1", "327"))), f"smallint integer {_INTEGERS}"),
    (types.DateType(), (date(1, 1, 1), date(1582, 10, 4), date(9999, 12, 31)), "date timestamp"),
    (types.TimestampType(), _TIMES, "timestamptz"),
    (types.TimestampNTZType(), [moment.replace(tzinfo=None) for moment in _TIMES], "timestamp"),
    (types.BinaryType(), (b"", b"\x00\xff\\", b"\\x41"), "bytea"),
    (types.ArrayType(types.IntegerType()), ([], [1, None]), _JSON),
    (types.MapType(types.StringType(), types.IntegerType()), ({}, {"b": 1, "a": None}), _JSON),
    (StructType([StructField("b", types.IntegerType())]), ({"b": 1}, {"b": None}), _JSON),
)


@pytest.fixture
def cursor(target: Target) -> Any:  # noqa: ANN401  psycopg2 has no types
    with contextlib.closing(psycopg2.connect(target.url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(
            "SET timezone = 'UTC'; CREATE TYPE mood AS ENUM ('happy', 'a'); CREATE DOMAIN short AS varchar(3);"
            "CREATE DOMAIN cents AS numeric(5,2)"
        )
        yield cursor


def kept(now: Any, was: Any, kind: DataType) -> bool:  # noqa: ANN401  any values
    """Return whether what psycopg reads is what Spark had."""
    if isinstance(now, memoryview):
        now = bytes(now)
    if isinstance(was, float):
        if isinstance(kind, types.FloatType):
            # The number of the fewest digits, as it is printed.
            was, now = np.float32(was), np.float32(now)
        return bool(float(now) == float(was)) or (math.isnan(was) and math.isnan(now))
    if isinstance(was, date) and not isinstance(was, datetime) and isinstance(now, datetime):
        return now == datetime.combine(was, time.min)
    if isinstance(was, Decimal):
        return Decimal(str(now)) == was
    return bool(now == was) and (not isinstance(was, str) or isinstance(now, str))


@pytest.mark.parametrize(("kind", "values", "taken"), CASES, ids=[case[0].simpleString() for case in CASES])
def test_a_value_in_a_column_of_another_type_is_kept_or_its_row_refused(
    target: Target,
    cursor: Any,  # noqa: ANN401  psycopg2 has no types
    kind: DataType,
    values: Sequence[Any],
    taken: str,
) -> None:
    definitions = ", ".join(f"c{number} {name}" for number, name in enumerate(TABLE_TYPES))
    cursor.execute(f"CREATE TABLE counts (id bigint, _batch_time timestamptz, {definitions})")
    there = {column.name: column for column in columns_of_table(cursor, "public", "counts")}
    fitting, said = {}, {}
    for number, name in enumerate(TABLE_TYPES):
        schema = StructType([StructField(f"c{number}", kind)])
        try:
            table = Table("s", "t", [there[f"c{number}"], there["_batch_time"]])
            fitted(columns_of(schema, "x"), table, None, "x")
            fitting[f"c{number}"] = name
        except SinkError as error:
            said[f"c{number}"] = str(error)
    assert all(f"column {column} is {there[column].type} in the table and " in text for column, text in said.items())
    expected = {name.replace("double", "double precision") for name in taken.split()}
    assert {*fitting.values()} == expected
    # Postgres of the tests has no xml.
    fitting = {column: name for column, name in fitting.items() if name != "xml"}
    for column in {*there} - {*fitting, "id", "_batch_time"}:
        cursor.execute(f"ALTER TABLE counts DROP {column}")
    schema = StructType([StructField("id", LongType()), *(StructField(column, kind) for column in fitting)])
    cells = [(column, value) for column in fitting for value in values]
    rows = [(at, *(value if column == name else None for name in fitting)) for at, (column, value) in enumerate(cells)]
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    written = sink.write(cast("DataFrame", FrameWithoutSpark(rows, schema=schema)), attempt())
    cursor.execute(
        "SELECT refused_row::json ->> 'id', reason FROM forebay_refused_rows"
        if written.refused
        else "SELECT 1 WHERE false"
    )
    refused = {int(at): reason for at, reason in cursor.fetchall()}
    assert all(f"column {cells[at][0]} is " in reason for at, reason in refused.items())
    found: dict[int, Any] = {}
    for column, name in fitting.items():
        # What a reader gets as text: psycopg parses JSON.
        shown = f"{column}::text" if isinstance(kind, types.StringType) and name == "json" else column
        cursor.execute(f"SELECT id, {shown} FROM counts WHERE {column} IS NOT NULL")
        found |= dict(cursor.fetchall())
    assert len(found) + len(refused) == len(rows)
    wrong = [
        (fitting[cells[at][0]], cells[at][1], now) for at, now in found.items() if not kept(now, cells[at][1], kind)
    ]
    assert wrong == []
    assert {fitting[cells[at][0]] for at in found} == {*fitting.values()}, "a type that keeps nothing"


def test_a_row_with_a_date_that_python_lacks_is_put_aside(
    target: Target,
    cursor: Any,  # noqa: ANN401  psycopg2 has no types
) -> None:
    schema = StructType([StructField("word", types.StringType()), StructField("at", types.DateType())])
    rows = [("\0", 2_932_897)]
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    assert sink.write(cast("DataFrame", FrameWithoutSpark(rows, schema=schema)), attempt()).refused == 1
    cursor.execute("SELECT refused_row FROM forebay_refused_rows")
    assert json.loads(cursor.fetchone()[0]) == {"word": "\0", "at": "10000-01-01"}


@pytest.mark.parametrize("key", [types.ArrayType(types.StringType()), types.NullType()])
def test_a_map_whose_keys_are_no_names_is_refused_before_a_row(key: DataType) -> None:
    inner = types.MapType(key, types.IntegerType())
    schema = StructType([StructField("m", types.ArrayType(inner))])
    said = rf"column m has a map with keys of the type {key.simpleString()}.*map_entries"
    with pytest.raises(SinkError, match=said):
        PostgresSink(EnvVar("TARGET_URL"), "counts").check_columns(schema, "counts")
