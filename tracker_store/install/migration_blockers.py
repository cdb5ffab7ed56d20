"""Watch which sessions block a migration, so that an error can name them.

Owns one thread with a connection of its own, because the session that waits can't ask. It only reads, and must never
end or cancel a session: which of them may be ended is a person's decision.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from types import TracebackType

# Seconds between two looks: several within the shortest wait of a migration for a lock.
_POLL_SECONDS = 0.25
_MOST_NAMED = 5
_MOST_QUERY = 120

# Another session that waits in the same queue counts as a blocker too; `pg_blocking_pids` takes a short lock of the
# lock manager, and locks no table.
_BLOCKERS = sa.text("""
    SELECT a.pid, coalesce(a.usename, '') AS login, coalesce(a.application_name, '') AS program,
        coalesce(a.state, 'a prepared transaction') AS state,
        round(extract(epoch FROM clock_timestamp() - a.xact_start)) AS seconds, coalesce(a.query, '') AS query
    FROM unnest(pg_blocking_pids(:waiting)) AS b(pid)
    LEFT JOIN pg_stat_activity a ON a.pid = b.pid
    ORDER BY a.xact_start
""")


class MigrationBlockers:
    """Watch a session that may wait, and keep the sessions that blocked it when it was last seen waiting."""

    def __init__(self, engine: sa.Engine, waiting: int) -> None:
        """Take the engine for the looks, and the process id of the session that may wait."""
        self._engine = engine
        self._waiting = waiting
        self._stop = threading.Event()
        self._seen: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._run, name="migration blockers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def seen(self) -> tuple[str, ...]:
        """Return the blockers for people, oldest transaction first; empty if none was seen."""
        return self._seen

    def _run(self) -> None:
        while not self._stop.is_set():
            # Without a further connection the migration goes on all the same; its error then names no session.
            with suppress(SQLAlchemyError), self._engine.connect() as connection:
                self._look(connection)
            self._stop.wait(_POLL_SECONDS)

    def _look(self, connection: sa.Connection) -> None:
        while not self._stop.is_set():
            rows = connection.execute(_BLOCKERS, {"waiting": self._waiting}).all()
            connection.rollback()
            if rows:
                self._seen = tuple(_named(row) for row in rows[:_MOST_NAMED])
            self._stop.wait(_POLL_SECONDS)


def _named(row: sa.Row[tuple[object, ...]]) -> str:
    pid, login, program, state, seconds, query = row
    said = " ".join(str(query).split())
    shown = said if len(said) <= _MOST_QUERY else f"{said[:_MOST_QUERY]} …"
    return f"pid {pid} ({login}, {program or 'no name'}, {state}, in its transaction for {seconds} s): {shown}"
