"""Read the server's settings that decide whether an answered commit outlives a crash and a failover.

It only reads: `forebay doctor` judges, and a person changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures


@dataclass(frozen=True, slots=True)
class CommitSettings:
    """Hold a session's own values of the settings. `synchronous_standby_names`: empty without a synchronous standby."""

    fsync: str
    full_page_writes: str
    synchronous_commit: str
    synchronous_standby_names: str


def commit_settings(connection: sa.Connection) -> CommitSettings:
    """Return the settings of this session. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes,
                    current_setting('synchronous_commit') AS synchronous_commit,
                    current_setting('synchronous_standby_names') AS synchronous_standby_names
            """)
        ).one()
    return CommitSettings(
        row.fsync, row.full_page_writes, row.synchronous_commit, row.synchronous_standby_names.strip()
    )
