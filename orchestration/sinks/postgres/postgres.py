"""Write to a table in a user's Postgres, each batch exactly once: the commits recorded there decide.

The tasks COPY to staging tables of their own (`postgres_staging`). Then one transaction in the target records the
attempt in the target's `forebay_commits`, and inserts the rows of the valid tasks into the table. An attempt older than
the recorded one changes nothing. A newer one replaces the rows of an earlier attempt at its batch, found by the column
`_batch_time`, and those of windows that the attempt replaces, whose identities the tasks stage too. An attempt that
finds its batch recorded in the target only has to write the row in the driver log.

`postgres_commits`, `postgres_rows` and `postgres_refused_rows` have the statements on a table each; this module owns
the order of steps. All SQL runs on the target; this module never touches the driver log. Locks: an advisory lock per
table, held by the transaction that changes it, so that attempts and batches run one after the other; readers never
wait.
"""

from __future__ import annotations

import json
import secrets
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import (
    Committed,
    DeliveryGuarantee,
    OutputAttempt,
    Sink,
    SinkError,
    Step,
    TargetUnavailableError,
    Written,
)
from orchestration.sinks.column_changes import ColumnPolicy, checked_policy, declared_policy
from orchestration.sinks.postgres.postgres_access import (
    check_access,
    check_writer,
    needed_change,
    unmergeable,
    unsupported,
)
from orchestration.sinks.postgres.postgres_catalog import columns_of_table
from orchestration.sinks.postgres.postgres_columns import (
    MOST_NAME_BYTES,
    Column,
    can_be_name,
)
from orchestration.sinks.postgres.postgres_commits import Commits
from orchestration.sinks.postgres.postgres_leftovers import STAGING, comment_of, drop, left_over
from orchestration.sinks.postgres.postgres_place import table_address, table_place
from orchestration.sinks.postgres.postgres_refused_rows import REFUSED_ROWS, RefusedRowsTable
from orchestration.sinks.postgres.postgres_rows import StagedRows, TargetTable, Windows
from orchestration.sinks.postgres.postgres_staging import ANSWER, REFUSED, Address, Staging, TargetError, is_away
from orchestration.sinks.postgres.postgres_statements import COMMITS, LOCK_TIMEOUT, Statements
from orchestration.sinks.refused_rows import (
    KEEP_WAY_OUT,
    OnBadRows,
    RefusedRows,
    RefusedRowsError,
    checked_choice,
    declared_choice,
)
from orchestration.sinks.table_columns import Mode, can_replace, checked_mode, refuse_table, replaced_columns
from orchestration.sinks.task_rows import answers_of
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from orchestration.declarations.sink import Place, TableAddress, TargetCheck
    from orchestration.sinks.postgres.postgres_totals import Totals

_WAY_OUT = f", change what the table demands of them{KEEP_WAY_OUT}"


