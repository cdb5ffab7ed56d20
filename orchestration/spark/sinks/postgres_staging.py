"""COPY a Spark task's partition to a staging table of this task attempt, for a PostgresSink.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log. A task attempt creates its
table and fills it in one transaction, so a table is complete or missing. Spark passes on only the answer of the valid
attempt of a task: the tables of attempts that lost, or were run again, are never merged.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from receiver_runtime.block_store.secret_url import SecretUrl

#: The columns of a task's answer: its staging table, and the number of rows in it.
ANSWER = "staging string, rows bigint"
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}


class TargetError(Exception):
    """The target can't be reached, or refuses what it is given. The message names it, and holds no secret."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of the target with resolved secrets; it is sent to the tasks, and never printed."""

    url: SecretUrl
    password: str | None = field(repr=False)
    application_name: str

    def connect(self) -> Any:  # noqa: ANN401  psycopg2 has no types
        """Return a new connection. Raises TargetError."""
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
            raise TargetError(f"no connection to the target: {self._without_secrets(str(error).strip())}") from None

    def _without_secrets(self, text: str) -> str:
        text = self.url.scrub(text)
        return text if not self.password else text.replace(self.password, "***")


@dataclass(frozen=True, slots=True)
class Staging:
    """The staging tables of one attempt at an output; `comment` identifies the attempt on each table."""

    address: Address
    schema: str
    prefix: str
    columns: tuple[tuple[str, str], ...]
    comment: str

    def stage(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """COPY a task's rows to its own table, and yield its name and count; nothing if there are no rows."""
        import pyarrow as pa  # noqa: PLC0415
        from pyspark import TaskContext  # noqa: PLC0415

        context = TaskContext.get()
        task = secrets.token_hex(4) if context is None else context.taskAttemptId()
        table = f"{self.prefix}_{task}"
        rows = self.copy(table, batches)
        if rows:
            yield pa.record_batch({"staging": pa.array([table]), "rows": pa.array([rows], pa.int64())})

    def copy(self, table: str, batches: Iterable[pa.RecordBatch]) -> int:
        """Create `table` and fill it in one transaction; return the number of rows. Raises TargetError."""
        import psycopg2  # noqa: PLC0415
        from psycopg2 import sql  # noqa: PLC0415

        connection, rows = None, 0
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if connection is None:
                    connection = self.address.connect()
                    self._make(connection, sql.Identifier(self.schema, table))
                statement = sql.SQL("COPY {} FROM STDIN (FORMAT csv)").format(sql.Identifier(self.schema, table))
                with connection.cursor() as cursor:
                    cursor.copy_expert(statement.as_string(connection), as_csv(batch))
                rows += batch.num_rows
            if connection is not None:
                connection.commit()
        except psycopg2.Error as error:
            raise TargetError(f"COPY to the target failed: {_said(error)}") from None
        finally:
            if connection is not None:
                connection.close()
        return rows

    def _make(self, connection: Any, table: Any) -> None:  # noqa: ANN401
        from psycopg2 import sql  # noqa: PLC0415

        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(type_)) for name, type_ in self.columns
        )
        with connection.cursor() as cursor:
            # UNLOGGED: a crash of the target empties the table, which the count before the merge detects.
            cursor.execute(sql.SQL("CREATE UNLOGGED TABLE {} ({})").format(table, columns))
            cursor.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(table, sql.Literal(self.comment)))


def _said(error: Any) -> str:  # noqa: ANN401
    """Return Postgres' message, with the context that names the column."""
    context = (error.diag.context or "").partition("\n")[0] if error.diag is not None else ""
    message = str(error.diag.message_primary or error).strip() if error.diag is not None else str(error)
    if "0x00" in message:
        message += " (a NUL character, which text in Postgres can't hold: take it out by translate(column, '\\0', ''))"
    return f"{message} [{context}]" if context else message


def as_csv(batch: pa.RecordBatch) -> pa.BufferReader:
    r"""Return the rows for COPY: all values are quoted, so that nothing between commas is NULL and `""` empty text."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import csv  # noqa: PLC0415

    plain = pa.record_batch([_plain(column) for column in batch.columns], names=batch.schema.names)
    sink = pa.BufferOutputStream()
    csv.write_csv(plain, sink, csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return pa.BufferReader(sink.getvalue())


def _plain(column: pa.Array) -> pa.Array:
    """Return a column that can be written as CSV: bytes in hexadecimal, nested values as JSON."""
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    if types.is_null(column.type):
        return column.cast(pa.string())
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    if types.is_nested(column.type):
        values = [None if value is None else _json(value, column.type) for value in column.to_pylist()]
        return pa.array(values, pa.string())
    return column


def _json(value: Any, type_: pa.DataType) -> str:  # noqa: ANN401  any value of a column
    return json.dumps(_jsonable(value, type_), ensure_ascii=False, default=_scalar)


def _jsonable(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401
    """Convert a value for JSON: Arrow returns maps as pairs, which become objects; NaN and infinities become text."""
    from pyarrow import types  # noqa: PLC0415

    if value is None:
        return None
    if types.is_map(type_):
        return {str(key): _jsonable(item, type_.item_type) for key, item in value}
    if types.is_struct(type_):
        return {entry.name: _jsonable(value[entry.name], entry.type) for entry in type_}
    if types.is_list(type_) or types.is_large_list(type_):
        return [_jsonable(item, type_.value_type) for item in value]
    if types.is_floating(type_) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124  NaN
        return str(value)
    return value


def _scalar(value: Any) -> str:  # noqa: ANN401
    return value.hex() if isinstance(value, bytes) else str(value)
