"""Hold the connections of a running system's processes against the table in docs/reference/connections.md."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tests.support.pages.connections import connections_table
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

SEEN = {"receiver process", "agent", "tracker", "batch driver", "attempt of a batch"}
"""The rows that each system has while it runs a batch; other processes come and go, or connect when they are asked."""
SESSIONS = sa.text(
    "SELECT application_name AS name, count(*) AS number FROM pg_stat_activity "
    "WHERE datname = current_database() AND backend_type = 'client backend' GROUP BY 1"
)


def test_no_process_has_more_connections_than_documented(system: RunningSystem) -> None:
    rows = connections_table()
    most: Counter[str] = Counter()
    for _ in range(3):
        seen: set[str] = set()
        system.receive(500)

        def each_was_seen(seen: set[str] = seen) -> bool:
            with connect(system.engine) as connection:
                found: Counter[str] = Counter({row.name: row.number for row in connection.execute(SESSIONS)})
            seen.update(found)
            most.update(found - most)
            return all(any(row.matches(name) for name in seen) for row in rows if row.process in SEEN)

        system.until("each process is connected", each_was_seen)
    # Quiet again, for the tests that follow; it never settles, because of the batch that was quarantined.
    system.source.pause()
    for name, number in most.items():
        row = next((row for row in rows if row.matches(name)), None)
        assert row is not None, f"add {name!r} to docs/reference/connections.md"
        assert row.most is None or number <= row.most, f"{name!r} has {number}; the row {row.process!r} says {row.most}"
