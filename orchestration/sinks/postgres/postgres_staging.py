"""COPY a Spark task's partition to a staging table of this task attempt, for a PostgresSink.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log. A task attempt creates its
table and fills it in one transaction, so a table is complete or missing. Spark passes on only the answer of the valid
attempt of a task: the tables of attempts that lost, or were run again, are never merged.

Rows that the target refuses are found by halves. They end the task, with what is wrong with the first of them; or,
where the sink keeps them, they go to a second table, as text.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import TargetUnavailableError
from orchestration.sinks.postgres.postgres_row_errors import is_of_a_row
from orchestration.sinks.postgres.postgres_values import RepeatedKeyError, as_csv
from orchestration.sinks.refused_rows import (
    KEEP_WAY_OUT,
    RefusedRow,
    RefusedRows,
    bad_text,
    readable_row,
    row_as_json,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import psycopg2
    import pyarrow as pa

    from receiver_runtime.block_store.secret_url import SecretUrl

#: The columns of a task's answer: its staging table, how many rows it has, and how many were refused.
ANSWER = "staging string, rows bigint, refused bigint"
#: What is behind the name of a staging table in that of its refused rows.
REFUSED = "_refused"
_NUL = "\\u0000"  # as JSON has it
#: Bytes of a character in Postgres's message.
_BYTE = re.compile(r"\b0x([0-9a-f]{2})\b")
_COPIED = re.compile(r"^COPY forebay_staging_\S+, line \d+: ")
_RELATION = re.compile(r' (for|of) relation "forebay_staging_[^"]*"')
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}

# Codes of Postgres: connections, connections that are all taken, a shutdown, a server that starts.
_AWAY = ("08", "53300", "57P01", "57P02", "57P03", "57P05")
# What libpq, the server and pgbouncer say of a connection that there may be later.
_AWAY_TEXT = re.compile(
    "Connection refused|Connection reset|Connection timed out|timeout expired|No route to host|Network is unreachable|"
    "Host is down|Broken pipe|Temporary failure in name resolution|server closed the connection|connection already "
    "closed|SSL SYSCALL error|SSL connection has been closed|No such file or directory|starting up|shutting down|not "
    "yet accepting|in recovery|too many (?:clients|connections)|connection slots|terminating connection|cannot connect "
    "to server|server login has been failing|query_wait_timeout|server conn crashed"
)


class TargetError(Exception):
    """This target can't be reached, or refuses what it is given. The message names it, and holds no secret."""


@dataclass(frozen=True, slots=True)
class Address:
    """Hold the address of the target with resolved secrets; it is sent to the tasks, and never printed."""

    url: SecretUrl
    password: str | None = field(repr=False)
    application_name: str

    def connect(self) -> Any:  # noqa: ANN401  psycopg2 has no types
        """Return a new connection. Raises TargetError, and TargetUnavailableError."""
        import psycopg2  # noqa: PLC0415  declaring a sink needs no driver

        scheme, separator, rest = self.url.reveal().partition("://")
        if scheme.partition("+")[0] not in ("postgresql", "postgres") or not separator:
            # No part of a secret's value may be shown.
            raise TargetError("the target's URL is none of Postgres: write postgresql://USER@HOST:PORT/DATABASE")
        password = {} if self.password is None else {"password": self.password}
        try:
            return psycopg2.connect(
                f"postgresql://{rest}",
                **password,
                connect_timeout=10,
                # Else libpq takes the database's, and bytes of UTF-8 would be stored as text of that.
                client_encoding="UTF8",
                application_name=self.application_name[:63],
                **_KEEPALIVE,
            )
        except psycopg2.ProgrammingError:
            # libpq's message would repeat parts of a URL that it can't read.
            raise TargetError(
                "the target's URL can't be read: write postgresql://USER@HOST:PORT/DATABASE, and what is special in "
                "it (@ : / % in a password) as %40 %3A %2F %25"
            ) from None
        except psycopg2.OperationalError as error:
            message = f"no connection to the target: {self._without_secrets(str(error).strip())}"
            raise (TargetUnavailableError if is_away(error) else TargetError)(message) from None

    def _without_secrets(self, text: str) -> str:
        text = self.url.scrub(text)
        return text if not self.password else text.replace(self.password, "***")


