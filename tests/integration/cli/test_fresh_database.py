"""Test what commands say of a database that has no driver log yet, and of names that a driver log does not have."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect, connect_once, create_engine, psycopg2_url
from tracker_store.connection.errors import DriverLogError
from tracker_store.connection.log_address import address_of_log, check_there_is_a_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa
    from typer.testing import Result

    from forebay.testing.postgres import TestServer

COMMANDS = [
    ("apply", "forebay.demo.pipeline"),
    ("agents",),
    ("batches",),
    ("batches", "replay", "words"),
    ("batches", "show", "words", "latest"),
    ("channels", "orders"),
    ("dead-letters", "list"),
    ("events",),
    ("pipelines",),
    ("readers",),
    ("receivers",),
    ("start",),
    ("stop",),
    ("streams",),
    ("tap", "lines"),
    ("top", "--once"),
]


@pytest.fixture
def fresh_url(postgres_server: TestServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of a database that has never been migrated."""
    with postgres_server.database(migrated=False) as url:
        monkeypatch.setenv("FOREBAY_DATABASE_URL", url)
        monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
        monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
        yield url


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def said(result: Result) -> str:
    return " ".join(result.output.split())


def test_each_command_says_where_there_is_no_driver_log_and_what_to_run(fresh_url: str) -> None:
    for command in COMMANDS:
        refused = forebay(*command)
        assert refused.exit_code == 1, (command, refused.output)
        assert said(refused).startswith(f"there is no driver log in {address_of_log(fresh_url)}."), command
        assert "Run `forebay db upgrade`" in said(refused), command
        assert len(refused.output.splitlines()) <= 3, (command, refused.output)
    status = json.loads(forebay("status", "--json").stdout)
    [log] = [part for part in status["unreachable"] if not part["part"].startswith(("agent", "leader", "block store"))]
    assert (log["part"], "there is no driver log in" in log["reason"]) == ("driver log", True)
    [finding] = [
        row
        for row in json.loads(forebay("validate", "--no-plans", "forebay.demo.pipeline", "--json").stdout)["findings"]
        if row["check"] == "driver log"
    ]
    assert "there is no driver log in" in finding["found"]
    assert forebay("db", "upgrade").exit_code == 0
    applied = forebay("apply", "forebay.demo.pipeline")
    assert (applied.exit_code, "Applied." in applied.output) == (0, True)
    assert forebay("pipelines").exit_code == 0


def test_a_schema_that_an_administrator_made_is_no_driver_log(fresh_url: str) -> None:
    with connect_once(fresh_url, application_name="test") as connection:
        connection.exec_driver_sql("CREATE SCHEMA forebay")
        connection.commit()
        with pytest.raises(DriverLogError, match="there is no driver log in"):
            check_there_is_a_log(connection, fresh_url)
    assert "there is no driver log in" in said(forebay("pipelines"))


def test_a_login_that_may_make_nothing_there_is_told_which_one_may(
    fresh_url: str, postgres_server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"forebay_test_nothing_{os.getpid()}"
    engine = create_engine(fresh_url, application_name="test", pool_size=1)
    with connect(engine) as owner:
        owner.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD 'pl4nted'")
        try:
            url = psycopg2_url(fresh_url).set(username=name, password="pl4nted")
            monkeypatch.setenv("FOREBAY_DATABASE_URL", url.render_as_string(hide_password=False))
            refused = forebay("db", "upgrade")
        finally:
            owner.exec_driver_sql(f"DROP ROLE {name}")
    engine.dispose()
    assert refused.exit_code == 1
    assert said(refused).startswith("permission denied for ")
    assert f"TO {name};`" in said(refused)
    assert "which owns the database" in said(refused)
    assert "pl4nted" not in said(refused)


@pytest.mark.parametrize(
    "command",
    [
        ("batches", "show", "nobody", "2026-01-01"),
        ("batches", "replay", "nobody"),
        ("blocks", "records", "nobody/1", "1"),
        ("receivers", "restart", "nobody"),
        ("start", "--pipeline", "nobody"),
        ("stop", "--pipeline", "nobody"),
        ("streams", "remove", "nobody"),
        ("tap", "nobody"),
    ],
)
def test_an_unknown_name_says_which_driver_log_was_asked(
    command: tuple[str, ...],
    engine: sa.Engine,
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    with connect(engine) as connection:
        make_log(connection)
    refused = forebay(*command)
    assert (refused.exit_code, "nobody" in said(refused)) == (1, True), refused.output
    assert f"(The driver log that was asked: {address_of_log(database_url)}.)" in said(refused)
