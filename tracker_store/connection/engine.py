"""Open connections to the driver log, and name what a failed statement means.

Every connection uses autocommit, READ COMMITTED and time-outs (docs/explanation/driver-log.md): a stopped process must
never hold a lock that stops a take-over, and a missing answer is an outcome, not a wait.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg2
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tracker_store.connection.errors import DriverLogUnavailableError, OtherReleaseError, OutcomeUnknownError
from tracker_store.connection.pooler import (
    PoolMode,
    SessionSettings,
    TransactionPooledConnection,
    direct_url,
    is_options_refused,
    options_refused,
    parsed_url,
    pool_mode,
    split_pool_mode,
)

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


# SQLSTATE classes by which the server says that it did nothing: a deadlock, out of resources (a full disk, no free
# connection), a lock's time-out, an error of the operating system.
_REFUSED_CLASSES = ("40", "53", "55", "58")
# SQLSTATE of a read-only server: a standby, or a primary that its provider has locked.
_READ_ONLY = "25006"
# 57014: cancelled by a time-out.
_REFUSED_CODES = ("57014", _READ_ONLY)
# Undefined function, column, table and schema: another release has migrated the driver log, has not yet, or none has.
_OTHER_RELEASE_CODES = ("42883", "42703", "42P01", "3F000")


def psycopg2_url(url: str) -> sa.URL:
    """Return `url` for libpq, with its driver named: SQLAlchemy refuses ``postgres://``, which many providers write."""
    return split_pool_mode(parsed_url(url))[0].set(drivername="postgresql+psycopg2")


def create_engine(
    url: str,
    *,
    application_name: str,
    pool_size: int = 2,
    max_overflow: int = 2,
    statement_timeout: str = STATEMENT_TIMEOUT,
    lock_timeout: str = LOCK_TIMEOUT,
    connect_timeout: int = CONNECT_TIMEOUT_SECONDS,
    search_path: str | None = None,
) -> sa.Engine:
    """Return an engine on the driver log at `url`; `application_name` shows in ``pg_stat_activity``.

    `pool_size`, `max_overflow`: how many connections it keeps, and how many more it may have (-1: no bound).
    `connect_timeout`: seconds, for each address of the URL. `search_path`: a schema; None: the server's.
    """
    mode = pool_mode(url)
    settings = SessionSettings(statement_timeout, lock_timeout, IDLE_IN_TRANSACTION_TIMEOUT, search_path)
    address = psycopg2_url(url)
    how_set: dict[str, object] = {}
    if mode is None:
        # Ours last: they hold. A provider may need its own there, as `endpoint=…`.
        given = address.query.get("options", ())
        how_set["options"] = " ".join([*([given] if isinstance(given, str) else given), settings.start_up_options()])
    elif mode is PoolMode.TRANSACTION:
        how_set["connection_factory"] = TransactionPooledConnection
    engine = sa.create_engine(
        address,
        isolation_level="AUTOCOMMIT",
        pool_size=pool_size,
        max_overflow=max_overflow,
        pool_pre_ping=True,
        connect_args={
            "application_name": application_name,
            **CONNECTION_TIMEOUTS,
            "connect_timeout": connect_timeout,
            **how_set,
        },
        execution_options={_URL: url, _SETTINGS: settings},
    )

    # Before SQLAlchemy asks for the name of the default schema.
    @sa.event.listens_for(engine, "connect", insert=True)
    def begin_session(connection: Any, _record: object) -> None:  # noqa: ANN401  psycopg2 has no types
        settings.begin_session(connection, mode)

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


def _is_of_another_release(error: DBAPIError) -> bool:
    """Return whether the driver log lacks a function, column or table that the statement names."""
    return getattr(error.orig, "pgcode", None) in _OTHER_RELEASE_CODES


