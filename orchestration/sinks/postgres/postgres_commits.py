"""Read and write `forebay_commits` in the target: which attempt at a batch the table has, and which output owns it.

This module owns when a commit is refused, and when its row is deleted. It must never change the user's table.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import AttemptOutdatedError, OutputAttempt, TargetCheck, TargetUnavailableError
from orchestration.sinks.postgres.postgres_statements import COMMITS, Statements, quoted

if TYPE_CHECKING:
    from datetime import datetime

#: How long a batch's row in `forebay_commits` stays. The row refuses older attempts at its batch, all of which began
#: before it was written; when it is deleted, each of them is older than _OLDEST_ATTEMPT, and is refused by its age.
_COMMITS_KEPT = timedelta(days=14)
_OLDEST_ATTEMPT = timedelta(days=7)
_MOST_FORGOTTEN = 10_000


class Commits:
    """Execute statements on the commits. Each cursor is in a transaction of the caller's."""

    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def make(self, cursor: Any) -> None:  # noqa: ANN401  psycopg2 has no types
        """Create the table if it is missing."""
        if not self._exists(cursor):
            cursor.execute(self._statements.sql(_MAKE_COMMITS))

    def find(self, cursor: Any, attempt: OutputAttempt) -> tuple[int, str, int] | None:  # noqa: ANN401
        """Return the attempt, the run and the rows of the batch's commit, or None."""
        if not self._exists(cursor):
            return None
        cursor.execute(
            self._statements.sql(
                "SELECT attempt, run_id, rows FROM {commits} WHERE target = %(target)s "
                "AND pipeline = %(pipeline)s AND output = %(output)s AND pipeline_id = %(pipeline_id)s "
                "AND batch_time = %(batch_time)s",
                self._statements.key_of(attempt),
            )
        )
        found: tuple[int, str, int] | None = cursor.fetchone()
        return found

    def _exists(self, cursor: Any) -> bool:  # noqa: ANN401
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", (quoted(self._statements.schema, COMMITS),))
        return bool(cursor.fetchone()[0])

    def check_age(self, cursor: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Refuse an attempt that began too long ago: the row of the attempt that replaced it may be deleted already."""
        if attempt.began_at is None:
            return
        cursor.execute("SELECT clock_timestamp() - %s > %s", (attempt.began_at, _OLDEST_ATTEMPT))
        if cursor.fetchone()[0]:
            raise AttemptOutdatedError(
                f"{attempt.name}: attempt {attempt.attempt} at the batch of {attempt.batch_time.isoformat()} began at "
                f"{attempt.began_at.isoformat()}, more than {_OLDEST_ATTEMPT.days} days ago: it changed nothing"
            )

    def forget(self, cursor: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Delete this output's old rows in `forebay_commits`; keep its newest, which identifies the table's owner."""
        cursor.execute(
            self._statements.sql(
                "DELETE FROM {commits} AS c WHERE (c.target, c.pipeline, c.output, c.pipeline_id, c.batch_time) IN ("
                "SELECT target, pipeline, output, pipeline_id, batch_time FROM {commits} WHERE target = %(target)s "
                "AND pipeline = %(pipeline)s AND output = %(output)s "
                "AND (pipeline_id, batch_time) < (%(pipeline_id)s, %(batch_time)s) "
                "AND batch_time < clock_timestamp() - %(kept)s AND committed_at < clock_timestamp() - %(kept)s "
                "ORDER BY pipeline_id, batch_time LIMIT %(most)s) "
                # Repeated outside the subquery: after waiting for a replay's commit, Postgres checks only this
                # condition again on the changed row.
                "AND c.committed_at < clock_timestamp() - %(kept)s",
                self._statements.key_of(attempt) | {"kept": _COMMITS_KEPT, "most": _MOST_FORGOTTEN},
            )
        )

    def newest_batch(self, cursor: Any, attempt: OutputAttempt) -> tuple[int, datetime] | None:  # noqa: ANN401
        """Return the output's newest batch, or None."""
        cursor.execute(
            self._statements.sql(
                "SELECT pipeline_id, batch_time FROM {commits} WHERE target = %(target)s AND pipeline = %(pipeline)s "
                "AND output = %(output)s ORDER BY pipeline_id DESC, batch_time DESC LIMIT 1",
                self._statements.key_of(attempt),
            )
        )
        found: tuple[int, datetime] | None = cursor.fetchone()
        return found

    def record(self, cursor: Any, attempt: OutputAttempt, rows: int) -> None:  # noqa: ANN401
        """Write the attempt's row, replacing an older attempt's. Locks: the row, until the transaction ends."""
        cursor.execute(
            self._statements.sql(
                "INSERT INTO {commits} AS c (target, pipeline, output, pipeline_id, batch_time, attempt, run_id, rows) "
                "VALUES (%(target)s, %(pipeline)s, %(output)s, %(pipeline_id)s, %(batch_time)s, %(attempt)s, "
                "%(run_id)s, %(rows)s) "
                "ON CONFLICT (target, pipeline, output, pipeline_id, batch_time) DO UPDATE "
                "SET attempt = excluded.attempt, run_id = excluded.run_id, rows = excluded.rows, "
                "committed_at = clock_timestamp() WHERE c.attempt < excluded.attempt RETURNING attempt",
                self._statements.key_of(attempt) | {"attempt": attempt.attempt, "run_id": attempt.run_id, "rows": rows},
            )
        )
        if cursor.fetchone() is None:
            raise AttemptOutdatedError(
                f"{attempt.name}: {self._statements.schema}.{COMMITS} has this attempt ({attempt.attempt}) at the "
                f"batch of {attempt.batch_time.isoformat()}, or a newer one: this one changed nothing"
            )

    def correct(self, cursor: Any, attempt: OutputAttempt, rows: int) -> None:  # noqa: ANN401
        """Write another number of rows to the row that this transaction has recorded, and locks."""
        cursor.execute(
            self._statements.sql(
                "UPDATE {commits} SET rows = %(rows)s WHERE target = %(target)s AND pipeline = %(pipeline)s "
                "AND output = %(output)s AND pipeline_id = %(pipeline_id)s AND batch_time = %(batch_time)s",
                self._statements.key_of(attempt) | {"rows": rows},
            )
        )

    def check_owner(self, cursor: Any, attempt: OutputAttempt) -> None:  # noqa: ANN401
        """Raise TargetUnavailableError if another output writes to the table: each would replace the other's rows.

        A person decides whose it is, and batches wait until then: none is at fault.
        """
        other = self.other_writer(cursor, attempt.pipeline, attempt.output)
        if other is not None:
            raise TargetUnavailableError(f"{attempt.name}: {other.found}. {other.way_out}")

    def other_writer(self, cursor: Any, pipeline: str, output: str) -> TargetCheck | None:  # noqa: ANN401
        """Return that an output other than this one writes to the table, and how to hand it over; or None."""
        if not self._exists(cursor):
            return None
        cursor.execute(
            self._statements.sql(
                "(SELECT pipeline, output FROM {commits} WHERE target = %(target)s ORDER BY pipeline, output LIMIT 1) "
                "UNION (SELECT pipeline, output FROM {commits} WHERE target = %(target)s "
                "ORDER BY pipeline DESC, output DESC LIMIT 1)",
                {"target": self._statements.target},
            )
        )
        owner = next((found for found in cursor.fetchall() if found != (pipeline, output)), None)
        if owner is None:
            return None
        release = self._statements.sql(
            "DELETE FROM {commits} WHERE target = %(target)s AND pipeline = %(pipeline)s AND output = %(output)s",
            {"target": self._statements.target, "pipeline": owner[0], "output": owner[1]},
        )
        return TargetCheck(
            "failed",
            f"the table {self._statements.target} is written by output {owner[1]!r} of pipeline {owner[0]!r}",
            "Give it a table of its own. Or, if that output is gone or was renamed, run this in the target (first "
            f"`forebay stop --pipeline {owner[0]}`, if that pipeline runs): {release.as_string(cursor)};",
        )


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