class PostgresSink(Sink):
    """Keep an output in a table of your Postgres. Exactly once."""

    guarantee: ClassVar[DeliveryGuarantee] = DeliveryGuarantee.EXACTLY_ONCE
    commits: ClassVar[bool] = True

    def __init__(
        self,
        url: str | Secret,
        table: str,
        *,
        mode: Mode = "append",
        key: Sequence[str] | str | None = None,
        password: str | Secret | None = None,
        on_bad_rows: OnBadRows = "fail",
        totals: Totals | None = None,
        columns: ColumnPolicy | None = None,
    ) -> None:
        """Declare the table.

        Args:
            url: `EnvVar("NAME")`, `"env:NAME"` or `"file:/PATH"`, which hold the whole URL; or the URL itself without a
                password, `"postgresql://USER@HOST:PORT/DATABASE"`.
            table: `TABLE` or `SCHEMA.TABLE` (default schema: public); created at the first batch if it is missing.
            mode: "append" keeps each batch's rows; "overwrite" only those of the newest batch; "merge" one row per
                `key`, from the newest batch that had it.
            key: the columns that identify a row, for "merge".
            password: `EnvVar("NAME")`, `"env:NAME"` or `"file:/PATH"`, if the URL has none.
            on_bad_rows: what happens to rows with a value that a column can't hold (a NUL, a number that is too large):
                "fail" fails the batch, and names them; "dead_letter" commits the others, and with them the refused rows
                as JSON in `forebay_refused_rows`, beside the table.
            totals: a view that adds up the rows of all batches per key, for "append".
            columns: what happens to columns of the result that the table lacks, or that are too narrow: "add" changes
                the table, in the transaction of the first rows; "refuse" refuses the batch. By default "add" in a table
                that this sink made, and "refuse" in any other.

        Raises:
            DeclarationError: a value is invalid, or a secret is given as plain text; the message says how to fix it.
        """
        self._url = _checked_url(url)
        try:
            self._password = None if password is None else Secret.of(password)
        except SecretError as error:
            message = f"PostgresSink: password: {error}"
            raise DeclarationError(message) from None
        self.schema, self.table = _checked_table(table)
        self.mode, self.key = checked_mode(mode, key, f"PostgresSink {table!r}")
        self.on_bad_rows: OnBadRows = checked_choice(on_bad_rows, f"PostgresSink {table!r}")
        if totals is not None and mode != "append":
            message = f"PostgresSink {table!r}: totals add up the rows of every batch: say mode='append'"
            raise DeclarationError(message)
        self.totals = totals
        self.columns = checked_policy(columns, f"PostgresSink {table!r}")
        self._statements = Statements(self.schema, self.table)
        self._commits = Commits(self._statements)
        self._refused = RefusedRowsTable(self._statements)
        self._rows = TargetTable(self._statements, mode=self.mode, key=self.key)

    @property
    def target(self) -> str:
        """Return `SCHEMA.TABLE`."""
        return f"{self.schema}.{self.table}"

    def declaration(self) -> dict[str, Any]:
        """Return the declaration that `forebay apply` writes, with secrets as references."""
        return {
            "kind": "postgres",
            "url": str(self._url),
            "password": None if self._password is None else str(self._password),
            "table": self.target,
            "mode": self.mode,
            "key": list(self.key),
            **declared_choice(self.on_bad_rows),
            **({} if self.totals is None else {"totals": self.totals.declaration()}),
            **declared_policy(self.columns),
        }

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table, by the URL as it is written."""
        return table_place(declaration)

    def address(self) -> TableAddress:
        """Return the table's name, with its database if the URL is no reference."""
        return table_address(str(self._url), self.schema, self.table)

    def check_columns(self, schema: StructType, where: str) -> None:
        """Check for names and types that a table can't have, and for the key."""
        self._rows.checked_columns(schema, where)

    def check_target(self, schema: StructType | None = None) -> TargetCheck:
        """Ask the target for the login's rights, and for what the table has that this sink does not write."""
        columns = None if schema is None else self._rows.checked_columns(schema, "the result")
        return check_access(self.declaration(), columns)

    def check_writer(self, pipeline: str, output: str) -> TargetCheck | None:
        """Ask the target's `forebay_commits` which output writes to the table."""
        return check_writer(self.declaration(), pipeline, output)

    def replaces(self, columns: Sequence[str]) -> bool:
        """Return whether the sink merges by a key that has these columns."""
        return can_replace(self.mode, self.key, columns)

    def step_after(self, before: Mapping[str, Any]) -> str | None:
        """Return what the table, as it is now, must be given or lose, because the mode, key or table is another."""
        now = self.declaration()
        stays = before.get("kind") == "postgres" and self.place(before) == self.place(now)
        if stays and before["mode"] == self.mode and {*before["key"]} == {*self.key}:
            return None
        return needed_change(now, before if stays else None)

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the batch's commit in the target's `forebay_commits`, if the driver log knows its attempt."""
        with closing(self._connect(attempt)) as connection:
            connection.autocommit = True
            with _Failures(attempt, self.target), connection.cursor() as cursor:
                found = self._commits.find(cursor, attempt)
                if found is None or not attempt.knows(found[0], found[1]):
                    return None
                refused = self._refused.count(cursor, attempt)
        return Committed(found[0], Written(self.target, found[2], refused))

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Let the tasks stage the rows, and commit them in the target in one transaction."""
        given = self._rows.checked_columns(result.schema, attempt.name)
        replaced = replaced_columns(self, result.schema, attempt)
        name = f"{STAGING}{secrets.token_hex(6)}"
        try:
            columns = self._prepare(given, attempt)
            self.reached(Step.PREPARED)
            staging = self._staging(name, columns, attempt)
            keeping = replace(staging, required=self.key, keeps_refused=self.on_bad_rows == "dead_letter")
            answers = answers_of(result, self._task(keeping), ANSWER)
            staged = {row["staging"]: row["rows"] for row in answers}
            refused = {f"{row['staging']}{REFUSED}": row["refused"] for row in answers if row["refused"]}
            windows = Windows(replaced, self._stage_windows(name, columns, attempt))
            self.reached(Step.STAGED)
            rows, refused_late = self._commit(given, staged, refused, windows, attempt)
            self.reached(Step.COMMITTED)
        finally:
            self._sweep(attempt, name)
        self.reached(Step.SWEPT)
        return Written(self.target, rows, sum(refused.values()) + refused_late)

    def _staging(self, prefix: str, columns: Sequence[Column], attempt: OutputAttempt) -> Staging:
        return Staging(
            self._address(attempt),
            self.schema,
            prefix,
            tuple((column.name, column.type) for column in columns),
            json.dumps(comment_of(attempt)),
            compared=tuple(column.name for column in columns if column.compared),
        )

    def _stage_windows(self, name: str, columns: Sequence[Column], attempt: OutputAttempt) -> dict[str, int]:
        """Let the tasks stage the identities of the windows that are replaced; return their tables and numbers."""
        if attempt.replaced is None:
            return {}
        of_windows = {column.name: column for column in columns}
        staging = self._staging(f"{name}_windows", [of_windows[one] for one in attempt.replaced.columns], attempt)
        # The table has no row with a value that it can't hold.
        answers = answers_of(attempt.replaced, self._task(replace(staging, skips_refused=True)), ANSWER)
        return {row["staging"]: row["rows"] for row in answers}

    def _task(self, staging: Staging) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return staging.stage(batches)

        return stage

    def _prepare(self, columns: list[Column], attempt: OutputAttempt) -> list[Column]:
        """Create `forebay_commits`, drop leftovers of earlier attempts, and fit the columns to the table."""
        with closing(self._connect(attempt)) as connection, _Failures(attempt, self.target):
            with connection, connection.cursor() as cursor:
                # IF NOT EXISTS takes no lock: two transactions at the same time would both try to create the table.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"forebay {self.schema}",))
                self._commits.make(cursor)
            with connection, connection.cursor() as cursor:
                drop(cursor, self.schema, left_over(cursor, self.schema, attempt))
            with connection, connection.cursor() as cursor:
                self._commits.check_owner(cursor, attempt)
                table = columns_of_table(cursor, self.schema, self.table)
                unknown = unsupported(cursor, self.schema, self.table, merges=self.mode == "merge")
                if self.mode == "merge" and table:
                    misfits = unmergeable(cursor, self.schema, self.table, self.key, table)
                    if misfits:
                        raise SinkError(f"{attempt.name}: {'; '.join(misfits)}")
                refuse_table(unknown, table=f"table {self.target}", sink="PostgresSink", where=attempt.name)
                return self._rows.fit(cursor, columns, self.columns, attempt.name).columns

    def _commit(
        self,
        columns: list[Column],
        staged: dict[str, int],
        refused: dict[str, int],
        windows: Windows,
        attempt: OutputAttempt,
    ) -> tuple[int, int]:
        """Record the attempt and change the table in one transaction.

        Return the numbers of rows that it has, and of those that it refused. Raises AttemptOutdatedError.
        """
        from tracker_store.connection.pooler import strong_commit  # noqa: PLC0415  declaring a sink needs no driver

        rows = sum(staged.values())
        with (
            closing(self._connect(attempt)) as connection,
            _Failures(attempt, self.target),
            connection,
            connection.cursor() as cursor,
        ):
            # A commit that is answered must not be lost by a crash of the target: the driver log's row follows it.
            cursor.execute(strong_commit(is_local=True))
            # A process that is paused here must not block the attempt that replaces it.
            cursor.execute(f"SET LOCAL idle_in_transaction_session_timeout = '60s'; {LOCK_TIMEOUT}")
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"forebay {self.target}",))
            self._commits.check_owner(cursor, attempt)
            self._commits.check_age(cursor, attempt)
            newest = self._commits.newest_batch(cursor, attempt)
            self._commits.record(cursor, attempt, rows)
            self._rows.make(cursor, columns)
            fit = self._rows.fit(cursor, columns, self.columns, attempt.name)
            if fit.statements:
                self._rows.alter(cursor, fit, attempt)
            if self.totals is not None:
                self.totals.make(cursor, self.schema, self.table, where=attempt.name)
            late = RefusedRows(keeps=self.on_bad_rows == "dead_letter", way_out=_WAY_OUT)
            of_attempt = StagedRows(fit.columns, staged, attempt, late, windows, fit.cleared)
            self._rows.check_staged(cursor, of_attempt)
            if self.mode == "merge":
                stored = self._rows.replace_batch(cursor, of_attempt)
                self._rows.check_stored(cursor, stored, stored, attempt)
            # Else the table shows a later batch (this is a replay of an older one): record it, and keep the table.
            elif self.mode == "append" or newest is None or newest <= (attempt.pipeline_id, attempt.batch_time):
                replace_rows = self._rows.replace_batch if self.mode == "append" else self._rows.replace_all
                stored = replace_rows(cursor, of_attempt)
                self._rows.check_stored(cursor, rows - len(late.rows), stored, attempt)
            late.end()
            if late.rows:
                rows -= len(late.rows)
                self._commits.correct(cursor, attempt, rows)
            self._refused.keep(cursor, refused, late.rows, attempt)
            self.reached(Step.IN_TRANSACTION)
        return rows, len(late.rows)

    def _sweep(self, attempt: OutputAttempt, name: str) -> None:
        """Drop this write's own staging tables; a later attempt drops those that can't be dropped now."""
        import psycopg2  # noqa: PLC0415

        try:
            with closing(self._connect(attempt)) as connection, connection, connection.cursor() as cursor:
                drop(cursor, self.schema, left_over(cursor, self.schema, attempt, of=name))
                self._commits.forget(cursor, attempt)
        except (psycopg2.Error, SinkError):
            return

    def _address(self, attempt: OutputAttempt) -> Address:
        try:
            url = self._url.resolve() if isinstance(self._url, Secret) else self._url
            password = None if self._password is None else self._password.resolve()
        except SecretError as error:
            raise TargetUnavailableError(f"{attempt.name}: {error}") from None
        return Address(SecretUrl(url), password, f"forebay {attempt.pipeline}.{attempt.output}")

    def _connect(self, attempt: OutputAttempt) -> Any:  # noqa: ANN401
        address = self._address(attempt)
        try:
            return address.connect()
        except TargetError as error:
            raise SinkError(f"{attempt.name}: {error}") from None
        except TargetUnavailableError as error:
            # The server answers FATAL at once, maybe to this login alone: it has too many connections.
            database = () if "FATAL: " in str(error) else self.place(self.declaration()).key[:-1]
            raise TargetUnavailableError(f"{attempt.name}: {error}", unreachable=database) from None


