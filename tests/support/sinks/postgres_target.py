"""Provide a table in Postgres to test its sink on."""

from __future__ import annotations

import contextlib
import json
import math
import secrets
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg2
from psycopg2 import sql
from pyspark.sql import types

from forebay import EnvVar, PostgresSink
from forebay.testing.sinks import SinkTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType, StructType

    from tests.integration.orchestration.target_database import Target


_AS_INTEGER = 1e16  # from which on a number of JSON has an exponent, and `numeric` no fraction
_MICROSECONDS = "extract(epoch FROM {}) * 1000000"
_NUMBER: dict[type[types.DataType], str] = {
    types.DateType: "{} - DATE '1970-01-01'",
    types.TimestampType: _MICROSECONDS,
    types.TimestampNTZType: _MICROSECONDS,
}


class PostgresTarget(SinkTarget):
    """A table in a user's database, and what its readers see. `options`: those of its sink."""

    def __init__(self, target: Target, table: str | None = None, **options: Any) -> None:  # noqa: ANN401
        self._target, self._table, self._options = target, table or f"t_{secrets.token_hex(6)}", options

    def sink(self) -> PostgresSink:
        return PostgresSink(EnvVar("TARGET_URL"), f"public.{self._table}", **self._options)

    def merging(self, key: Sequence[str]) -> PostgresSink:
        return PostgresSink(EnvVar("TARGET_URL"), f"public.{self._table}", mode="merge", key=key)

    def drop(self) -> None:
        """Drop the table and what the sink knows of it."""
        with (
            contextlib.closing(psycopg2.connect(self._target.url)) as connection,
            connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}, forebay_commits").format(sql.Identifier(self._table)))

    def read(self) -> list[dict[str, Any]]:
        with contextlib.closing(psycopg2.connect(self._target.url)) as connection, connection.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'")
            try:
                cursor.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier("public", self._table)))
            except psycopg2.errors.UndefinedTable:
                return []
            columns = [column.name for column in cursor.description]
            return [dict(zip(columns, map(_bytes, row), strict=True)) for row in cursor.fetchall()]

    def numbers(self, schema: StructType) -> list[tuple[Any, ...]]:
        """Return the rows with numbers in place of dates and times, ordered by the first column."""
        columns = [_NUMBER.get(type(field.dataType), "{}") for field in schema.fields]
        selected = sql.SQL(", ").join(
            sql.SQL(text).format(sql.Identifier(name)) for text, name in zip(columns, schema.names, strict=True)
        )
        query = sql.SQL("SELECT {} FROM {} ORDER BY 1").format(selected, sql.Identifier("public", self._table))
        with contextlib.closing(psycopg2.connect(self._target.url)) as connection, connection.cursor() as cursor:
            cursor.execute(query)
            kinds = [field.dataType for field in schema.fields]
            return [tuple(map(_as_number, row, kinds)) for row in cursor.fetchall()]

    def stored(self, value: Any, kind: DataType) -> Any:  # noqa: ANN401  any value of a column
        """Return a value as Postgres has it: reals in the fewest digits, nested ones as JSON."""
        if isinstance(kind, types.FloatType) and value is not None:
            return float(str(np.float32(value)))
        is_nested = isinstance(kind, types.ArrayType | types.MapType | types.StructType)
        return _in_json(value, kind) if is_nested else value


def _as_number(value: Any, kind: DataType) -> Any:  # noqa: ANN401
    """Return a number of SQL, or the dates or times of a list in JSON, as whole numbers."""
    if not isinstance(kind, types.ArrayType):
        return value if value is None else int(value)
    unit = "D" if isinstance(kind.elementType, types.DateType) else "us"
    return [
        None if one is None else int(np.datetime64(one.removesuffix("Z")).astype(f"M8[{unit}]").astype(int))
        for one in value
    ]


def _bytes(value: Any) -> Any:  # noqa: ANN401
    return bytes(value) if isinstance(value, memoryview) else value


def _in_json(value: Any, kind: DataType) -> Any:  # noqa: ANN401
    """Return a value within `jsonb`, as docs/reference/sinks.md says."""
    found = value
    match kind:
        case _ if value is None:
            pass
        case types.ArrayType():
            found = [_in_json(item, kind.elementType) for item in value]
        case types.MapType():
            pairs = [(_in_json(key, kind.keyType), _in_json(item, kind.valueType)) for key, item in value]
            found = {key if isinstance(key, str) else json.dumps(key): item for key, item in pairs}
        case types.StructType():
            found = {field.name: _in_json(value[field.name], field.dataType) for field in kind.fields}
        case types.FloatType() | types.DoubleType():
            found = _number_in_json(value)
        case types.DecimalType():
            found = f"{value:f}"
        case types.BinaryType():
            found = value.hex()
        case types.DateType():
            found = value.isoformat()
        case types.TimestampType() | types.TimestampNTZType():
            zone = "" if isinstance(kind, types.TimestampNTZType) else "Z"
            found = value.replace(tzinfo=None).isoformat(" ", "microseconds") + zone
    return found


def _number_in_json(value: float) -> Any:  # noqa: ANN401
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
    # A number of JSON has no -0.0.
    return int(Decimal(repr(value))) if abs(value) >= _AS_INTEGER else value or 0.0
