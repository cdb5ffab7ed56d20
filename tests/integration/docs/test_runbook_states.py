"""Run runbooks in the states that they are about (tests/support/pages/runbook_states.py), and check their cures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.driver_log.log import wait_until_told
from tests.support.pages.runbook import (
    HEADINGS,
    blocks,
    commands_in,
    page,
    page_environment,
    run_commands,
    runnable,
    sections,
)
from tests.support.pages.runbook_states import CURES, LEFT_BY, MODULE, MODULES, STATES, make_healthy_log
from tracker_store.batches.pipeline_states import advance_stops, stop_pipelines
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import read_leadership
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    import sqlalchemy as sa

LAST = HEADINGS[-1]
#: Pages whose first statement has rows in a healthy log: who reads a stream is no fault.
_NO_FAULT = {"remove-a-stream"}
#: Pages whose first statement shows what has happened, which stays after the cure.
_HISTORY = {"batch-driver-dies", "host-lost", "positions-lost", "receiver-killed", "store-not-mounted"}
#: Pages that say that every statement of "How to see it" returns no row after the cure.
_ALL_EMPTY = {"lag-grows"}
#: Pages that say what the first statement of their last section returns after the cure: rows, or none.
_CURED_HAS_ROWS = {
    "batch-driver-dies": True,
    "host-lost": False,
    "positions-lost": False,
    "receiver-killed": False,
    "remove-a-stream": False,
}
#: Pages with a command that starts Spark, which takes 10 s of processor time for one page.
_SLOW = {"block-corrupt"}
#: What the commands of a page print in its state.
SAID = {
    "batch-driver-dies": ["java"],
    "batch-failed": ["CAST_INVALID_INPUT", "block store"],
    "block-corrupt": ["1 registered blocks that can't be read", "lines/1 block 3: 1 records"],
    "disk-full": ["No space left on device"],
    "host-lost": ["Nothing to move"],
    "lag-grows": ["words"],
    "move-a-stream": ["h1"],
    "no-leader": ["No tracker leads"],
    "pipeline-stale": ["words"],
    "postgres-away": ["the driver log does not register blocks"],
    "reader-holds-back": ["Reader dashboard is removed"],
    "receiver-failed": ["connection refused by 127.0.0.1:9999"],
    "receiver-killed": ["1 segments of receiver 2 of stream 'lines' were never sealed"],
    "remove-a-stream": ["lines is removed, with 1 receiver(s)"],
    "source-ahead": ["lines/1 is"],
    "stop-and-start": ["words"],
    "store-not-mounted": ["is the store directory-1 now"],
}


def _count(connection: sa.Connection, statement: str) -> int:
    """Run a statement of a page; return its number of rows. The states are of another day than the pages' examples."""
    statement = statement.replace("2026-01-31", "2026-01-01").replace("%", "%%")
    done = connection.exec_driver_sql(statement)
    return len(done.all()) if done.returns_rows else 0


@pytest.mark.parametrize("stem", [pytest.param(stem, marks=[pytest.mark.slow] * (stem in _SLOW)) for stem in STATES])
def test_a_page_shows_its_state_and_its_commands_cure_it(
    engine: sa.Engine, database_url: str, tmp_path: Path, stem: str
) -> None:
    parts = sections(stem)
    first, *others = blocks(parts["How to see it"], "sql")
    cured = blocks(parts[LAST], "sql")[0] if stem in _CURED_HAS_ROWS else None
    (tmp_path / "dagster").mkdir()
    (tmp_path / "declared.py").write_text(MODULES.get(stem, MODULE), encoding="utf-8")
    left = [LEFT_BY[command] for command in sorted(commands_in("\n".join(blocks(page(stem), "sh"))) & LEFT_BY.keys())]
    with connect(engine) as connection:
        log = make_healthy_log(connection)
        if stem not in _NO_FAULT:
            assert _count(connection, first) == 0, "it has rows in a healthy log"
        STATES[stem](connection, log, tmp_path)
        wait_until_told(connection)
        for statement in (first, *others):
            assert _count(connection, statement) > 0, statement
        if cured is not None:
            assert (_count(connection, cured) > 0) != _CURED_HAS_ROWS[stem], "it says so before the cure"
        for statement in left:
            assert _count(connection, statement) == 0, statement
        environment = _environment(database_url, tmp_path)
        said = "".join(_run(connection, parts[part], environment, tmp_path) for part in HEADINGS if part != LAST)
        if stem in CURES:
            CURES[stem](connection, log, tmp_path)
        said += _run(connection, parts[LAST], environment, tmp_path)
        for words in SAID.get(stem, []):
            assert words in " ".join(said.split())
        for statement in left:
            assert _count(connection, statement) > 0, statement
        for statement in (first, *others) if stem in _ALL_EMPTY else (first,):
            assert _count(connection, statement) == 0 or stem in _HISTORY, "it has rows after the cure"
        if cured is not None:
            assert (_count(connection, cured) > 0) == _CURED_HAS_ROWS[stem], cured


def test_a_receiver_starts_with_its_stopped_pipelines(
    connection: sa.Connection, database_url: str, tmp_path: Path
) -> None:
    [command] = [block for block in blocks(sections("receiver-failed")["Cure"], "sh") if block == "forebay start\n"]
    STATES["receiver-failed"](connection, make_healthy_log(connection), tmp_path)
    stop_pipelines(connection)
    term = read_leadership(connection).term
    advance_stops(connection, term=term)
    assert {placed.desired_state for placed in placements(connection)} == {DesiredState.STOPPED}
    run_commands(command, _environment(database_url, tmp_path), tmp_path)
    advance_stops(connection, term=term)
    assert {placed.desired_state for placed in placements(connection)} == {DesiredState.RUNNING}


def _run(connection: sa.Connection, text: str, environment: dict[str, str], directory: Path) -> str:
    """Run the statements and commands of a section in their order; return what the commands print."""
    said = ""
    for language, block in runnable(text):
        if language == "sql":
            _count(connection, block)
        else:
            said += run_commands(block, environment, directory)
    return said


def _environment(database_url: str, home: Path) -> dict[str, str]:
    """Return what the commands of a page run with, also the variables that pages name."""
    segment = next((home / "blocks").rglob("*.segment"), None)
    variables = {"COPY": home / "copy.segment", "SEGMENT": segment, "DAGSTER_HOME": home / "dagster"}
    return page_environment(database_url, home, **{name: str(value) for name, value in variables.items()})


def test_every_page_says_how_its_cure_is_checked() -> None:
    assert STATES.keys() >= CURES.keys() | _CURED_HAS_ROWS.keys() | _HISTORY
    # The cure of a store is what `forebay blocks adopt` says.
    assert _HISTORY - _CURED_HAS_ROWS.keys() == {"store-not-mounted"}


def test_the_check_of_the_daemon_fails_where_none_runs(tmp_path: Path) -> None:
    [command] = blocks(sections("dagster-daemon-down")["How to see it"], "sh")
    assert command.endswith(" || true\n")
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["sh", "-euc", command.removesuffix(" || true\n")],
        env=environment,
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode != 0
