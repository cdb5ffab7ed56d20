"""Read the counters of what the tracker looks at (``functions/events/note_change.sql``). This module decides nothing.

Triggers move a counter with each change, so that a tracker that sees it unmoved need not read the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures


@dataclass(frozen=True, slots=True)
class Changes:
    """Hold the counters as read, and the transactions that may have moved them and are not committed.

    `placement` moves with declarations, receivers, agents, hand-overs and requests; `batches` when a batch completes.
    A transaction that has moved one by now has an id below `first_unstarted`; those below `oldest_open` have ended.
    """

    placement: int
    batches: int
    oldest_open: int
    first_unstarted: int


def read_changes(connection: sa.Connection) -> Changes:
    """Return the counters. No locks; reads two rows, whatever there is."""
    with named_failures():
        row = connection.execute(
            sa.text("SELECT placement, batches, oldest_open, first_unstarted FROM forebay.read_changes()")
        ).one()
    return Changes(*row)
