"""Run a person's own SQL on the driver log, in a session that is read-only unless they ask to write.

It holds no statement of Forebay's: those are in the other modules of this package.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg2

from tracker_store.connection.engine import CONNECTION_TIMEOUTS
from tracker_store.connection.errors import DriverLogError, DriverLogUnavailableError
from tracker_store.connection.log_address import libpq_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SEARCH_PATH = "forebay,public"


class StatementRefusedError(DriverLogError):
    """Nothing was changed. `forebay db shell --write` allows changes; docs/reference/schema.md describes the views."""


@dataclass(frozen=True, slots=True)
class Result:
    """Hold what a statement answered: its columns and rows, or, without any, its `status`, such as `UPDATE 3`."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    status: str


def session_options(*, write: bool) -> str:
    """Return libpq's `options` of such a session: names need no prefix, and nothing can be changed unless `write`."""
    read_only = "" if write else " -c default_transaction_read_only=on"
    return f"-c search_path={_SEARCH_PATH}{read_only}"


class PersonSession:
    """Run statements in one session; `run` may be called any number of times."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401  psycopg2 has no types
        """Take psycopg2's connection."""
        self._connection = connection

    def run(self, statements: str) -> Result:
        """Run one statement, or several; return what the last one answered. Raises StatementRefusedError."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statements)
                if cursor.description is None:
                    return Result([], [], cursor.statusmessage or "")
                return Result([column.name for column in cursor.description], cursor.fetchall(), cursor.statusmessage)
        except psycopg2.OperationalError as error:
            raise DriverLogUnavailableError(str(error).strip()) from error
        except psycopg2.Error as error:
            raise StatementRefusedError(str(error).strip()) from error


@contextmanager
def person_session(url: str, *, application_name: str, write: bool) -> Iterator[PersonSession]:
    """Open a session at `url`. Raises DriverLogUnavailableError."""
    try:
        connection = psycopg2.connect(
            libpq_url(url, with_password=True),
            application_name=application_name,
            options=session_options(write=write),
            **CONNECTION_TIMEOUTS,
        )
    except psycopg2.OperationalError as error:
        raise DriverLogUnavailableError(str(error).strip()) from error
    # Each statement is a transaction of its own.
    connection.autocommit = True
    with closing(connection):
        yield PersonSession(connection)
