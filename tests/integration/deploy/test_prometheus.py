"""Run a real Prometheus on a real tracker's /metrics: promtool's tests, each alert's expression, each panel's query."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from orchestration.tracker.http.http import TrackerHttpServer, TrackerView
from orchestration.tracker.http.listen_address import ListenAddress
from tests.support.commands.run_program import run_program
from tests.support.driver_log.eventful_log import make_eventful_log
from tests.support.polling import eventually
from tests.support.servers.prometheus import ALERTS, DASHBOARD, ask, has_scraped, has_series, prometheus, queries
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import read_leadership
from tracker_store.receivers.processes import live_processes
from tracker_store.receivers.rates import set_rate_limits

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

pytestmark = pytest.mark.deploy


def test_promtool_accepts_the_rules_and_passes_their_tests() -> None:
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = run_program(["promtool", *arguments], cwd=ALERTS.parent)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_query_and_alert_works_on_a_trackers_metrics(engine: sa.Engine, tmp_path: Path) -> None:
    with connect(engine) as connection:
        made = make_eventful_log(connection)
        term = read_leadership(connection).term
        assert set_rate_limits(connection, term=term, rates={made.first: 100.0}) == "set"
        ages = {process.process_id: 1.5 for process in live_processes(connection)}
    view = TrackerView("h1:100", lambda: term, lambda: ages)
    with TrackerHttpServer(engine, view, ListenAddress("127.0.0.1", 0), address_file=tmp_path / "url") as server:
        eventually(lambda: server.url, "the tracker's address")
        assert server.url is not None
        with prometheus(server.url, tmp_path) as url:
            eventually(lambda: has_scraped(url), "three scrapes")
            assert [found for found in queries() if not has_series(url, *found[1:])] == []
            for variable in DASHBOARD["templating"]["list"]:
                if variable["type"] == "query":
                    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
                    assert found is not None
                    series = ask(url, "series", **{"match[]": found[1]})
                    assert {"words", "lines"} & {each[found[2]] for each in series}
            rules = ask(url, "rules")["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} == {"ok"}
            states = {rule["name"]: rule["state"] for rule in rules}
            # The second receiver is FAILED, which becomes an alert after two minutes, and blocks wait for months.
            assert states["ForebayReceiverDown"] == "pending"
            assert states["ForebayRecordsWait"] == "pending"
            assert states["ForebayNobodyLeads"] == "inactive"