def is_away(error: psycopg2.Error) -> bool:
    """Return whether the server can't be reached or can't work now, and nothing is wrong with the login or the rows."""
    import psycopg2  # noqa: PLC0415

    if error.pgcode is not None:
        return str(error.pgcode).startswith(_AWAY)
    if not isinstance(error, psycopg2.OperationalError | psycopg2.InterfaceError):
        return False
    # A refused connection has no code; a wrong setting has none either, and must not be waited for.
    return _AWAY_TEXT.search(str(error)) is not None


@dataclass(frozen=True, slots=True)
class Staging:
    """Fill the staging tables of one attempt at an output; `comment` identifies the attempt on each table.

    `columns`: names and types. `required`: those that take no null. `compared`: those whose type may alter a text, each
    of which is copied a second time as it was, so that a constraint compares them. `keeps_refused`: rows that the
    target refuses go to a table of their own; `skips_refused`: they are skipped.
    """

    address: Address
    schema: str
    prefix: str
    columns: tuple[tuple[str, str], ...]
    comment: str
    required: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    keeps_refused: bool = False
    skips_refused: bool = False

    @property
    def _copies(self) -> dict[str, str]:
        """Return the name of each second column, and of its constraint, with the name of the column."""
        return {f"{self.prefix}_{number}": name for number, name in enumerate(self.compared)}

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """COPY a task's rows to its own table, and yield its name and count; nothing if there are no rows."""
        import pyarrow as pa  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        task = secrets.token_hex(4) if context is None else context.taskAttemptId()
        table = f"{self.prefix}_{task}"
        rows, refused = self.copy(table, batches)
        if rows or refused:
            counts = {"rows": pa.array([rows], pa.int64()), "refused": pa.array([refused], pa.int64())}
            yield pa.record_batch({"staging": pa.array([table]), **counts})

    def copy(self, table: str, batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
        """Create `table` and fill it in one transaction; return the numbers of rows and of refused rows.

        Raises TargetError, TargetUnavailableError and RefusedRowsError.
        """
        import psycopg2  # noqa: PLC0415
        from psycopg2 import sql  # noqa: PLC0415

        connection, rows = None, 0
        refused = RefusedRows(keeps=self.keeps_refused or self.skips_refused, way_out=KEEP_WAY_OUT)
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if connection is None:
                    connection = self.address.connect()
                    self._make(connection, sql.Identifier(self.schema, table))
                statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(
                    sql.Identifier(self.schema, table),
                    sql.SQL(", ").join(map(sql.Identifier, [*(name for name, _ in self.columns), *self._copies])),
                )
                before = len(refused.rows)
                with connection.cursor() as cursor:
                    self._fill(cursor, statement.as_string(connection), batch, refused)
                rows += batch.num_rows - (len(refused.rows) - before)
            refused.end()
            if connection is not None:
                if refused.rows and not self.skips_refused:
                    self._put_aside(connection, f"{table}{REFUSED}", refused.rows)
                connection.commit()
        except psycopg2.Error as error:
            kind = TargetUnavailableError if is_away(error) else TargetError
            raise kind(f"COPY to the target failed: {_said(error)}") from None
        finally:
            if connection is not None:
                connection.close()
        return rows, len(refused.rows)

    def _fill(self, cursor: Any, statement: str, batch: pa.RecordBatch, refused: RefusedRows) -> None:  # noqa: ANN401
        """COPY rows; add those that the target refuses to the list. Raises RefusedRowsError if there are too many."""
        import psycopg2  # noqa: PLC0415

        cursor.execute("SAVEPOINT piece")
        try:
            cursor.copy_expert(statement, as_csv(batch, self.compared))
        except (psycopg2.Error, UnicodeDecodeError, RepeatedKeyError) as error:
            if isinstance(error, psycopg2.Error) and not is_of_a_row(error):
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT piece")
            if batch.num_rows > 1:
                half = batch.num_rows // 2
                self._fill(cursor, statement, batch.slice(0, half), refused)
                self._fill(cursor, statement, batch.slice(half), refused)
                return
            refused.add(self._refused(batch, error))
        else:
            cursor.execute("RELEASE SAVEPOINT piece")

    def _refused(self, batch: pa.RecordBatch, error: Any) -> RefusedRow:  # noqa: ANN401  psycopg2 has no types
        constraint = None if getattr(error, "diag", None) is None else error.diag.constraint_name
        name = self._copies.get(constraint or "")
        if name is None:
            return _refused(batch, error)
        row = readable_row(batch)
        why = f"which the table's {dict(self.columns)[name]} would alter: write it as Postgres gives it back"
        return RefusedRow(row_as_json(row), f"column {name} is {shown(row[name])}, {why}")

    def _put_aside(self, connection: Any, table: str, refused: list[RefusedRow]) -> None:  # noqa: ANN401
        """Keep refused rows in a table."""
        from psycopg2 import sql  # noqa: PLC0415
        from psycopg2.extras import execute_values  # noqa: PLC0415

        name = sql.Identifier(self.schema, table)
        with connection.cursor() as cursor:
            cursor.execute(sql.SQL("CREATE UNLOGGED TABLE {} (refused_row text, reason text)").format(name))
            cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(name, sql.Literal(self.comment)))
            values = [(one.row, one.reason) for one in refused]
            execute_values(cursor, sql.SQL("INSERT INTO {} VALUES %s").format(name).as_string(connection), values)

    def _make(self, connection: Any, table: Any) -> None:  # noqa: ANN401
        from psycopg2 import sql  # noqa: PLC0415

        columns = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in self.columns]
        for copy, name in self._copies.items():
            # `concat` gives what readers get, and an explicit collation tells apart what a column's own may not.
            columns.append(
                sql.SQL('{0} text CONSTRAINT {0} CHECK (concat({1}) = {0} COLLATE "C")').format(
                    sql.Identifier(copy), sql.Identifier(name)
                )
            )
        with connection.cursor() as cursor:
            # UNLOGGED: a crash of the target empties the table, which the count before the merge detects.
            cursor.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, sql.SQL(", ").join(columns)))
            for name in self.required:
                # A table of others may have a key with nulls, none of which is the same as another.
                required = sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET NOT NULL")
                cursor.execute(required.format(table, sql.Identifier(name)))
            cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(table, sql.Literal(self.comment)))


