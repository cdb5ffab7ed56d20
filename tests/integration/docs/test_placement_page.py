"""Test docs/reference/placement.md: its settings are the program's, and its commands and statement run."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestration.declarations.settings import Settings
from orchestration.policies.scheduling_policy import MOST_SETTLES
from orchestration.tracker.rebalancing import OFFER_SECONDS
from receiver_runtime.sources.fields.units import parse_duration
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "placement.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language} runnable\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_settings_are_the_program_s() -> None:
    rows = dict(re.findall(r"^\| `FOREBAY_(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE))
    fields = {
        name: field.default
        for name, field in Settings.model_fields.items()
        if name.startswith(("placement_", "rebalance"))
    }
    assert {name.lower() for name in rows} == fields.keys()
    for name, default in fields.items():
        shown = rows[name.upper()].strip("`")
        if isinstance(default, timedelta):
            assert parse_duration(shown) == default.total_seconds()
        else:
            assert shown.startswith("unset" if default is None else str(default).lower())
    assert f"within {OFFER_SECONDS:g} s" in PAGE
    assert MOST_SETTLES == 6, "the page says so in words"


@pytest.mark.parametrize("command", blocks("sh"))
def test_a_command(engine: sa.Engine, database_url: str, tmp_path: Path, command: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")},
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        **programs(),
    }
    done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_statement(connection: sa.Connection) -> None:
    [statement] = blocks("sql")
    connection.execute(sa.text(statement))
