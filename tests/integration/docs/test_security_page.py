"""Run the commands and the statement of docs/security.md."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.commands.run_program import run_program
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(one) for one in found]


@pytest.mark.parametrize("command", blocks("sh runnable"))
def test_a_command(environment: dict[str, str], tmp_path: Path, command: str) -> None:
    done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
    if command == "forebay doctor\n":
        # The tests' own server has no fsync, which is what doctor must find, and all that it may.
        shown = run_program(["forebay", "doctor", "--json"], env=environment, cwd=tmp_path)
        failed = [found["check"] for found in json.loads(shown.stdout)["findings"] if found["health"] == "failed"]
        assert (done.returncode, failed) == (1, ["commits"]), done.stdout
    else:
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_statement_says_which_connections_are_encrypted(engine: sa.Engine) -> None:
    [statement] = blocks("sql")
    with connect(engine) as connection:
        rows = connection.exec_driver_sql(statement).all()
        own = connection.exec_driver_sql("SELECT current_setting('application_name'), current_user").one()
    assert [(row.application_name, row.usename) for row in rows if not row.ssl].count(tuple(own)) >= 1


def test_no_other_block_is_a_command_or_a_statement() -> None:
    languages = re.findall(r"^ *```(\S.*)$", PAGE, re.MULTILINE)
    assert sorted(set(languages)) == ["sh runnable", "sql", "text"]
