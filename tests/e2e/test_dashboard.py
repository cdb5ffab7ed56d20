"""Run each query of the Grafana dashboard, and each alert, on the metrics of a running system."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.polling import eventually
from tests.support.servers.prometheus import ask, has_scraped, has_series, prometheus, queries
from tracker_store.batches.readers import attach_reader, remove_reader
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# No pipeline here has backpressure, so no receiver has a limit; and no socket says what it has that is not read.
_WITHOUT_SERIES = ("forebay_receiver_rate_limit", "forebay_receiver_source_lag_seconds", "forebay_stream_unread")


def test_each_query_has_series_and_a_healthy_system_alerts_nobody(system: RunningSystem, tmp_path: Path) -> None:
    tracker = (system.home / "run" / "tracker.url").read_text(encoding="utf-8").strip()
    with connect(system.engine) as connection:
        attach_reader(connection, name="dashboard", stream="numbers")
    try:
        with prometheus(tracker, tmp_path) as url:
            eventually(lambda: has_scraped(url), "three scrapes", seconds=60)
            empty = [expression for _, expression, legend in queries() if not has_series(url, expression, legend)]
            assert [one for one in empty if not any(metric in one for metric in _WITHOUT_SERIES)] == []
            rules = ask(url, "rules")["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} == {"ok"}
            # Its batch was quarantined before the first scrape.
            assert {rule["name"] for rule in rules if rule["state"] != "inactive"} == set()
    finally:
        with connect(system.engine) as connection:
            remove_reader(connection, "dashboard")
