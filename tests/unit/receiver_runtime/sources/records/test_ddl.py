"""Test that DDL becomes the columns that Spark would make of it, and that a fault in it is named."""

from __future__ import annotations

import pytest

from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of
from receiver_runtime.sources.records.ddl import DdlError, parse_ddl, type_name


def test_every_type_is_one_that_a_block_can_have() -> None:
    columns, required = parse_ddl(
        "a STRING NOT NULL COMMENT 'it''s, so', b bigint, c INT, d smallint, e TINYINT, f DOUBLE, g FLOAT, h BOOLEAN, "
        "i DATE, j TIMESTAMP, k TIMESTAMP_NTZ, l DECIMAL(10, 2), m DECIMAL, n ARRAY<STRUCT<x: INT, `y z` STRING>>, "
        "`o``p` MAP<STRING, ARRAY<INT>>, q BINARY NOT NULL".replace("''", "\\'")
    )
    assert required == ("a", "q")
    assert dict(columns) == {
        "a": "string",
        "b": "int64",
        "c": "int32",
        "d": "int16",
        "e": "int8",
        "f": "double",
        "g": "float",
        "h": "bool",
        "i": "date32[day]",
        "j": "timestamp[us, tz=UTC]",
        "k": "timestamp[us]",
        "l": "decimal128(10, 2)",
        "m": "decimal128(10, 0)",
        "n": "list<item: struct<x: int32, y z: string>>",
        "o`p": "map<string, list<item: int32>>",
        "q": "binary",
    }
    assert columns_of(arrow_schema(columns)) == columns


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("", "the end"),
        ("a", "the end"),
        ("a STRING,", "the end"),
        ("a TEXT", "'TEXT'"),
        ("a STRING b INT", "'b'"),
        ("a ARRAY<INT", "the end"),
        ("a DECIMAL(39)", "38"),
        ("a DECIMAL(2, 3)", "DECIMAL"),
        ("a INT NOT", "the end"),
        ("a INT; DROP", "; DROP"),
        ("a STRUCT<`x,y`: INT>", "x,y"),
    ],
)
def test_a_fault_is_named(ddl: str, said: str) -> None:
    with pytest.raises(DdlError, match=said):
        parse_ddl(ddl)


def test_people_see_the_types_that_they_declared() -> None:
    ddl = (
        "a BIGINT, b STRING, c TIMESTAMP, d TIMESTAMP_NTZ, e DECIMAL(5, 0), f ARRAY<STRUCT<string: INT, x: DATE>>, "
        "g MAP<STRING, TINYINT>, h FLOAT, i SMALLINT, j BINARY, k BOOLEAN, l DOUBLE, "
        "m STRUCT<int64: BIGINT, list: STRUCT<x: DATE>>, n MAP<STRING, ARRAY<DOUBLE>>"
    )
    assert ", ".join(f"{name} {type_name(kind)}" for name, kind in parse_ddl(ddl).columns) == ddl
