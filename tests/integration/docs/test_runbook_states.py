"""Run the runbooks of tests/runbook_states.py in the very states that they are about."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.driver_log import wait_until_told
from tests.runbook_page import blocks, page, run_commands, sections
from tests.runbook_states import STATES, make_healthy_log
from tracker_store.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

DOCS = Path(__file__).parents[3] / "docs"
# Who reads a stream is no fault: this statement has no row only after the cure.
_AFTER_THE_CURE = {"remove-a-stream"}
#: What the commands of a page print in its state.
SAID = {
    "batch-driver-dies": "",
    "batch-failed": "CAST_INVALID_INPUT",
    "block-corrupt": "1 registered blocks that can't be read",
    "dagster-daemon-down": "",
    "dead-letters": "Dead letter 1: 2 record(s) of lines would go to 127.0.0.1:9999",
    "disk-full": "No space left on device",
    "host-lost": "Nothing to move",
    "lag-grows": "words",
    "move-a-stream": "h1",
    "no-leader": "No tracker leads",
    "pipeline-stale": "words",
    "postgres-away": "the driver log does not register blocks",
    "reader-holds-back": "Reader dashboard is removed",
    "receiver-failed": "connection refused by 127.0.0.1:9999",
    "receiver-killed": "",
    "remove-a-stream": "dashboard is removed",
    "stop-and-start": "words",
    "store-not-mounted": "h1",
    "store-read-only": "",
}


def _count(connection: sa.Connection, statement: str) -> int:
    """Run a statement of a page; return its number of rows. The states are of another day than the pages' examples."""
    statement = statement.replace("2026-01-31", "2026-01-01").replace("%", "%%")
    done = connection.exec_driver_sql(statement)
    return len(done.all()) if done.returns_rows else 0


@pytest.mark.parametrize("stem", STATES)
def test_a_page_shows_its_state_and_its_commands_run_in_it(
    engine: sa.Engine, database_url: str, tmp_path: Path, stem: str
) -> None:
    parts = sections(stem)
    statements = blocks(parts["How to see it"], "sql")
    environment = {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        "DAGSTER_HOME": str(tmp_path / "dagster"),
        "COLUMNS": "200",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    (tmp_path / "dagster").mkdir()
    with connect(engine) as connection:
        log = make_healthy_log(connection)
        if stem not in _AFTER_THE_CURE:
            assert _count(connection, statements[0]) == 0, "it has rows in a healthy log"
        STATES[stem](connection, log, tmp_path)
        wait_until_told(connection)
        for statement in statements:
            assert _count(connection, statement) > 0, statement
        for part in ("Cause", "Cure", "How to know that it is cured"):
            for statement in blocks(parts[part], "sql"):
                _count(connection, statement)
        said = ""
        for command in blocks(page(stem), "sh"):
            said += run_commands(command, environment, tmp_path)
        assert SAID.get(stem, "") in said
        if stem in _AFTER_THE_CURE:
            assert _count(connection, statements[0]) == 0, "it has rows after the cure"


def test_the_check_of_the_daemon_fails_where_none_runs(tmp_path: Path) -> None:
    [command] = blocks(sections("dagster-daemon-down")["How to see it"], "sh")
    assert command.endswith(" || true\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["sh", "-euc", command.removesuffix(" || true\n")], env=environment, capture_output=True, check=False
    )
    assert done.returncode != 0


def test_the_commands_of_a_days_replay_are_tested_with_the_page_on_replays() -> None:
    commands = set(re.findall(r"^ *(\$ forebay .*)$", page("replay-a-day"), re.MULTILINE))
    assert commands
    assert commands <= set(
        re.findall(r"^(\$ forebay .*)$", (DOCS / "how-to" / "replay.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
