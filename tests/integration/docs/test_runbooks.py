"""Check that each runbook has all its parts, and that each of its commands and statements is run by a test.

tests/runbook_states.py makes the state that a page is about; where a procedure is tested, the page has its own test.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.tracker.metrics import FOREBAY, STREAMING_SOURCE
from tests.driver_log import make_log
from tests.runbook_page import HEADINGS, RUNBOOKS, blocks, page, sections
from tests.runbook_states import STATES
from tracker_store.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

TESTS = Path(__file__).parents[2]
PAGES = sorted(path.stem for path in RUNBOOKS.glob("*.md"))
#: Pages whose state is made of more than rows, each with the test that brings a system into it and runs the page there.
PROCEDURES = {
    "postgres-failover": TESTS / "faults" / "test_postgres_away.py",
    "restore": TESTS / "integration" / "docs" / "test_restore_page.py",
    "upgrade": TESTS / "integration" / "docs" / "test_upgrade_page.py",
}
METRICS = FOREBAY.keys() | {f"streaming_{name}" for name in STREAMING_SOURCE} | {"up"}
_FENCE = re.compile(r"^ *```(\w+)(.*)$", re.MULTILINE)


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_has_every_part(stem: str) -> None:
    assert list(sections(stem)) == HEADINGS


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_says_how_to_see_it_by_sql_page_alert_and_metric(stem: str) -> None:
    parts = sections(stem)
    seen = parts["Symptom"] + parts["How to see it"]
    words = " ".join(seen.split())
    assert blocks(parts["How to see it"], "sql")
    assert "[status page](../how-to/status-page.md)" in words
    assert re.search(r"`Forebay[A-Z]\w+`|[Nn]o alert\b", words)
    assert METRICS & set(re.findall(r"`(\w+)`", words)) or re.search(r"[Nn]o metric\b", words)
    named = set(re.findall(r"`((?:forebay|streaming)_[a-z]\w+)`", page(stem)))
    assert named - {"forebay_receiver", "forebay_driver", "forebay_reader"} <= METRICS


@pytest.mark.parametrize("stem", PAGES)
def test_every_command_and_statement_is_run_by_a_test(stem: str) -> None:
    for language, words in _FENCE.findall(page(stem)):
        assert language not in ("sql", "sh") or words == " runnable"
    if stem in PROCEDURES:
        assert f'"{stem}"' in PROCEDURES[stem].read_text(encoding="utf-8")
    else:
        assert stem in STATES


@pytest.mark.parametrize("stem", PROCEDURES)
def test_the_statements_of_a_procedure_run_on_any_driver_log(engine: sa.Engine, stem: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
        for statement in blocks(page(stem), "sql"):
            connection.exec_driver_sql(statement.replace("%", "%%"))