def _refused(batch: pa.RecordBatch, error: Any) -> RefusedRow:  # noqa: ANN401  psycopg2 has no types
    from psycopg2.errors import UntranslatableCharacter  # noqa: PLC0415

    if (bad := bad_text(batch)) is not None:
        return bad
    row = readable_row(batch)
    if isinstance(error, RepeatedKeyError):
        return RefusedRow(row_as_json(row), f"column {error.column} is {shown(row[error.column])}: {error}")
    context = (error.diag.context or "") if error.diag is not None else ""
    # Of two names where one begins like the other, the longer one.
    named = [name for name in sorted(row, key=len, reverse=True) if f", column {name}" in context]
    named += [name for name in row if error.diag is not None and name == error.diag.column_name]
    # Postgres names no column for a NUL in a text, and none for a character that the database's encoding lacks.
    named += [name for name, value in row.items() if _NUL in json.dumps(value, default=str)]
    lacking = ""
    if isinstance(error, UntranslatableCharacter):
        lacking = bytes.fromhex("".join(_BYTE.findall(str(error)))).decode(errors="ignore")
        named += [name for name, value in row.items() if lacking in json.dumps(value, default=str, ensure_ascii=False)]
    reason = _said(error)
    if named:
        reason = f"column {named[0]} is {shown(row[named[0]])}: {_said(error, with_context=False)}"
    if lacking:
        reason = reason.encode("ascii", "backslashreplace").decode()
    # A NUL is an escape there, so that the text can be kept.
    return RefusedRow(row_as_json(row), reason.replace("\0", "\\0"))


def _said(error: Any, *, with_context: bool = True) -> str:  # noqa: ANN401
    """Return Postgres' message, with the context that names the column."""
    context = (error.diag.context or "").partition("\n")[0] if error.diag is not None else ""
    message = str(error.diag.message_primary or error).strip() if error.diag is not None else str(error)
    # The name of the staging table says nothing to a reader.
    context, message = _COPIED.sub("the row is ", context), _RELATION.sub("", message)
    if "0x00" in message or "unsupported Unicode escape sequence" in message:
        message += " (a NUL character, which text in Postgres can't hold: take it out by translate(column, '\\0', ''))"
    return f"{message} [{context}]" if context and with_context else message