def server_said(error: BaseException | None) -> str:
    """Return what the server, or libpq, says in an error of psycopg2, on one line.

    The statement, the position in it and the functions that ran it are left out: they mean nothing to people who did
    not write them, and would be what is kept of a long text.
    """
    said = getattr(error, "diag", None)
    if said is None or not said.message_primary:
        return " ".join(str(error).split())
    further = (("DETAIL", said.message_detail), ("HINT", said.message_hint))
    advice = (f"{name}: {text}" for name, text in further if text)
    return " ".join(" ".join((said.message_primary, *advice)).split())


@contextmanager
def named_failures() -> Iterator[None]:
    """Turn a lost answer into OutcomeUnknownError and a refusal into DriverLogUnavailableError.

    A statement that names what this driver log does not have raises OtherReleaseError, a kind of the latter.
    """
    try:
        yield
    except DBAPIError as error:
        if is_outcome_unknown(error):
            raise OutcomeUnknownError(server_said(error.orig)) from error
        if is_refused(error):
            raise DriverLogUnavailableError(server_said(error.orig)) from error
        if _is_of_another_release(error):
            # The first line names what is missing; the others quote our own statement.
            raise OtherReleaseError(str(error.orig).strip().partition("\n")[0]) from error
        raise
    except PendingRollbackError as error:
        # An earlier statement of this transaction already raised for the lost connection; now this caller learns of it.
        raise OutcomeUnknownError("the connection was lost in the middle of this transaction") from error


@dataclass(frozen=True, slots=True)
class Prepared:
    """Describe a statement that a session plans once: the `answer` of `function`, whose arguments have `types`."""

    name: str
    function: str
    answer: str
    types: tuple[str, ...]

    @property
    def preparation(self) -> str:
        """Return the statement that prepares this one."""
        arguments = [f"${n}" for n in range(1, len(self.types) + 1)]
        return f"PREPARE {self.name} ({', '.join(self.types)}) AS {self._query(arguments)}"

    def execution(self, arguments: Sequence[str]) -> str:
        """Return the statement that runs this one after its preparation."""
        return f"EXECUTE {self.name}({', '.join(arguments)})"

    def unprepared(self, arguments: Sequence[str]) -> str:
        """Return the same statement for a session that was not prepared."""
        return self._query([f"CAST({value} AS {type_})" for value, type_ in zip(arguments, self.types, strict=True)])

    def _query(self, arguments: Sequence[str]) -> str:
        return f"SELECT {self.answer} FROM {self.function}({', '.join(arguments)})"  # noqa: S608  constants


# Names of execution options: what an engine was made of.
_URL = "forebay_url"
_SETTINGS = "forebay_settings"


def shares_sessions(engine: sa.Engine) -> bool:
    """Return whether a pooler lends the engine's connections a session for one transaction only."""
    url: str | None = engine.get_execution_options().get(_URL)
    return url is not None and pool_mode(url) is PoolMode.TRANSACTION


def engine_beside(engine: sa.Engine, needed_by: str, *, search_path: str | None = None) -> sa.Engine:
    """Return a new engine of one connection with a session of its own; `needed_by` says what for, to people.

    Raises DriverLogError.
    """
    url: str = engine.get_execution_options()[_URL]
    return create_engine(direct_url(url, needed_by), application_name=needed_by, pool_size=1, search_path=search_path)


@contextmanager
def with_session(connection: sa.Connection, needed_by: str) -> Iterator[sa.Connection]:
    """Yield `connection`, or another one if a pooler shares its session. Raises as `engine_beside` and `connect`."""
    if not shares_sessions(connection.engine):
        yield connection
        return
    beside = engine_beside(connection.engine, needed_by)
    try:
        with connect(beside) as own:
            yield own
    finally:
        beside.dispose()


