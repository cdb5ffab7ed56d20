"""Test that DDL becomes the columns that Spark would make of it, and that a fault in it is named."""

from __future__ import annotations

import pytest

from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of
from receiver_runtime.sources.records.ddl import DdlError, ddl_type, parse_ddl


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


def test_a_type_is_shown_as_it_was_declared() -> None:
    ddl = (
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e BIGINT, f FLOAT, g DOUBLE, h STRING, i BINARY, j DATE, "
        "k TIMESTAMP, l TIMESTAMP_NTZ, m DECIMAL(12, 2), n MAP<STRING, ARRAY<DOUBLE>>, "
        "o STRUCT<int64: BIGINT, list: STRUCT<x: DATE>>"
    )
    assert ", ".join(f"{name} {ddl_type(kind)}" for name, kind in parse_ddl(ddl).columns) == ddl
    # No DDL has it.
    assert ddl_type("list<item: timestamp[ms, tz=UTC]>") == "ARRAY<timestamp[ms, tz=UTC]>"


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
