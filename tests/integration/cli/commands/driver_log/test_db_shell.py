"""Test `forebay db url` and `forebay db shell`, and that an error names the driver log that was asked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import make_log
from tests.support.polling import eventually
from tracker_store.connection.engine import connect
from tracker_store.connection.log_address import address_of_log, libpq_url

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result


@pytest.fixture
def url(database_url: str, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of a driver log with the pipeline words."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    with connect(engine) as connection:
        make_log(connection)
    return database_url


def forebay(*arguments: str, **options: Any) -> Result:  # noqa: ANN401  the runner's own
    return CliRunner().invoke(app, arguments, **options)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def without_psql(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_the_url_leads_to_the_log_and_has_no_password_unless_asked(url: str) -> None:
    password = make_url(url).password
    assert password
    assert password not in forebay("db", "url").output
    assert forebay("db", "url", "--with-password").stdout.strip() == libpq_url(url, with_password=True)
    report = json.loads(forebay("db", "url", "--json").stdout)
    assert (report["password_left_out"], report["database"]) == (True, make_url(url).database)
    assert json.loads(forebay("db", "url", "--json", "--with-password").stdout)["password_left_out"] is False


def test_a_statement_is_answered_as_a_table_or_as_json(url: str) -> None:
    answered = forebay("db", "shell", "--command", "SELECT pipeline, state FROM pipeline_status")
    assert answered.exit_code == 0, answered.output
    assert "words" in answered.output
    assert json.loads(forebay("db", "shell", "-c", "SELECT pipeline FROM pipeline_status", "--json").stdout)[
        "rows"
    ] == [{"pipeline": "words"}]
    assert forebay("db", "shell", "--json").exit_code == 2


def test_a_shell_changes_nothing_unless_it_is_asked_to(url: str, engine: sa.Engine) -> None:
    statement = "UPDATE pipelines SET state = 'STOPPED'"
    refused = forebay("db", "shell", "-c", statement)
    assert refused.exit_code == 1
    assert "read-only transaction" in said(refused)
    assert "forebay db shell --write" in said(refused)
    with connect(engine) as connection:
        state = sa.text("SELECT state FROM forebay.pipelines")
        assert connection.execute(state).scalar_one() == "RUNNING"
        assert forebay("db", "shell", "--write", "-c", statement).output.strip() == "UPDATE 1"
        assert connection.execute(state).scalar_one() == "STOPPED"


def test_without_psql_a_prompt_runs_statements_over_several_lines_and_survives_an_error(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_psql(monkeypatch, tmp_path)
    typed = "SELECT nothing;\nSELECT\n pipeline\nFROM pipeline_status;\n\\q\nSELECT 1 AS never;\n"
    answered = forebay("db", "shell", input=typed)
    assert answered.exit_code == 0
    assert str(address_of_log(url)) in answered.output
    assert 'column "nothing" does not exist' in answered.output
    assert "words" in answered.output
    assert "never" not in answered.output


@pytest.mark.parametrize(
    ("ends", "code"),
    [("exit 0", 0), ("exit 1", 1), ("exit 2", 1), ("exit 3", 1), ("kill -TERM $$", 143)],
    ids=["well", "error", "no connection", "script", "signal"],
)
def test_psqls_exit_code_becomes_one_of_forebays(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, code: int
) -> None:
    program = tmp_path / "psql"
    program.write_text(f"#!/bin/sh\n{ends}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert forebay("db", "shell").exit_code == code


def test_ctrl_c_is_psqls_and_does_not_end_the_shell(url: str, tmp_path: Path) -> None:
    program = tmp_path / "psql"
    ready, cancelled, end = (tmp_path / name for name in ("ready", "cancelled", "end"))
    program.write_text(
        f"#!/bin/sh\ntrap 'touch {cancelled}' INT\ntouch {ready}\nwhile [ ! -e {end} ]; do sleep 0.05; done\n"
    )
    program.chmod(0o755)
    with subprocess.Popen(
        [sys.executable, "-m", "forebay.cli", "db", "shell"],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        start_new_session=True,
    ) as process:
        eventually(ready.exists, "psql runs")
        os.killpg(process.pid, signal.SIGINT)
        eventually(cancelled.exists, "psql gets Ctrl-C")
        end.touch()
        assert process.wait(60) == 0


def test_psql_gets_the_password_in_its_environment_and_not_as_an_argument(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    program = tmp_path / "psql"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\nprint(sys.argv, file=open({str(seen)!r}, 'w'))\n"
        "sys.exit(0 if os.environ['PGPASSWORD'] and 'read_only=on' in os.environ['PGOPTIONS'] else 9)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert forebay("db", "shell").exit_code == 0
    assert "postgresql://" in seen.read_text()
    assert str(make_url(url).password) not in seen.read_text()