@contextmanager
def with_statement_timeout(connection: sa.Connection, statement_timeout: str) -> Iterator[None]:
    """Let the connection's statements take longer, or less long, for a while."""
    settings: SessionSettings = connection.get_execution_options()[_SETTINGS]
    held = connection.connection.dbapi_connection
    if isinstance(held, TransactionPooledConnection):
        held.begin(replace(settings, statement_timeout=statement_timeout))
    else:
        connection.exec_driver_sql(f"SET statement_timeout = '{statement_timeout}'")
    try:
        yield
    finally:
        if not connection.invalidated:
            if isinstance(held, TransactionPooledConnection):
                held.begin(settings)
            else:
                # No RESET: the default of a pooler's session is the server's.
                connection.exec_driver_sql(f"SET statement_timeout = '{settings.statement_timeout}'")


# A plan that is cached while a table is almost empty would scan it until the next ANALYZE, however large it becomes, or
# make a bitmap of all rows of a receiver and sort them for its newest one.
_PREPARED_SESSION = "SET enable_seqscan = off; SET enable_bitmapscan = off"
_PREPARED_TRANSACTION = "SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off"
_CURSOR = "forebay_cursor"


def fetch_prepared(
    connection: sa.Connection, statement: Prepared, arguments: Sequence[str], values: Sequence[object] = ()
) -> list[tuple[Any, ...]]:
    """Return all rows of a prepared statement, on psycopg2's own cursor; the session's first call prepares it.

    For statements that run for each block: through SQLAlchemy, the client would spend half as much as the server does,
    and parsing and planning would cost the server a quarter. Failures are the same as through SQLAlchemy: its errors,
    and a lost connection is invalidated. Behind a pooler that lends transactions nothing is prepared: the next one may
    run in another session, and a name may be taken there.

    Args:
        connection: where to run it.
        statement: what to run.
        arguments: the call's arguments as SQL, with psycopg2's placeholders for `values`.
        values: the values of the placeholders.
    """
    held = connection.connection
    # This dictionary lives as long as the session.
    noted = held.info
    is_lent = isinstance(held.dbapi_connection, TransactionPooledConnection)
    try:
        cursor = noted.get(_CURSOR)
        if cursor is None:
            cursor = noted[_CURSOR] = held.cursor()
            if not is_lent:
                cursor.execute(_PREPARED_SESSION)
        if is_lent:
            cursor.execute(f"{_PREPARED_TRANSACTION}; {statement.unprepared(arguments)}", values or None)
        else:
            if statement.name not in noted:
                cursor.execute(statement.preparation)
                noted[statement.name] = True
            cursor.execute(statement.execution(arguments), values or None)
        rows: list[tuple[Any, ...]] = list(cursor.fetchall())
    except psycopg2.Error as error:
        is_lost = connection.dialect.is_disconnect(error, held.dbapi_connection, None)
        if is_lost:
            connection.invalidate(error)
        raise DBAPIError.instance(
            statement.preparation,
            tuple(values),
            error,
            psycopg2.Error,
            connection_invalidated=is_lost,
            dialect=connection.dialect,
        ) from error
    return rows


@contextmanager
def connect(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a pooled connection; raises DriverLogUnavailableError if there is none, and DriverLogError."""
    try:
        connection = engine.connect()
    except DBAPIError as error:
        if is_options_refused(str(error.orig)):
            raise options_refused(server_said(error.orig)) from error
        raise DriverLogUnavailableError(server_said(error.orig)) from error
    except PoolTimeoutError as error:
        raise DriverLogUnavailableError(f"every connection of this process is busy: {error}") from error
    with connection:
        yield connection


@contextmanager
def plain_connection(url: str) -> Iterator[sa.Connection]:
    """Open a connection with the settings that the server gives the login, without Forebay's own. Raises as SQLAlchemy.

    For a look at what other programs get, never for work on the driver log.
    """
    engine = sa.create_engine(
        psycopg2_url(url),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.NullPool,
        connect_args={"application_name": "forebay look", **CONNECTION_TIMEOUTS},
    )
    with engine.connect() as connection:
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
