"""Check deploy/prometheus and deploy/grafana by their text: names and labels are the program's, each page is there.

Prometheus itself checks them in tests/integration/deploy.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from orchestration.tracker.http.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
RULES = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((DEPLOY / "grafana" / "forebay.json").read_text(encoding="utf-8"))
LABELS = {name: set(labels) for name, (_, labels, _) in METRICS.items()}
# Prometheus writes it, for each target.
LABELS["up"] = {"job", "instance"}
_NAME = re.compile(r"\b(?:streaming|forebay)_\w+|\bup\b")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield each expression of the alerts and of the dashboard, with its name."""
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("name", "expression"), list(expressions()))
def test_metrics_and_labels_exist(name: str, expression: str) -> None:
    metrics = set(_NAME.findall(expression))
    assert metrics, name
    assert metrics <= LABELS.keys()
    used = {label for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(", ")}
    used |= set(re.findall(r"[{,](\w+)[=!]~?\"", expression))
    for metric in metrics:
        assert used <= LABELS[metric]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_names_its_runbook_and_the_runbook_names_its_alert(rule: dict[str, Any]) -> None:
    annotations = rule["annotations"]
    page = ROOT / annotations["runbook"]
    assert page.parent == ROOT / "docs" / "runbooks"
    assert f"`{rule['alert']}`" in page.read_text(encoding="utf-8")
    assert set(re.findall(r"\$labels\.(\w+)", annotations["summary"])) <= {
        label for metric in _NAME.findall(rule["expr"]) for label in LABELS[metric]
    }


def test_a_readers_runbook_has_the_limit_of_its_alert() -> None:
    [rule] = [rule for rule in RULES if rule["alert"] == "ForebayReaderHoldsBack"]
    limit = rule["expr"].rpartition(" > ")[2]
    page = (ROOT / rule["annotations"]["runbook"]).read_text(encoding="utf-8")
    assert f"waiting_bytes > {limit} " in page


def test_runbooks_name_alerts_that_exist() -> None:
    known = {rule["alert"] for rule in RULES}
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        assert set(re.findall(r"`(Forebay[A-Z]\w+)`", page.read_text(encoding="utf-8"))) <= known, page


def test_every_alert_is_tested_when_it_fires_and_when_it_is_quiet() -> None:
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts.test.yml").read_text(encoding="utf-8"))["tests"]
    tested = [(case["alertname"], bool(case["exp_alerts"])) for test in tests for case in test["alert_rule_test"]]
    assert sorted(tested) == sorted((rule["alert"], fires) for rule in RULES for fires in (True, False))


def test_the_page_on_monitoring_lists_every_alert_with_its_page() -> None:
    page = (ROOT / "docs" / "how-to" / "monitoring.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(Forebay\w+)` \| \w+ \| .+ \| \[.+\]\(\.\./(.+)\) \|$", page, re.MULTILINE)
    expected = {rule["alert"]: rule["annotations"]["runbook"].removeprefix("docs/") for rule in RULES}
    assert dict(rows) == expected
    assert len(rows) == len(RULES)


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
