"""Check that ARCHITECTURE.md names every function that writes a state of the driver log, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
STORE = ROOT / "tracker_store"
#: The table of each machine of the driver log, as the page calls it.
TABLES = {
    "receiver": "receivers",
    "pipeline": "pipelines",
    "batch": "batches",
    "attempt": "batch_attempts",
    "segment": "log_segments",
    "batch driver": "batch_drivers",
    "replay forward": "state_replays",
}
_UPDATE = re.compile(
    r"\bUPDATE (?:forebay\.)?(?P<table>\w+)(?: (?:AS )?\w+)?\s+SET\b(?P<assignments>.*?)(?=\bWHERE\b|\bUPDATE\b|;|\Z)",
    re.DOTALL,
)
_STATE = re.compile(r"(?:^|,)\s*state\s*=")


def _tables_moved_by(sql: str) -> set[str]:
    return {found["table"] for found in _UPDATE.finditer(sql) if _STATE.search(found["assignments"])}


@cache
def _statements() -> list[tuple[str, str]]:
    """Return (function, SQL) for everything that `tracker_store` sends or installs."""
    found = [
        (file.stem, re.sub(r"--[^\n]*", "", file.read_text(encoding="utf-8")))
        for file in (STORE / "functions").rglob("*.sql")
    ]
    for file in STORE.rglob("*.py"):
        for function in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                found += [
                    (function.name, node.value)
                    for node in ast.walk(function)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                ]
    return found


def _named(machine: str) -> set[str]:
    [row] = re.findall(
        rf"^\| {machine} \([A-Z, ]+\) \| `[A-Z_]+`[^|]*\| ([^|]*) \|$",
        (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    return set(re.findall(r"`(\w+)`", row))


@pytest.mark.parametrize("machine", TABLES)
def test_the_page_names_exactly_the_functions_that_move_a_state(machine: str) -> None:
    assert {name for name, sql in _statements() if TABLES[machine] in _tables_moved_by(sql)} == _named(machine)


def test_no_statement_outside_tracker_store_moves_a_state() -> None:
    texts = [
        file.read_text(encoding="utf-8")
        for package in ("forebay", "forebay_contrib", "orchestration", "receiver_runtime")
        for file in (ROOT / package).rglob("*.py")
        # The conformance suite places receivers as the tracker does.
        if file.parent != ROOT / "forebay" / "testing"
    ]
    assert [text for text in texts if re.search(r"\bUPDATE forebay\.", text)] == []


@pytest.mark.parametrize(
    ("statement", "tables"),
    [
        ("UPDATE forebay.batches SET state = 'RUNNING', attempt = 1 WHERE true", {"batches"}),
        ("UPDATE receivers r SET reason = '', state = 'INACTIVE'", {"receivers"}),
        ("UPDATE receivers SET since = CASE WHEN state = 'FAILED' THEN since END WHERE state = 'FAILED'", set()),
        ("UPDATE receivers SET desired_state = 'stopped' WHERE id = 1", set()),
    ],
)
def test_a_statement_that_writes_a_state_is_distinguished_from_one_that_reads_it(
    statement: str, tables: set[str]
) -> None:
    assert _tables_moved_by(statement) == tables
