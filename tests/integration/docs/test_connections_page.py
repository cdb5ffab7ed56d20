"""Count the connections of a host's processes, and compare them with docs/reference/connections.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.receiver_runtime.host_rig import host_rig

_PAGE = Path(__file__).parents[3] / "docs" / "reference" / "connections.md"
RECEIVERS = 17
PROCESSES = 9


def most(process: str) -> int:
    """Return the last number in the row of a process."""
    [number] = re.findall(rf"^\| {process} \|.*\| (\d+) \|$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return int(number)


@pytest.mark.slow
def test_a_host_of_seventeen_receivers_has_nine_processes_and_no_more_connections_than_documented(
    database_url: str, tmp_path: Path
) -> None:
    with host_rig(database_url, tmp_path, receivers=RECEIVERS, receivers_per_process=None) as (rig, sources):
        rig.place(*sources)
        rig.flow(list(sources))
        assert len(rig.processes()) == PROCESSES
        found: Counter[str] = Counter()
        for _ in range(20):
            rows = rig.execute(
                "SELECT application_name, count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name LIKE 'forebay receiver%' GROUP BY 1"
            )
            found |= Counter(dict(map(tuple, rows)))
            rig.flow(list(sources)[:1], records=5)
    assert len(found) == PROCESSES
    assert max(found.values()) <= most("receiver process"), found
