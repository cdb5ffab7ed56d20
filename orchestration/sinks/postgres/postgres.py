"""Write to a table in a user's Postgres, each batch exactly once: the commits recorded there decide.

The tasks COPY to staging tables of their own (`postgres_staging`). Then one transaction in the target records the
attempt in the target's `forebay_commits`, and inserts the rows of the valid tasks into the table. An attempt older than
the recorded one changes nothing. A newer one replaces the rows of an earlier attempt at its batch, found by the column
`_batch_time`. An attempt that finds its batch recorded in the target only has to write the row in the driver log.

All SQL here runs on the target; this module never touches the driver log. Locks: an advisory lock per table, held by
the transaction that changes it, so that attempts and batches run one after the other; readers never wait.
"""

from __future__ import annotations

import json
import re
import secrets
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args
from urllib.parse import urlsplit

from orchestration.declarations.pipeline import DeclarationError
from orchestration.declarations.sink import (
    AttemptOutdatedError,
    Committed,
    DeliveryGuarantee,
    OutputAttempt,
    Sink,
    SinkError,
    Step,
    Written,
)
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.postgres.postgres_access import changes_rows, check_access, unsupported
from orchestration.sinks.postgres.postgres_columns import (
    MOST_NAME_BYTES,
    Column,
    TableColumn,
    can_be_name,
    columns_of,
    fitted,
)
from orchestration.sinks.postgres.postgres_place import table_place
from orchestration.sinks.postgres.postgres_staging import ANSWER, REFUSED, Address, Staging, TargetError
from orchestration.sinks.table_columns import refuse_table
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Place, TargetCheck
    from orchestration.sinks.postgres.postgres_totals import Totals

Mode = Literal["append", "overwrite", "merge"]
OnBadRows = Literal["fail", "dead_letter"]

