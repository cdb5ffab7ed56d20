"""Test `forebay readers`: a stale reader is shown, and removed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import NOON, make_log
from tracker_store.batches.readers import attach_reader
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa
    from typer.testing import Result


@pytest.fixture(autouse=True)
def _environment(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("COLUMNS", "200")


def forebay(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_a_stale_reader_is_shown_with_what_it_holds_back_and_is_removed(engine: sa.Engine) -> None:
    assert "none" in forebay("readers").stdout
    with connect(engine) as connection:
        log = make_log(connection)
        log.add_at(log.receiver_ids[0], NOON, NOON)
        attach_reader(connection, name="counting", stream="lines")
    shown = forebay("readers").stdout
    assert "counting" in shown
    assert "2026-01-01 12:00:00" in shown
    [row] = json.loads(forebay("readers", "--json").stdout)["readers"]
    assert (row["reader"], row["stream"], row["waiting_records"], row["oldest_added_at"]) == (
        "counting",
        "lines",
        20,
        NOON.isoformat(),
    )
    refused = forebay("readers", "remove", "counting")
    assert (refused.exit_code, "add --yes" in refused.output) == (1, True)
    removed = forebay("readers", "remove", "counting", "--yes")
    assert (removed.exit_code, "is removed" in removed.stdout) == (0, True)
    again = forebay("readers", "remove", "counting")
    assert (again.exit_code, "reader 'counting' is not in the driver log" in again.output) == (1, True)
    assert json.loads(forebay("readers", "--json").stdout) == {"readers": []}


def test_a_removal_is_said_as_json(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        make_log(connection)
        attach_reader(connection, name="counting", stream="lines")
    removed = forebay("readers", "remove", "counting", "--json", "--yes")
    assert json.loads(removed.stdout) == {"reader": "counting", "removed": True}
    assert "is removed" in removed.stderr
    again = forebay("readers", "remove", "counting", "--json", "--yes")
    assert (again.exit_code, again.stdout) == (1, "")
