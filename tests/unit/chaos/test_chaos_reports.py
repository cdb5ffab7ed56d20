"""Check what a run of `make chaos` leaves behind: its report, and the tables made from reports."""

from __future__ import annotations

import json

from tests.chaos.chaos_run import Done, Report
from tests.chaos.faults import Injected
from tests.chaos.oracle import Violation
from tests.chaos.results import tables
from tests.chaos.schedule import Planned


def report() -> Report:
    found = Report(seed=3, layout="two", replicas=2, minutes=10)
    for kind, skipped in (("kill-agent", False), ("kill-agent", False), ("kill-run", True)):
        found.done.append(Done(Planned(0, 1.0, kind, 0.0, 0.5), "a process", 10.0, skipped=skipped))
    found.violations.append((1, Violation("missing", "seen: 1 acknowledged records of http: 4")))
    found.calms.append(12.3)
    found.records["http"] = {"sent": 1200, "acknowledged": 1200, "seen": 1199}
    found.status = {"median_seconds": 0.7, "longest_seconds": 2.0, "load_per_core": 0.9}
    found.longest_answers = {"kill-agent": 2.0, "none": 0.9}
    return found


def test_a_report_is_json_with_faults_by_kind_and_violations() -> None:
    plain = json.loads(json.dumps(report().json()))
    assert plain["faults"] == {"kill-agent": {"injected": 2, "named": 0}, "kill-run": {"skipped": 1, "named": 0}}
    assert plain["violations"] == [{"round": 1, "kind": "missing", "text": "seen: 1 acknowledged records of http: 4"}]
    assert [each["kind"] for each in plain["timeline"]] == ["kill-agent", "kill-agent", "kill-run"]


def test_reports_become_a_table_of_runs_and_a_table_of_faults() -> None:
    lines = tables([report().json(), report().json() | {"seed": 4, "layout": "one", "violations": []}]).splitlines()
    assert lines[2] == "| 3 | two | 2 | 10 | 2 | 0 | 1,200 | 1 missing | 12 s | 0.7 s, 2.0 s | 0.9 |"
    assert lines[3] == "| 4 | one | 2 | 10 | 2 | 0 | 1,200 | none | 12 s | 0.7 s, 2.0 s | 0.9 |"
    assert lines[5:] == [
        "| fault | layout one | layout two | longest answer of `status` |",
        "|---|---|---|---|",
        "| `kill-agent` | 2 | 2 | 2.0 s |",
        "| `kill-run` |  |  |  |",
    ]


def test_a_fault_is_healed_once() -> None:
    healed: list[str] = []
    injected = Injected("a process", lambda: healed.append("healed"))
    injected.heal()
    injected.heal()
    assert healed == ["healed"]