COMMITS = "forebay_commits"
#: Rows that the target refused, and their batches.
REFUSED_ROWS = "forebay_refused_rows"
_STAGING = "forebay_staging_"
#: Staging tables of a dead process are dropped by the next attempt at their batch, or after this time by any attempt.
_FORGOTTEN = timedelta(days=1)
#: How long a batch's row in `forebay_commits` stays. The row refuses older attempts at its batch, all of which began
#: before it was written; when it is deleted, each of them is older than _OLDEST_ATTEMPT, and is refused by its age.
_COMMITS_KEPT = timedelta(days=14)
_OLDEST_ATTEMPT = timedelta(days=7)
_MOST_FORGOTTEN = 10_000
_VALUE = re.compile(r"%\((\w+)\)s")


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
        if mode not in get_args(Mode):
            message = f"PostgresSink {table!r}: mode={mode!r} must be one of {', '.join(get_args(Mode))}"
            raise DeclarationError(message)
        self.mode: Mode = mode
        self.key = (key,) if isinstance(key, str) else tuple(key or ())
        if bool(self.key) != (mode == "merge"):
            message = (
                f"PostgresSink {table!r}: mode='merge' needs the columns that say which row is meant: key=[...]"
                if mode == "merge"
                else f"PostgresSink {table!r}: key={list(self.key)} is of no use to mode={mode!r}: say mode='merge'"
            )
            raise DeclarationError(message)
        if on_bad_rows not in get_args(OnBadRows):
            message = (
                f"PostgresSink {table!r}: on_bad_rows={on_bad_rows!r} must be one of {', '.join(get_args(OnBadRows))}"
            )
            raise DeclarationError(message)
        self.on_bad_rows: OnBadRows = on_bad_rows
        if totals is not None and mode != "append":
            message = f"PostgresSink {table!r}: totals add up the rows of every batch: say mode='append'"
            raise DeclarationError(message)
        self.totals = totals

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
            **({} if self.on_bad_rows == "fail" else {"on_bad_rows": self.on_bad_rows}),
            **({} if self.totals is None else {"totals": self.totals.declaration()}),
        }

    @classmethod
    def place(cls, declaration: Mapping[str, Any]) -> Place:
        """Return the table, by the URL as it is written."""
        return table_place(declaration)

    def check_target(self) -> TargetCheck:
        """Ask the target for the login's rights, and for what the table has that this sink does not write."""
        return check_access(self.declaration())

    def committed(self, attempt: OutputAttempt) -> Committed | None:
        """Return the batch's commit in the target's `forebay_commits`, if the driver log knows its attempt."""
        with closing(self._connect(attempt)) as connection:
            connection.autocommit = True
            with self._failures(attempt), connection.cursor() as cursor:
                cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (_quoted(self.schema, COMMITS),))
                if not cursor.fetchone()[0]:
                    return None
                cursor.execute(
                    self._sql(
                        "SELECT attempt, run_id, rows FROM {commits} WHERE target = %(target)s "
                        "AND pipeline = %(pipeline)s AND output = %(output)s AND pipeline_id = %(pipeline_id)s "
                        "AND batch_time = %(batch_time)s",
                        self._key_of(attempt),
                    )
                )
                found = cursor.fetchone()
        if found is None or not attempt.knows(found[0], found[1]):
            return None
        return Committed(found[0], Written(self.target, found[2]))

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Let the tasks stage the rows, and commit them in the target in one transaction."""
        columns = columns_of(result.schema, attempt.name)
        self._check_key(columns, attempt)
        name = f"{_STAGING}{secrets.token_hex(6)}"
        try:
            columns, like = self._prepare(columns, attempt)
            self.reached(Step.PREPARED)
            staging = Staging(
                self._address(attempt),
                self.schema,
                name,
                tuple((column.name, column.type) for column in columns),
                json.dumps(_comment(attempt)),
                required=self.key,
                like=like,
                keeps_refused=self.on_bad_rows == "dead_letter",
            )
            answers = result.mapInArrow(self._task(staging), ANSWER).collect()
            staged = {row["staging"]: row["rows"] for row in answers}
            refused = {f"{row['staging']}{REFUSED}": row["refused"] for row in answers if row["refused"]}
            self.reached(Step.STAGED)
            rows = self._commit(columns, staged, refused, attempt)
            self.reached(Step.COMMITTED)
        finally:
            self._sweep(attempt, name)
        self.reached(Step.SWEPT)
        return Written(self.target, rows, sum(refused.values()))

    def _task(self, staging: Staging) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return staging.stage(batches)

        return stage

    def _prepare(
        self, columns: list[Column], attempt: OutputAttempt
    ) -> tuple[list[Column], tuple[str, tuple[str, ...]] | None]:
        """Create `forebay_commits`, drop leftovers of earlier attempts, and fit the columns to the table.

        Return the columns, and whose constraints each row must meet, as `Staging` takes it.
        """
        with closing(self._connect(attempt)) as connection, self._failures(attempt):
            with connection, connection.cursor() as cursor:
                # IF NOT EXISTS takes no lock: two transactions at the same time would both try to create the table.
                cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"forebay {self.schema}",))
                cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (_quoted(self.schema, COMMITS),))
                if not cursor.fetchone()[0]:
                    cursor.execute(self._sql(_MAKE_COMMITS))
            with connection, connection.cursor() as cursor:
                self._drop(cursor, self._left_over(cursor, attempt))
            with connection, connection.cursor() as cursor:
                self._check_owner(cursor, attempt)
                table = self._table_columns(cursor)
                unknown = unsupported(cursor, self.schema, self.table, merges=self.mode == "merge")
                refuse_table(unknown, table=f"table {self.target}", sink="PostgresSink", where=attempt.name)
                changes = changes_rows(cursor, self.schema, self.table)
        if not table:
            return columns, None
        columns = fitted(columns, table, name=self.target, where=attempt.name)
        given = {column.name for column in columns}
        left_out = tuple(column.name for column in table if column.name not in given)
        # A row that a trigger is to change first can't be judged before.
        return columns, None if changes else (self.table, left_out)

    def _commit(
        self, columns: list[Column], staged: dict[str, int], refused: dict[str, int], attempt: OutputAttempt
    ) -> int:
        """Record the attempt and change the table in one transaction. Raises AttemptOutdatedError."""
        from tracker_store.connection.pooler import strong_commit  # noqa: PLC0415  declaring a sink needs no driver

        rows = sum(staged.values())
        with (
            closing(self._connect(attempt)) as connection,
            self._failures(attempt),
            connection,
            connection.cursor() as cursor,
        ):
            # A commit that is answered must not be lost by a crash of the target: the driver log's row follows it.
            cursor.execute(strong_commit(is_local=True))
            # A process that is paused here must not block the attempt that replaces it.
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '60s'; SET LOCAL lock_timeout = '5min'")
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (f"forebay {self.target}",))
            self._check_owner(cursor, attempt)
            self._check_age(cursor, attempt)
            newest = self._newest_batch(cursor, attempt)
            self._record(cursor, attempt, rows)
            self._make_table(cursor, columns)
            if self.totals is not None:
                self.totals.make(cursor, self.schema, self.table, where=attempt.name)
            source = self._counted(cursor, columns, staged, rows, attempt)
            if self.mode != "overwrite":
                self._replace_batch(cursor, columns, source, attempt)
                if self.mode == "append":
                    self._check_stored(cursor, rows, attempt)
            elif newest is None or newest <= (attempt.pipeline_id, attempt.batch_time):
                cursor.execute(self._sql("DELETE FROM {table}"))
                self._insert(cursor, columns, source, attempt, "")
                self._check_stored(cursor, rows, attempt)
            # Else the table shows a later batch (this is a replay of an older one): record it, and keep the table.
            self._keep_refused(cursor, refused, attempt)
            self.reached(Step.IN_TRANSACTION)
        return rows

    def _keep_refused(self, cursor: Any, refused: dict[str, int], attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Replace the batch's refused rows by those of this attempt. Raises SinkError if any are missing."""
        from psycopg2 import sql  # noqa: PLC0415

        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (_quoted(self.schema, REFUSED_ROWS),))
        table = sql.Identifier(self.schema, REFUSED_ROWS)
        if cursor.fetchone()[0]:
            cursor.execute(
                self._sql(
                    "DELETE FROM {refused_rows} WHERE target = %(target)s AND pipeline = %(pipeline)s "
                    "AND output = %(output)s AND batch_time = %(batch_time)s",
                    self._key_of(attempt),
                    refused_rows=table,
                )
            )
        elif refused:
            cursor.execute(self._sql(_MAKE_REFUSED_ROWS, refused_rows=table))
        for staging in sorted(refused):
            cursor.execute(
                self._sql(
                    "INSERT INTO {refused_rows} (target, pipeline, output, batch_time, refused_row, reason) "
                    "SELECT %(target)s, %(pipeline)s, %(output)s, %(batch_time)s, refused_row, reason FROM {staging}",
                    self._key_of(attempt),
                    refused_rows=table,
                    staging=sql.Identifier(self.schema, staging),
                )
            )
            if cursor.rowcount != refused[staging]:
                raise SinkError(
                    f"{attempt.name}: {cursor.rowcount} of {refused[staging]} refused rows are there (did the target's "
                    "server crash, or fail over?): nothing was committed, the next attempt stages them again"
                )

    def _check_age(self, cursor: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Refuse an attempt that began too long ago: the row of the attempt that replaced it may be deleted already."""
        if attempt.began_at is None:
            return
        cursor.execute("SELECT clock_timestamp() - %s > %s", (attempt.began_at, _OLDEST_ATTEMPT))
        if cursor.fetchone()[0]:
            raise AttemptOutdatedError(
                f"{attempt.name}: attempt {attempt.attempt} at the batch of {attempt.batch_time.isoformat()} began at "
                f"{attempt.began_at.isoformat()}, more than {_OLDEST_ATTEMPT.days} days ago: it changed nothing"
            )

    def _forget(self, cursor: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Delete this output's old rows in `forebay_commits`; keep its newest, which identifies the table's owner."""
        cursor.execute(
            self._sql(
                "DELETE FROM {commits} AS c WHERE (c.target, c.pipeline, c.output, c.pipeline_id, c.batch_time) IN ("
                "SELECT target, pipeline, output, pipeline_id, batch_time FROM {commits} WHERE target = %(target)s "
                "AND pipeline = %(pipeline)s AND output = %(output)s "
                "AND (pipeline_id, batch_time) < (%(pipeline_id)s, %(batch_time)s) "
                "AND batch_time < clock_timestamp() - %(kept)s AND committed_at < clock_timestamp() - %(kept)s "
                "ORDER BY pipeline_id, batch_time LIMIT %(most)s) "
                # Repeated outside the subquery: after waiting for a replay's commit, Postgres checks only this
                # condition again on the changed row.
                "AND c.committed_at < clock_timestamp() - %(kept)s",
                self._key_of(attempt) | {"kept": _COMMITS_KEPT, "most": _MOST_FORGOTTEN},
            )
        )

    def _newest_batch(self, cursor: Any, attempt: OutputAttempt) -> tuple[int, datetime] | None:  # noqa: ANN401
        cursor.execute(
            self._sql(
                "SELECT pipeline_id, batch_time FROM {commits} WHERE target = %(target)s AND pipeline = %(pipeline)s "
                "AND output = %(output)s ORDER BY pipeline_id DESC, batch_time DESC LIMIT 1",
                self._key_of(attempt),
            )
        )
        found: tuple[int, datetime] | None = cursor.fetchone()
        return found

    def _record(self, cursor: Any, attempt: OutputAttempt, rows: int) -> None:  # noqa: ANN401
        """Write the attempt's row, replacing an older attempt's. Locks: the row, until the transaction ends."""
        cursor.execute(
            self._sql(
                "INSERT INTO {commits} AS c (target, pipeline, output, pipeline_id, batch_time, attempt, run_id, rows) "
                "VALUES (%(target)s, %(pipeline)s, %(output)s, %(pipeline_id)s, %(batch_time)s, %(attempt)s, "
                "%(run_id)s, %(rows)s) "
                "ON CONFLICT (target, pipeline, output, pipeline_id, batch_time) DO UPDATE "
                "SET attempt = excluded.attempt, run_id = excluded.run_id, rows = excluded.rows, "
                "committed_at = clock_timestamp() WHERE c.attempt < excluded.attempt RETURNING attempt",
                self._key_of(attempt) | {"attempt": attempt.attempt, "run_id": attempt.run_id, "rows": rows},
            )
        )
        if cursor.fetchone() is None:
            raise AttemptOutdatedError(
                f"{attempt.name}: {self.schema}.{COMMITS} has this attempt ({attempt.attempt}) at the batch of "
                f"{attempt.batch_time.isoformat()}, or a newer one: this one changed nothing"
            )

    def _make_table(self, cursor: Any, columns: list[Column]) -> None:  # noqa: ANN401
        """Create the table if it is missing, in this transaction, so that no reader sees it empty.

        The caller holds the table's advisory lock.
        """
        from psycopg2 import sql  # noqa: PLC0415

        if self._table_columns(cursor):
            return
        definitions = [sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type)) for column in columns]
        definitions.append(sql.SQL("{} timestamp with time zone NOT NULL").format(sql.Identifier(BATCH_TIME)))
        if self.key:
            definitions.append(sql.SQL("PRIMARY KEY ({})").format(self._names(self.key)))
        cursor.execute(self._sql("CREATE TABLE {table} ({definitions})", definitions=sql.SQL(", ").join(definitions)))
        if self.mode != "overwrite":
            cursor.execute(self._sql("CREATE INDEX ON {table} ({batch_time})"))

    def _counted(
        self,
        cursor: Any,  # noqa: ANN401
        columns: list[Column],
        staged: dict[str, int],
        rows: int,
        attempt: OutputAttempt,
    ) -> Any:  # noqa: ANN401
        """Return the rows of the valid tasks as a subquery. Raises SinkError if any are missing."""
        from psycopg2 import sql  # noqa: PLC0415

        names = self._names([column.name for column in columns])
        if not staged:
            empty = sql.SQL(", ").join(
                sql.SQL("NULL::{} AS {}").format(sql.SQL(column.type), sql.Identifier(column.name))
                for column in columns
            )
            return sql.SQL("SELECT {} WHERE false").format(empty)
        source = sql.SQL(" UNION ALL ").join(
            sql.SQL("SELECT {} FROM {}").format(names, sql.Identifier(self.schema, table)) for table in sorted(staged)
        )
        cursor.execute(sql.SQL("SELECT count(*) FROM ({}) AS staged").format(source))
        found = cursor.fetchone()[0]
        if found != rows:
            raise SinkError(
                f"{attempt.name}: {found} of {rows} staged rows are there (did the target's server crash, or fail "
                "over?): nothing was committed, the next attempt stages them again"
            )
        return source

    def _replace_batch(self, cursor: Any, columns: list[Column], source: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Replace the rows of an earlier attempt at the batch by these rows."""
        from psycopg2 import sql  # noqa: PLC0415

        kept, conflict = sql.SQL(""), sql.SQL("")
        if self.key:
            same = sql.SQL(" AND ").join(
                sql.SQL("staged.{0} = t.{0}").format(sql.Identifier(column)) for column in self.key
            )
            kept = sql.SQL(" AND NOT EXISTS (SELECT 1 FROM ({}) AS staged WHERE {})").format(source, same)
            changed = sql.SQL(", ").join(
                sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name))
                for name in [*(column.name for column in columns), BATCH_TIME]
                if name not in self.key
            )
            # A replay of an older batch does not change rows of a newer one.
            conflict = self._sql(
                " ON CONFLICT ({key}) DO UPDATE SET {changed} WHERE t.{batch_time} <= excluded.{batch_time}",
                key=self._names(self.key),
                changed=changed,
            )
        cursor.execute(
            self._sql(
                "DELETE FROM {table} AS t WHERE t.{batch_time} = %(time)s{kept}",
                {"time": attempt.batch_time},
                kept=kept,
            )
        )
        self._insert(cursor, columns, source, attempt, conflict)

    def _insert(
        self,
        cursor: Any,  # noqa: ANN401
        columns: list[Column],
        source: Any,  # noqa: ANN401
        attempt: OutputAttempt,
        conflict: Any,  # noqa: ANN401
    ) -> None:
        from psycopg2 import errors, sql  # noqa: PLC0415

        names = self._names([column.name for column in columns])
        statement = self._sql(
            "INSERT INTO {table} AS t ({names}, {batch_time}) "
            "SELECT {names}, %(time)s FROM ({source}) AS staged{conflict}",
            {"time": attempt.batch_time},
            names=names,
            source=source,
            conflict=conflict or sql.SQL(""),
        )
        try:
            cursor.execute(statement)
        except errors.CardinalityViolation:
            raise SinkError(
                f"{attempt.name} has several rows of one key ({', '.join(self.key)}), of which one can be kept: "
                "group by the key, or drop all but one"
            ) from None
        except errors.UniqueViolation as error:
            way_out = (
                "if it is of mode='merge', which the output had before, go back to that, or: "
                f"ALTER TABLE {self.target} DROP CONSTRAINT {error.diag.constraint_name}"
                if self.mode == "append"
                else "group by its columns, or drop it"
            )
            raise SinkError(
                f"{attempt.name}: two rows of {self.target} have what its constraint {error.diag.constraint_name} "
                f"forbids ({error.diag.message_detail}): {way_out}"
            ) from None
        except errors.InvalidColumnReference:
            raise SinkError(
                f"{attempt.name}: the table {self.target} has no unique constraint on its key "
                f"({', '.join(self.key)}), which merging needs: ALTER TABLE {self.target} ADD PRIMARY KEY "
                f"({', '.join(self.key)})"
            ) from None

    def _check_stored(self, cursor: Any, rows: int, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Raise SinkError if the table did not take each row that was inserted: a trigger may leave rows out."""
        if cursor.rowcount != rows:
            raise SinkError(
                f"{attempt.name}: {self.target} took {cursor.rowcount} of {rows} rows, so nothing was committed: one "
                "of its triggers leaves rows out. Filter them in the output's function, or change the trigger"
            )

    def _check_key(self, columns: list[Column], attempt: OutputAttempt) -> None:
        missing = [column for column in self.key if column not in {found.name for found in columns}]
        if missing:
            raise SinkError(
                f"{attempt.name} has no column {', '.join(missing)}, which its sink has as key: add it, or name others"
            )

    def _check_owner(self, cursor: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Raise SinkError if another output writes to the table: each would treat the other's rows as its own."""
        cursor.execute(
            self._sql(
                "(SELECT pipeline, output FROM {commits} WHERE target = %(target)s ORDER BY pipeline, output LIMIT 1) "
                "UNION (SELECT pipeline, output FROM {commits} WHERE target = %(target)s "
                "ORDER BY pipeline DESC, output DESC LIMIT 1)",
                self._key_of(attempt),
            )
        )
        for pipeline, output in cursor.fetchall():
            if (pipeline, output) != (attempt.pipeline, attempt.output):
                rows = f"target = '{self.target}' AND pipeline = '{pipeline}' AND output = '{output}'"
                raise SinkError(
                    f"{attempt.name}: the table {self.target} is written by output {output!r} of pipeline "
                    f"{pipeline!r}: give it a table of its own, or, if that output is gone or was renamed, delete its "
                    f"rows from {self.schema}.{COMMITS}: those WHERE {rows}"
                )

    def _table_columns(self, cursor: Any) -> list[TableColumn]:  # noqa: ANN401
        """Return the table's columns; none if the table does not exist."""
        cursor.execute(
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
            "CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) "
            "ELSE format_type(a.atttypid, a.atttypmod) END, "
            "a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', a.attidentity = 'a' OR a.attgenerated <> '' "
            "FROM pg_attribute a "
            "JOIN pg_type t ON t.oid = a.atttypid "
            "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
            (_quoted(self.schema, self.table),),
        )
        return [TableColumn(*row) for row in cursor.fetchall()]

    def _left_over(self, cursor: Any, attempt: OutputAttempt, *, of: str | None = None) -> list[str]:  # noqa: ANN401
        """Return staging tables of the write `of`, or else of this batch's attempts up to this one, and old ones."""
        cursor.execute(
            "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c "
            "WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND c.relname LIKE %s",
            (_quoted(self.schema), (of or _STAGING).replace("_", r"\_") + "%"),
        )
        found = cursor.fetchall()
        if of is not None:
            return [name for name, _ in found]
        mine = _comment(attempt)
        left = []
        for name, text in found:
            comment = _read_comment(text)
            same = all(comment.get(part) == mine[part] for part in ("forebay", "output", "pipeline_id", "batch_time"))
            if (same and comment["attempt"] <= attempt.attempt) or _is_forgotten(comment):
                left.append(name)
        return left

    def _drop(self, cursor: Any, tables: Iterable[str]) -> None:  # noqa: ANN401
        """Drop staging tables. A task that still copies holds a lock on its table, which a later sweep drops."""
        from psycopg2 import errors, sql  # noqa: PLC0415

        cursor.execute("SET LOCAL lock_timeout = '1s'")
        for table in tables:
            cursor.execute("SAVEPOINT drop_one")
            try:
                cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(self.schema, table)))
            except errors.LockNotAvailable:
                cursor.execute("ROLLBACK TO SAVEPOINT drop_one")

    def _sweep(self, attempt: OutputAttempt, name: str) -> None:
        """Drop this write's own staging tables; a later attempt drops those that can't be dropped now."""
        import psycopg2  # noqa: PLC0415

        try:
            with closing(self._connect(attempt)) as connection, connection, connection.cursor() as cursor:
                self._drop(cursor, self._left_over(cursor, attempt, of=name))
                self._forget(cursor, attempt)
        except (psycopg2.Error, SinkError):
            return

    def _address(self, attempt: OutputAttempt) -> Address:
        try:
            url = self._url.resolve() if isinstance(self._url, Secret) else self._url
            password = None if self._password is None else self._password.resolve()
        except SecretError as error:
            raise SinkError(f"{attempt.name}: {error}") from None
        return Address(SecretUrl(url), password, f"forebay {attempt.pipeline}.{attempt.output}")

    def _connect(self, attempt: OutputAttempt) -> Any:  # noqa: ANN401
        try:
            return self._address(attempt).connect()
        except TargetError as error:
            raise SinkError(f"{attempt.name}: {error}") from None

    def _failures(self, attempt: OutputAttempt) -> _Failures:
        return _Failures(f"{attempt.name}: the target's table {self.target}")

    def _sql(self, statement: str, values: Mapping[str, Any] | None = None, **parts: Any) -> Any:  # noqa: ANN401
        """Return a statement that is executed without parameters: names in it may contain a `%`, which they would read.

        `values` are those of its `%(name)s`, `parts` those of its `{name}`.
        """
        from psycopg2 import sql  # noqa: PLC0415

        literals = {f"value_{name}": sql.Literal(value) for name, value in (values or {}).items()}
        return sql.SQL(_VALUE.sub(r"{value_\1}", statement)).format(
            table=sql.Identifier(self.schema, self.table),
            commits=sql.Identifier(self.schema, COMMITS),
            batch_time=sql.Identifier(BATCH_TIME),
            **literals,
            **parts,
        )

    def _names(self, columns: Iterable[str]) -> Any:  # noqa: ANN401
        from psycopg2 import sql  # noqa: PLC0415

        return sql.SQL(", ").join(sql.Identifier(column) for column in columns)

    def _key_of(self, attempt: OutputAttempt) -> dict[str, Any]:
        return {
            "target": self.target,
            "pipeline": attempt.pipeline,
            "output": attempt.output,
            "pipeline_id": attempt.pipeline_id,
            "batch_time": attempt.batch_time,
        }


