"""Test that each command which takes a name says which one was meant by one that does not exist."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from typer.testing import CliRunner

from forebay.cli.main import app
from tests.support.driver_log.log import NOON, Log, make_log
from tracker_store.batches.readers import attach_reader
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    import sqlalchemy as sa

TIME = NOON.isoformat()
MISTYPED = {
    "lines": ["tap line", "streams remove line --yes", "blocks list Lines", "dead-letters list line", "channels line"],
    "lines/1": [
        *(f"receivers {what} line/1" for what in ("pause", "restart", "start", "stop")),
        *("blocks records lines/9 1", "dead-letters list lines/9", "tap lines --receiver 9", "logs lines/9"),
    ],
    "words": [
        *("batches list word", "batches list --pipeline word", f"batches show word {TIME}"),
        *(f"batches discard word {TIME}", f"batches bisect word {TIME}", f"batches replay word {TIME}"),
        *("pipelines remove word --yes", "stop --pipeline word", "start --pipeline word", "db check --pipeline word"),
    ],
    "counts": [f"batches replay words {TIME} --output count"],
    "counting": ["readers remove countin --yes"],
    "host-1": ["agents drain host1", "agents undrain host1"],
    "lost-host": ["agents forget losthost --yes"],
    "agent": ["logs agnet"],
    "FOREBAY_MODULE": ["config modul"],
}


def test_each_command_says_which_name_was_meant(
    connection: sa.Connection, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    _fill(make_log(connection), tmp_path)
    for command, meant in [(command, meant) for meant, listed in MISTYPED.items() for command in listed]:
        result = CliRunner().invoke(app, command.split())
        said = " ".join(result.output.replace("│", " ").split())
        assert (result.exit_code != 0, f"id you mean {meant}?" in said) == (True, True), f"forebay {command}: {said}"


def _fill(log: Log, home: Path) -> None:
    attach_reader(log.connection, name="counting", stream="lines")
    register_process(log.connection, kind=ProcessKind.AGENT, name="host-1", host="host-1", pid=os.getpid(), slots=1)
    log.connection.exec_driver_sql("UPDATE forebay.receivers SET host = 'lost-host', agent_id = NULL")
    log.connection.exec_driver_sql(
        "UPDATE forebay.pipelines SET declaration = jsonb_set(declaration, '{outputs}', '{\"counts\": {}}')"
    )
    (home / "logs").mkdir()
    (home / "logs" / "agent.log").touch()
