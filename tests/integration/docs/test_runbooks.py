"""Run every command and statement of the runbooks that is marked `runnable`, on a real driver log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.driver_log import make_log
from tests.runbook_states import STATES
from tracker_store.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa
    from _pytest.mark.structures import ParameterSet

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
# Commands of these runbooks are steps of one procedure, which test_restore_page.py runs in their order, or belong to a
# state, in which test_runbook_states.py runs them.
_PROCEDURES = {"restore", *STATES}
_BLOCK = re.compile(r"^```(?P<language>\w+)(?P<runnable> runnable)?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> list[ParameterSet]:
    """Return each block of this language, named by its runbook and first words."""
    return [
        pytest.param(block["text"], id=f"{runbook.stem}: {block['text'][:30].strip()}")
        for runbook in sorted(RUNBOOKS.glob("*.md"))
        for block in _BLOCK.finditer(runbook.read_text(encoding="utf-8"))
        if block["language"] == language and block["runnable"]
        if language == "sql" or runbook.stem not in _PROCEDURES
    ]


def test_every_command_and_statement_is_marked_runnable() -> None:
    for runbook in RUNBOOKS.glob("*.md"):
        for block in _BLOCK.finditer(runbook.read_text(encoding="utf-8")):
            assert block["runnable"] or block["language"] not in ("sql", "sh"), f"{runbook.name}: {block['text']}"


@pytest.mark.parametrize("statement", blocks("sql"))
def test_a_statement(engine: sa.Engine, statement: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
        connection.exec_driver_sql(statement.replace("%", "%%"))


@pytest.mark.parametrize("command", blocks("sh"))
def test_a_command(engine: sa.Engine, database_url: str, tmp_path: Path, command: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
    environment = {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    # Allow more time on a loaded machine.
    command = command.replace("forebay status", "forebay status --within 60")
    done = subprocess.run(
        ["sh", "-euc", command], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
