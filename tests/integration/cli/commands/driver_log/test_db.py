"""Test `forebay db`: its output for an operator, and its exit codes."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands.driver_log import db
from forebay.cli.commands.driver_log.db import app
from forebay.cli.terminal.console import Console
from tests.support.driver_log.log import NOON, make_log
from tracker_store.connection.engine import connect
from tracker_store.install import migrate
from tracker_store.install.roles import ROLES
from tracker_store.reports.checks import DATA_CHECKS, SCHEMA_CHECKS, functions_are_the_files

if TYPE_CHECKING:
    from typer.testing import Result

REFERENCE = Path(__file__).parents[5] / "docs" / "reference" / "schema.md"


@pytest.fixture
def url(database_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")
    return database_url


def forebay_db(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_the_reference_is_generated_from_the_database(url: str) -> None:
    described = forebay_db("describe")
    assert described.exit_code == 0
    assert described.stdout == REFERENCE.read_text(encoding="utf-8"), (
        "the schema has changed: forebay db describe > docs/reference/schema.md"
    )


def test_the_reference_describes_everything() -> None:
    lines = REFERENCE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith("| `") and line.endswith("|  |")] == []
    headings = [number for number, line in enumerate(lines) if line.startswith("### ")]
    assert [lines[number] for number in headings if not lines[number + 2].strip()] == []


def test_an_intact_log_is_exit_code_0(url: str) -> None:
    checked = forebay_db("check")
    assert checked.exit_code == 0
    assert "without a gap" in checked.stdout
    assert "BROKEN" not in checked.stdout


def test_a_broken_promise_is_exit_code_1_and_named(url: str, engine: sa.Engine) -> None:
    with connect(engine) as connection:
        log = make_log(connection)
        log.add_at(log.receiver_ids[0], NOON, NOON)
        connection.execute(sa.text("DELETE FROM forebay.blocks WHERE sequence = 2"))
    checked = forebay_db("check")
    assert checked.exit_code == 1
    assert "BROKEN" in checked.stdout
    assert "receiver 1: 2..2 is missing" in checked.stdout
    as_json = forebay_db("check", "--json", "--pipeline", "words")
    assert as_json.exit_code == 1
    report = json.loads(as_json.stdout)
    assert (report["intact"], report["data_checked"]) == (False, True)
    [broken] = [check for check in report["checks"] if not check["passed"]]
    assert (broken["check"], broken["violations"]) == ("chains_are_gapless", 1)
    assert broken["offenders"] == ["receiver 1: 2..2 is missing"]


def test_the_checks_fit_80_columns_and_break_no_name(
    url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = forebay_db("check").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert {line[:8].strip() for line in lines} == {"ok", ""}
    with connect(engine) as connection:
        log = make_log(connection)
        log.add_at(log.receiver_ids[0], NOON, NOON)
        connection.execute(sa.text("DELETE FROM forebay.blocks WHERE sequence = 2"))
    lines = [line.strip() for line in forebay_db("check").stdout.splitlines()]
    assert "receiver 1: 2..2 is missing" in lines


def test_the_checks_have_a_progress_bar_on_a_terminal_only(
    url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar = f"0/{len(SCHEMA_CHECKS) + len(DATA_CHECKS)}"
    assert bar not in forebay_db("check").output
    monkeypatch.setattr(db, "Console", partial(Console, force_terminal=True))
    monkeypatch.setenv("TERM", "xterm")
    checked = forebay_db("check")
    assert checked.exit_code == 0
    assert bar in checked.stdout
    for check in (*SCHEMA_CHECKS, *DATA_CHECKS):
        assert check.__name__.replace("_", " ") in checked.stdout
    assert bar not in forebay_db("check", "--json").output
    with connect(engine) as connection:
        connection.exec_driver_sql("UPDATE forebay.alembic_version SET version_num = '9999'")
    assert bar in (old := forebay_db("check").stdout)
    assert "chains are gapless" not in old


def test_a_pipeline_that_is_not_applied_is_reported(url: str) -> None:
    checked = forebay_db("check", "--pipeline", "nobody")
    assert checked.exit_code == 1
    assert "'nobody'" in checked.stdout


def test_an_older_schema_is_not_taken_for_broken_data(url: str) -> None:
    migrate.downgrade(url, "base")
    checked = forebay_db("check")
    assert checked.exit_code == 1
    assert "The data was not looked at" in checked.stdout
    assert "forebay db upgrade" in checked.stdout
    assert json.loads(forebay_db("check", "--json").stdout)["data_checked"] is False
    assert forebay_db("current").exit_code == 1
    upgraded = forebay_db("upgrade")
    assert upgraded.exit_code == 0
    assert "administrator" not in upgraded.stdout
    # Each migration, in order, as it is run.
    told = [line.split(":")[0] for line in upgraded.stdout.splitlines() if line.startswith("  00")]
    assert [int(revision) for revision in told] == list(range(1, int(migrate.newest_revision()) + 1))
    assert forebay_db("current").exit_code == 0


def test_an_upgrade_says_as_json_which_migrations_it_ran(url: str) -> None:
    migrate.downgrade(url, "base")
    upgraded = forebay_db("upgrade", "--json")
    assert upgraded.exit_code == 0
    report = json.loads(upgraded.stdout)
    assert (report["revision"], report["missing_roles"]) == (migrate.newest_revision(), [])
    assert [int(revision) for revision in report["migrations"]] == list(range(1, int(migrate.newest_revision()) + 1))
    assert "The driver log is at revision" in upgraded.stderr
    assert json.loads(forebay_db("upgrade", "--json").stdout)["migrations"] == []


def test_a_newer_schema_is_left_unchanged_with_advice_to_install(url: str, engine: sa.Engine) -> None:
    with connect(engine) as connection:
        connection.exec_driver_sql("UPDATE forebay.alembic_version SET version_num = '9999'")
    for command in ("upgrade", "current", "check"):
        done = forebay_db(command)
        assert done.exit_code == 1, command
        assert "9999" in done.stdout
        assert "install" in done.stdout
        assert "forebay db upgrade" not in done.stdout, "it would not help"
    with connect(engine) as connection:
        # Running processes continue: their functions were not removed.
        assert functions_are_the_files(connection).passed


def test_roles_may_be_created_again_and_passed_to_psql(url: str, engine: sa.Engine) -> None:
    made = forebay_db("roles")
    assert made.exit_code == 0
    assert "forebay_operator: a person who looks" in made.stdout
    script = forebay_db("roles", "--sql")
    with connect(engine) as connection:
        connection.exec_driver_sql("REVOKE SELECT ON forebay.blocks FROM forebay_operator")
        connection.exec_driver_sql(script.stdout, execution_options={"no_parameters": True})
        granted = connection.exec_driver_sql(
            "SELECT has_table_privilege('forebay_operator', 'forebay.blocks', 'SELECT')"
        ).scalar_one()
    assert granted
    report = json.loads(forebay_db("roles", "--json").stdout)
    assert ([role["name"] for role in report["roles"]], report["missing_roles"]) == (list(ROLES), [])
    assert forebay_db("roles", "--json", "--sql").exit_code == 2
