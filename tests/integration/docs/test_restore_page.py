"""Test the runbook for a restore, command by command: receivers continue after the backup, and nothing is lost."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.pages.runbook import blocks, page
from tracker_store.connection.engine import connect, create_engine
from tracker_store.reports.checks import check_data

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.testing.postgres import TestServer
    from tracker_store.server.embedded_postgres import EmbeddedPostgres

# The stream has the settings of the receiver that the test starts, so that only the pipeline changes.
MODULE = """
from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

settings = dict(block_interval="20ms", receiver_restart_delay="50ms", segment_interval="1s")
lines = Stream("lines", SocketText(host="127.0.0.1", port={port}), **settings)
pipeline = Pipeline("words", interval="{interval}")


@pipeline.output(inputs=[lines], sink=ParquetSink("counts"))
def counts(lines):
    return lines
"""


def interval(rig: ReceiverRig) -> object:
    """Return the interval of the only pipeline."""
    [(found,)] = rig.execute("SELECT batch_interval FROM forebay.pipelines")
    return found


def plain(url: str) -> str:
    """Return the URL as Postgres' own programs accept it."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


class Restored:
    """Run the page's commands on the restored database, whose name is not that of the page."""

    def __init__(self, server: EmbeddedPostgres, database_url: str, home: Path) -> None:
        self._name = f"{sa.make_url(database_url).database}_restored"
        self._home = home
        self.url = server.url(self._name)
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")} | {
            "DATABASE": plain(database_url),
            "MAINTENANCE": plain(server.url("postgres")),
            "RESTORED": plain(self.url),
            "FOREBAY_DATABASE_URL": self.url,
            "FOREBAY_HOME": str(home),
            "FOREBAY_MODULE": str(home / "declared.py"),
            "FOREBAY_BLOCK_STORE": str(home / "receiver" / "blocks"),
            "COLUMNS": "300",
            **(shell := programs()),
            "PATH": f"{server.binaries}{os.pathsep}{shell['PATH']}",
        }

    def run(self, commands: str, *, database_url: str | None = None) -> str:
        """Run commands, which must succeed; return their output. `database_url`: on this database."""
        done = run_program(
            ["sh", "-euc", commands.replace("forebay_restored", self._name)],
            env=self._environment | {"FOREBAY_DATABASE_URL": database_url or self.url},
            cwd=self._home,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def declare(self, port: int, interval: str) -> None:
        """Write the module that `forebay apply` applies."""
        (self._home / "declared.py").write_text(MODULE.format(port=port, interval=interval), encoding="utf-8")


def test_blocks_that_are_newer_than_the_backup_are_registered_again(
    postgres_server: TestServer, database_url: str, tmp_path: Path
) -> None:
    back_up, restore, look, apply, show_events, look_again = blocks(page("restore"), "sh")
    seen, *others = blocks(page("restore"), "sql")
    restored = Restored(postgres_server.process.server, database_url, tmp_path)
    run = restored.run
    source = NumberedSource()
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, segment_interval="1s")
    again = None
    try:
        restored.declare(source.port, "10s")
        run(apply, database_url=database_url)
        rig.assign(2)
        process = rig.start(assignment=2)
        eventually(lambda: rig.records() > 50, "50 records")
        run(back_up)
        backed_up = rig.records()
        restored.declare(source.port, "20s")
        run(apply, database_url=database_url)
        assert interval(rig) == timedelta(seconds=20)
        segments = len(rig.segments())
        eventually(lambda: rig.records() > backed_up + 50 and len(rig.segments()) > segments, "more, in another file")
        source.pause()
        eventually(lambda: rig.records() == source.sent, "all that was sent is registered")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED
        run(restore)
        assert "its segment has no row" in run(look)
        again = ReceiverRig(
            restored.url, rig.root, create_engine(restored.url, application_name="tests"), rig.receiver_id
        )
        assert again.records() <= backed_up
        assert interval(again) == timedelta(seconds=10)
        again.assign(3)
        again.start(assignment=3)
        eventually(lambda: again is not None and again.records() == source.sent, "all is registered again")
        eventually(lambda: again is not None and again.state()[0] == "ACTIVE", "the receiver receives")
        assert [int(value) for value in again.values()] == list(range(source.sent))
        run(apply)
        assert interval(again) == timedelta(seconds=20)
        assert "receiver_error lines/1: the driver log " in run(show_events)
        look_again_said = run(look_again)
        assert "0 (0 records) waits, 0 (0 records) comes again, 0 (0 records) unknown" in look_again_said
        with connect(again.engine) as connection:
            assert [result for result in check_data(connection) if not result.passed] == []
            assert connection.exec_driver_sql(seen.replace("%", "%%")).all(), "what was registered again is seen"
            for statement in others:
                connection.exec_driver_sql(statement.replace("%", "%%"))
    finally:
        rig.close()
        if again is not None:
            again.close()
        source.close()
        run('dropdb --force --if-exists --maintenance-db="$MAINTENANCE" forebay_restored')
