"""Open connections to the driver log, and name what a failed statement means.

Every connection uses autocommit, READ COMMITTED and time-outs (docs/explanation/driver-log.md): a stopped process must
never hold a lock that stops a take-over, and a missing answer is an outcome, not a wait.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg2
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tracker_store.errors import DriverLogUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STATEMENT_TIMEOUT = "30s"
LOCK_TIMEOUT = "10s"
IDLE_IN_TRANSACTION_TIMEOUT = "10s"
CONNECT_TIMEOUT_SECONDS = 5
TCP_USER_TIMEOUT_MS = 10_000
#: libpq's parameters that detect a server that vanished silently: times in seconds, tcp_user_timeout in ms.
CONNECTION_TIMEOUTS: Mapping[str, int] = {
    "connect_timeout": CONNECT_TIMEOUT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
}


def _session_options(statement_timeout: str, lock_timeout: str) -> str:
    return " ".join(
        f"-c {name}={value}"
        for name, value in {
            "default_transaction_isolation": r"read\ committed",
            "statement_timeout": statement_timeout,
            "lock_timeout": lock_timeout,
            "idle_in_transaction_session_timeout": IDLE_IN_TRANSACTION_TIMEOUT,
            "timezone": "UTC",
            # With enable_seqscan off, plans get enormous cost estimates: a server with LLVM would JIT-compile each one.
            "jit": "off",
        }.items()
    )


# SQLSTATE classes by which the server says that it did nothing: a deadlock, out of resources (a full disk, no free
# connection), a lock's time-out, an error of the operating system.
_REFUSED_CLASSES = ("40", "53", "55", "58")
# SQLSTATE of a read-only server: a standby, or a primary that its provider has locked.
_READ_ONLY = "25006"
# 57014: cancelled by a time-out.
_REFUSED_CODES = ("57014", _READ_ONLY)


def psycopg2_url(url: str) -> sa.URL:
    """Return `url` with its driver named: SQLAlchemy refuses ``postgres://``, which many providers write."""
    parsed = make_url(url)
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg2")
    return parsed


def create_engine(
    url: str,
    *,
    application_name: str,
    pool_size: int = 2,
    statement_timeout: str = STATEMENT_TIMEOUT,
    lock_timeout: str = LOCK_TIMEOUT,
    connect_timeout: int = CONNECT_TIMEOUT_SECONDS,
) -> sa.Engine:
    """Return an engine on the driver log at `url`; `application_name` shows in ``pg_stat_activity``.

    `connect_timeout`: seconds, for each address of the URL.
    """
    engine = sa.create_engine(
        psycopg2_url(url),
        isolation_level="AUTOCOMMIT",
        pool_size=pool_size,
        max_overflow=2,
        pool_pre_ping=True,
        connect_args={
            "application_name": application_name,
            **CONNECTION_TIMEOUTS,
            "connect_timeout": connect_timeout,
            "options": _session_options(statement_timeout, lock_timeout),
        },
    )
    sa.event.listen(engine, "handle_error", leave_a_read_only_server)
    return engine


def leave_a_read_only_server(context: sa.engine.ExceptionContext) -> None:
    """On ``handle_error``: drop a pooled connection to a server that is read-only.

    The connection works, but it would lead to a standby for ever; the address may lead to the primary by now.
    """
    if getattr(context.original_exception, "pgcode", None) == _READ_ONLY:
        context.is_disconnect = True


def is_outcome_unknown(error: DBAPIError) -> bool:
    """Return whether the answer to a statement was lost, so that it may have been committed.

    psycopg2 raises a plain DatabaseError without a code on a lost connection.
    """
    code: str | None = getattr(error.orig, "pgcode", None)
    return code is None or (code.startswith(("57P", "08")))


def is_refused(error: DBAPIError) -> bool:
    """Return whether the server did nothing, and may do it later."""
    code: str | None = getattr(error.orig, "pgcode", None)
    return code is not None and (code.startswith(_REFUSED_CLASSES) or code in _REFUSED_CODES)


@contextmanager
def named_failures() -> Iterator[None]:
    """Turn a lost answer into OutcomeUnknownError and a refusal into DriverLogUnavailableError."""
    try:
        yield
    except DBAPIError as error:
        if is_outcome_unknown(error):
            raise OutcomeUnknownError(str(error.orig).strip()) from error
        if is_refused(error):
            raise DriverLogUnavailableError(str(error.orig).strip()) from error
        raise
    except PendingRollbackError as error:
        # An earlier statement of this transaction already raised for the lost connection; now this caller learns of it.
        raise OutcomeUnknownError("the connection was lost in the middle of this transaction") from error


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that a session plans once: `query` has $1, $2, … of `types`."""

    name: str
    types: str
    query: str


# A plan that is cached while a table is almost empty would scan it until the next ANALYZE, however large it becomes.
_PREPARED_SESSION = "SET enable_seqscan = off"
_CURSOR = "forebay_cursor"


def fetch_prepared(
    connection: sa.Connection, statement: Prepared, arguments: str, values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows of a prepared statement, on psycopg2's own cursor; the session's first call prepares it.

    For statements that run for each block: through SQLAlchemy, the client would spend half as much as the server does,
    and parsing and planning would cost the server a quarter. Failures are the same as through SQLAlchemy: its errors,
    and a lost connection is invalidated.

    Args:
        connection: needs a session of its own: a pooler that hands out transactions has none.
        statement: what to run.
        arguments: the call's arguments as SQL, with psycopg2's placeholders for `values`.
        values: the values of the placeholders.
    """
    held = connection.connection
    # This dictionary lives as long as the session.
    noted = held.info
    try:
        cursor = noted.get(_CURSOR)
        if cursor is None:
            cursor = noted[_CURSOR] = held.cursor()
            cursor.execute(_PREPARED_SESSION)
        if statement.name not in noted:
            cursor.execute(f"PREPARE {statement.name} ({statement.types}) AS {statement.query}")
            noted[statement.name] = True
        cursor.execute(f"EXECUTE {statement.name}({arguments})", values or None)
        rows: list[tuple[Any, ...]] = list(cursor.fetchall())
    except psycopg2.Error as error:
        is_lost = connection.dialect.is_disconnect(error, held.dbapi_connection, None)
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement.query,
            tuple(values),
            error,
            psycopg2.Error,
            connection_invalidated=is_lost,
            dialect=connection.dialect,
        ) from error
    return rows


@contextmanager
def connect(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a pooled connection; raises DriverLogUnavailableError if there is none."""
    try:
        connection = engine.connect()
    except DBAPIError as error:
        raise DriverLogUnavailableError(str(error.orig).strip()) from error
    except PoolTimeoutError as error:
        raise DriverLogUnavailableError(f"every connection of this process is busy: {error}") from error
    with connection:
        yield connection


@contextmanager
def connect_once(url: str, *, application_name: str) -> Iterator[sa.Connection]:
    """Open a connection without keeping a pool, for one read or one command. Raises as ``connect``."""
    engine = create_engine(url, application_name=application_name, pool_size=1)
    try:
        with connect(engine) as connection:
            yield connection
    finally:
        engine.dispose()
