"""Provide a table in Postgres to test its sink on."""

from __future__ import annotations

import contextlib
import secrets
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg2
from psycopg2 import sql

from forebay import EnvVar, PostgresSink
from forebay.testing.sinks import SinkTarget

if TYPE_CHECKING:
    from tests.integration.orchestration.target_database import Target


class PostgresTarget(SinkTarget):
    """A table in a user's database, and what its readers see. `options`: those of its sink."""

    def __init__(self, target: Target, table: str | None = None, **options: Any) -> None:  # noqa: ANN401
        self._target, self._table, self._options = target, table or f"t_{secrets.token_hex(6)}", options

    def sink(self) -> PostgresSink:
        return PostgresSink(EnvVar("TARGET_URL"), f"public.{self._table}", **self._options)

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

    def stored(self, value: Any, kind: str) -> Any:  # noqa: ANN401  any value of a column
        """Return a value as Postgres has it: reals in the fewest digits, nested ones as JSON, dates in it as text."""
        if value is not None and kind == "FLOAT":
            return float(str(np.float32(value)))
        if value is None or not kind.startswith(("ARRAY", "MAP", "STRUCT")):
            return value
        return dict(value) if kind.startswith("MAP") else _jsonable(value)


def _bytes(value: Any) -> Any:  # noqa: ANN401
    return bytes(value) if isinstance(value, memoryview) else value


def _jsonable(one: Any) -> Any:  # noqa: ANN401
    if isinstance(one, list):
        pairs = one and all(isinstance(pair, tuple) for pair in one)
        return {key: _jsonable(item) for key, item in one} if pairs else [_jsonable(item) for item in one]
    if isinstance(one, dict):
        return {name: _jsonable(item) for name, item in one.items()}
    return str(one) if isinstance(one, date | Decimal) else one
