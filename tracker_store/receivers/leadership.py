"""Read and write the `leadership` row: which tracker leads, in which term.

Authority: only the row. The leader raises the counter every second; a candidate that has seen (term, counter) unchanged
for the limit *on its own monotonic clock* takes term + 1 by compare-and-set on what it saw. Clocks of two machines are
never compared. A leader trusts its term only in statements that lock this row FOR SHARE and name the term
(``LED``, and the function ``leads``): what a deposed leader still sends changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import DriverLogError

# Goes before a statement of the leader that is not a function: it locks the row if the row has this term; otherwise
# `led` is empty. A null term matches any: callers that are not the leader pass it. The row is locked before anything is
# changed, and a function that is called after that has a fresh snapshot.
LED = """
    WITH led AS MATERIALIZED (
        SELECT
        FROM forebay.leadership
        WHERE term = CAST(:term AS bigint) OR CAST(:term AS bigint) IS NULL
        FOR SHARE
    )
"""


class DeposedError(DriverLogError):
    """Another tracker leads now: nothing to do, what this one still decides changes nothing."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Hold the row of the leadership as read."""

    term: int
    counter: int
    holder: str | None


def read_leadership(connection: sa.Connection) -> Leadership:
    """Return the row as it is. No locks."""
    with named_failures():
        row = connection.execute(sa.text("SELECT term, counter, holder FROM forebay.leadership")).one()
    return Leadership(row.term, row.counter, row.holder)


def take_leadership(connection: sa.Connection, *, seen: Leadership, holder: str) -> int | None:
    """Take the next term if the row still equals `seen`; returns the term, or None. Locks: the row."""
    with named_failures():
        term: int | None = connection.execute(
            sa.text("""
                UPDATE forebay.leadership
                SET term = term + 1, counter = counter + 1, holder = :holder, since = clock_timestamp()
                WHERE term = :term AND counter = :counter
                RETURNING term
            """),
            {"term": seen.term, "counter": seen.counter, "holder": holder},
        ).scalar()
    return term


def raise_counter(connection: sa.Connection, *, term: int) -> bool:
    """Show that the leader of `term` lives; returns False if it no longer leads. Locks: the row."""
    with named_failures():
        result = connection.execute(
            sa.text("UPDATE forebay.leadership SET counter = counter + 1 WHERE term = :term RETURNING term"),
            {"term": term},
        ).scalar()
    return result is not None


def holder_name(host: str, pid: int) -> str:
    """Return the holder name of a tracker in the process `pid` of `host` (this machine's own name)."""
    return f"{host}:{pid}"


def end_leadership_of(connection: sa.Connection, holder: str) -> bool:
    """End the term of a tracker whose process has ended; its parent calls this after it saw the process end.

    Returns whether it led. Locks: the row.
    """
    with named_failures():
        return (
            connection.execute(
                sa.text("UPDATE forebay.leadership SET holder = NULL, counter = counter + 1 WHERE holder = :holder"),
                {"holder": holder},
            ).rowcount
            > 0
        )


def resign(connection: sa.Connection, *, term: int) -> None:
    """Give up the term at a clean stop, so that the next leader need not wait. Locks: the row."""
    with named_failures():
        connection.execute(
            sa.text("UPDATE forebay.leadership SET holder = NULL, counter = counter + 1 WHERE term = :term"),
            {"term": term},
        )
