"""Provide a user's database that outputs are written to, and attempts at them, for tests of sinks."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import Any

import psycopg2
import sqlalchemy as sa

from orchestration.declarations.sink import OutputAttempt

TIME = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)


class Target:
    """A user's database with nothing of Forebay's in it, named by an environment variable."""

    def __init__(self, url: str) -> None:
        self.url = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

    def rows(self, statement: str, *arguments: object) -> list[tuple[Any, ...]]:
        with contextlib.closing(psycopg2.connect(self.url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(statement, arguments or None)
            return cursor.fetchall() if cursor.description else []

    def counts(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT word, n FROM counts ORDER BY 1, 2")

    def staging(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'forebay\\_staging\\_%%'")

    def commits(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT batch_time, attempt, rows FROM forebay_commits ORDER BY 1")


def attempt(number: int = 1, *, time: datetime = TIME, output: str = "counts", pipeline_id: int = 7) -> OutputAttempt:
    runs = {earlier: f"run{earlier}" for earlier in range(1, number + 1)}
    return OutputAttempt("words", pipeline_id, output, time, number, f"run{number}", runs)