class _Failures:
    """Have the errors of a transaction name the output: those of Postgres as a SinkError, and refused rows."""

    def __init__(self, attempt: OutputAttempt, target: str) -> None:
        self._output, self._where = attempt.name, f"{attempt.name}: the target's table {target}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import psycopg2  # noqa: PLC0415

        if isinstance(error, psycopg2.Error):
            said = " ".join(str(error).split())
            kind = TargetUnavailableError if is_away(error) else SinkError
            raise kind(f"{self._where}: {said}") from error
        if isinstance(error, RefusedRowsError):
            raise RefusedRowsError(f"{self._output}: {error}") from None


def _checked_url(url: str | Secret) -> str | Secret:
    text = url if isinstance(url, str) and not hasattr(url, "env_var_name") else None
    if text is None or not text.partition("://")[1]:
        try:
            return Secret.of(url)
        except SecretError as error:
            message = (
                f"PostgresSink: url: {error}; or the URL itself without a password, postgresql://USER@HOST/DATABASE"
            )
            raise DeclarationError(message) from None
    try:
        parts = urlsplit(text)
        holds_password = parts.password is not None or SecretUrl(text).has_secret
    except ValueError:
        message = "PostgresSink: url: it can't be read: write postgresql://USER@HOST:PORT/DATABASE"
        raise DeclarationError(message) from None
    if holds_password:
        message = (
            'PostgresSink: url: it has a password in it, which would be stored: write url=EnvVar("NAME") or '
            '"file:/PATH" and keep the whole URL there, or leave the password out and give password=EnvVar("NAME")'
        )
        raise DeclarationError(message)
    if parts.scheme.partition("+")[0] not in ("postgresql", "postgres"):
        message = (
            f"PostgresSink: url: {parts.scheme}:// is none of Postgres: write postgresql://USER@HOST:PORT/DATABASE"
        )
        raise DeclarationError(message)
    if (why := SecretUrl(text).fault) is not None:
        message = f"PostgresSink: url: {why}"
        raise DeclarationError(message)
    return text


def _checked_table(table: str) -> tuple[str, str]:
    schema, dot, name = table.rpartition(".")
    schema = schema if dot else "public"
    if not all(can_be_name(part) and "." not in part for part in (schema, name)):
        message = (
            f"PostgresSink: table {table!r} is no table's name: write TABLE or SCHEMA.TABLE, at most "
            f"{MOST_NAME_BYTES} bytes each, without NUL"
        )
        raise DeclarationError(message)
    if any(len(part) > 1 and part[0] == part[-1] == '"' for part in (schema, name)):
        message = f"PostgresSink: table {table!r} is quoted as in SQL: write the names alone, with their own capitals"
        raise DeclarationError(message)
    if schema.startswith("pg_") or schema == "information_schema":
        message = f"PostgresSink: table {table!r} is in a schema of Postgres's own: choose another one"
        raise DeclarationError(message)
    if name in (COMMITS, REFUSED_ROWS) or name.startswith(STAGING):
        message = f"PostgresSink: table {table!r} is the sink's own: choose another name"
        raise DeclarationError(message)
    return schema, name
