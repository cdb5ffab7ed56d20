"""Run a real Prometheus on a real tracker's /metrics: promtool's tests, each alert's expression, each panel's query."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orchestration.tracker.http import TrackerHttpServer, TrackerView
from orchestration.tracker.listen_address import ListenAddress
from tests.eventful_log import make_eventful_log
from tests.held_ports import held_port
from tests.polling import eventually
from tracker_store.engine import connect
from tracker_store.leadership import read_leadership
from tracker_store.processes import live_processes
from tracker_store.rates import set_rate_limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

pytestmark = pytest.mark.deploy

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "forebay.json").read_text(encoding="utf-8"))


def test_promtool_accepts_the_rules_and_passes_their_tests() -> None:
    for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts.test.yml"]):
        done = subprocess.run(["promtool", *arguments], cwd=ALERTS.parent, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _ask(url: str, path: str, **parameters: str) -> Any:  # noqa: ANN401  JSON
    query = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(query, timeout=20) as answer:
        return json.load(answer)["data"]


@contextmanager
def _prometheus(tracker: str, directory: Path) -> Iterator[str]:
    """Start a Prometheus that scrapes the tracker each second and evaluates the alerts."""
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(ALERTS)],
        "scrape_configs": [
            {"job_name": "forebay", "static_configs": [{"targets": [tracker.removeprefix("http://").rstrip("/")]}]}
        ],
    }
    (directory / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")
    with held_port() as port, (directory / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(30)


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
        with _prometheus(server.url, tmp_path) as url:
            eventually(lambda: _answers(url), "three scrapes")
            empty = [
                f"{panel['title']}: {target['expr']}"
                for panel in DASHBOARD["panels"]
                for target in panel.get("targets", [])
                if not _has_series(url, target["expr"], target["legendFormat"])
            ]
            assert empty == []
            for variable in DASHBOARD["templating"]["list"]:
                if variable["type"] == "query":
                    found = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"])
                    assert found is not None
                    series = _ask(url, "series", **{"match[]": found[1]})
                    assert {"words", "lines"} & {each[found[2]] for each in series}
            rules = _ask(url, "rules")["groups"][0]["rules"]
            assert {rule["health"] for rule in rules} == {"ok"}
            states = {rule["name"]: rule["state"] for rule in rules}
            # The second receiver is FAILED, which becomes an alert after two minutes, and blocks wait for months.
            assert states["ForebayReceiverDown"] == "pending"
            assert states["ForebayRecordsWait"] == "pending"
            assert states["ForebayNobodyLeads"] == "inactive"


def _answers(url: str) -> bool:
    try:
        counted = _ask(url, "query", query="count_over_time(forebay_stream_records_per_second[1m])")["result"]
        evaluated = all(rule["health"] == "ok" for rule in _ask(url, "rules")["groups"][0]["rules"])
    except OSError:
        return False
    return evaluated and bool(counted) and float(counted[0]["value"][1]) >= 3


def _has_series(url: str, expression: str, legend: str) -> bool:
    """Return whether a panel's query has a series with every label of its legend."""
    for name, value in (("$pipeline", ".*"), ("$stream", ".*"), ("$__rate_interval", "1m"), ("$__range", "1h")):
        expression = expression.replace(name, value)
    result = _ask(url, "query", query=expression)["result"]
    return bool(result) and all(set(re.findall(r"\{\{(\w+)\}\}", legend)) <= each["metric"].keys() for each in result)
