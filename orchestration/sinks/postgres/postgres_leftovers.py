"""Find and drop staging tables that are no longer needed: those of this write, of earlier attempts, of dead processes.

This module owns the comment that says whose a staging table is. It must never drop another table.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestration.sinks.postgres.postgres_statements import quoted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestration.declarations.sink import OutputAttempt

STAGING = "forebay_staging_"
#: Staging tables of a dead process are dropped by the next attempt at their batch, or after this time by any attempt.
_FORGOTTEN = timedelta(days=1)


def left_over(cursor: Any, schema: str, attempt: OutputAttempt, *, of: str | None = None) -> list[str]:  # noqa: ANN401
    """Return staging tables of the write `of`, or else of this batch's attempts up to this one, and old ones."""
    cursor.execute(
        "SELECT c.relname, obj_description(c.oid, 'pg_class') FROM pg_class c "
        "WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND c.relname LIKE %s",
        (quoted(schema), (of or STAGING).replace("_", r"\_") + "%"),
    )
    found = cursor.fetchall()
    if of is not None:
        return [name for name, _ in found]
    mine = comment_of(attempt)
    left = []
    for name, text in found:
        comment = _read_comment(text)
        same = all(comment.get(part) == mine[part] for part in ("forebay", "output", "pipeline_id", "batch_time"))
        if (same and comment["attempt"] <= attempt.attempt) or _is_forgotten(comment):
            left.append(name)
    return left


def drop(cursor: Any, schema: str, tables: Iterable[str]) -> None:  # noqa: ANN401
    """Drop staging tables. A task that still copies holds a lock on its table, which a later sweep drops."""
    from psycopg2 import errors, sql  # noqa: PLC0415

    cursor.execute("SET LOCAL lock_timeout = '1s'")
    for table in tables:
        cursor.execute("SAVEPOINT drop_one")
        try:
            cursor.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, table)))
        except errors.LockNotAvailable:
            cursor.execute("ROLLBACK TO SAVEPOINT drop_one")


def comment_of(attempt: OutputAttempt) -> dict[str, Any]:
    """Return what the comment on an attempt's staging tables says."""
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
