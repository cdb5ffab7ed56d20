"""A real Prometheus that scrapes a tracker, and the queries of deploy/: alerts.yml and the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.machine.held_ports import held_port

if TYPE_CHECKING:
    from collections.abc import Iterator

DEPLOY = Path(__file__).parents[3] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana" / "forebay.json").read_text(encoding="utf-8"))
_SCRAPES = 3


def ask(url: str, path: str, **parameters: str) -> Any:  # noqa: ANN401  JSON
    """Ask Prometheus' API; return the data of its answer."""
    query = f"{url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(query, timeout=20) as answer:
        return json.load(answer)["data"]


@contextmanager
def prometheus(tracker: str, directory: Path) -> Iterator[str]:
    """Start a Prometheus that scrapes the tracker each second and evaluates the alerts; give its address."""
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


def has_scraped(url: str) -> bool:
    """Return whether there are enough scrapes for a rate, and each alert was evaluated."""
    try:
        counted = ask(url, "query", query="count_over_time(forebay_stream_records_per_second[1m])")["result"]
        evaluated = all(rule["health"] == "ok" for rule in ask(url, "rules")["groups"][0]["rules"])
    except OSError:
        return False
    return evaluated and bool(counted) and float(counted[0]["value"][1]) >= _SCRAPES


def queries() -> Iterator[tuple[str, str, str]]:
    """Yield each query of the dashboard, with its panel's title and its legend."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"], target["legendFormat"]


def has_series(url: str, expression: str, legend: str) -> bool:
    """Return whether a panel's query has a series with every label of its legend."""
    for name, value in (("$pipeline", ".*"), ("$stream", ".*"), ("$__rate_interval", "1m"), ("$__range", "1h")):
        expression = expression.replace(name, value)
    result = ask(url, "query", query=expression)["result"]
    return bool(result) and all(set(re.findall(r"\{\{(\w+)\}\}", legend)) <= each["metric"].keys() for each in result)
