"""Name the triggers that write events, and find those that are missing: without one, listeners would miss changes.

Migrations make them. This module changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The triggers that call `record_event`, by table.
EVENT_TRIGGERS: Mapping[str, Sequence[str]] = {
    "batch_attempts": ("replay_begins", "replay_changes"),
    "batches": ("batch_begins", "batch_changes"),
    "cleanup_events": ("cleanup_happens",),
    "leadership": ("leader_changes",),
    "output_commits": ("output_begins", "output_changes"),
    "pipelines": ("pipeline_begins", "pipeline_changes"),
    "receiver_events": ("receiver_reports",),
    "receivers": ("receiver_changes",),
}


def missing_triggers(connection: sa.Connection) -> list[str]:
    """Return the triggers, as TABLE.TRIGGER, that are not in the database or are disabled. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT c.relname || '.' || t.tgname
                FROM pg_trigger t
                JOIN pg_class c ON c.oid = t.tgrelid
                JOIN pg_proc p ON p.oid = t.tgfoid
                WHERE c.relnamespace = CAST('forebay' AS regnamespace)
                  AND p.pronamespace = c.relnamespace
                  AND p.proname = 'record_event'
                  AND t.tgenabled IN ('O', 'A')
            """)
        ).scalars()
        present = set(rows)
    expected = [f"{table}.{trigger}" for table, triggers in EVENT_TRIGGERS.items() for trigger in triggers]
    return [name for name in expected if name not in present]
