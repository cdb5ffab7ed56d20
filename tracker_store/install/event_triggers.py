"""Name the triggers of the driver log, and find those that are missing.

Without one that writes events, listeners would miss changes; without one that keeps sums, the storage that people see
would be wrong; without one that checks ranges, a bug could allocate a block twice. Migrations make them.
This module changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

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
    "receivers": ("receiver_changes",),
}

#: The triggers that call `keep_storage_totals`, by table.
TOTAL_TRIGGERS: Mapping[str, Sequence[str]] = {
    "dead_letters": ("dead_letters_come", "dead_letters_go"),
    "log_segments": ("segments_change", "segments_come", "segments_go"),
}

#: The triggers that call `check_ranges`, by table.
RANGE_TRIGGERS: Mapping[str, Sequence[str]] = {"batch_allocations": ("ranges_change", "ranges_come")}


def missing_triggers(connection: sa.Connection, triggers: Mapping[str, Sequence[str]], *, function: str) -> list[str]:
    """Return the triggers, as TABLE.TRIGGER, that are not in the database, are disabled, or do not call the function.

    No locks.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT c.relname || '.' || t.tgname
                FROM pg_trigger t
                JOIN pg_class c ON c.oid = t.tgrelid
                JOIN pg_proc p ON p.oid = t.tgfoid
                WHERE c.relnamespace = CAST('forebay' AS regnamespace)
                  AND p.pronamespace = c.relnamespace
                  AND p.proname = :function
                  AND t.tgenabled IN ('O', 'A')
            """),
            {"function": function},
        ).scalars()
        present = set(rows)
    expected = [f"{table}.{trigger}" for table, names in triggers.items() for trigger in names]
    return [name for name in expected if name not in present]