_MAKE_COMMITS = """
CREATE TABLE {commits} (
    target text NOT NULL,
    pipeline text NOT NULL,
    output text NOT NULL,
    pipeline_id bigint NOT NULL,
    batch_time timestamp with time zone NOT NULL,
    attempt integer NOT NULL,
    run_id text NOT NULL,
    rows bigint NOT NULL,
    committed_at timestamp with time zone NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (target, pipeline, output, pipeline_id, batch_time)
)
"""


_MAKE_REFUSED_ROWS = """
CREATE TABLE {refused_rows} (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target text NOT NULL,
    pipeline text NOT NULL,
    output text NOT NULL,
    batch_time timestamp with time zone NOT NULL,
    refused_row text NOT NULL,
    reason text NOT NULL,
    refused_at timestamp with time zone NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ON {refused_rows} (target, batch_time)
"""


class _Failures:
    """Turn Postgres errors into a SinkError that names the output."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        import psycopg2  # noqa: PLC0415

        if isinstance(error, psycopg2.Error):
            said = " ".join(str(error).split())
            raise SinkError(f"{self._where}: {said}") from error


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
    if name in (COMMITS, REFUSED_ROWS) or name.startswith(_STAGING):
        message = f"PostgresSink: table {table!r} is the sink's own: choose another name"
        raise DeclarationError(message)
    return schema, name


def _quoted(*names: str) -> str:
    """Quote names for `to_regclass`."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def _comment(attempt: OutputAttempt) -> dict[str, Any]:
    return {
        "forebay": attempt.pipeline,
        "output": attempt.output,
        "pipeline_id": attempt.pipeline_id,
        "batch_time": attempt.batch_time.isoformat(),
        "attempt": attempt.attempt,
        "made": datetime.now(UTC).isoformat(),
    }


def _is_forgotten(comment: dict[str, Any]) -> bool:
    """Return whether a staging table is old enough to drop. Compares the clocks of two hosts: a day allows for skew."""
    made = comment.get("made")
    return made is not None and datetime.fromisoformat(made) < datetime.now(UTC) - _FORGOTTEN


def _read_comment(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
