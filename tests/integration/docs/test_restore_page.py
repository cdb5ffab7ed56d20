"""Test the runbook for a restore, command by command: receivers continue after the backup, and nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from receiver_runtime.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code
from tests.receiver_processes import eventually
from tests.runbook_page import blocks, page
from tracker_store.checks import check_data
from tracker_store.engine import connect, create_engine

if TYPE_CHECKING:
    from tests.postgres import TestServer


def plain(url: str) -> str:
    """Return the URL as Postgres' own programs accept it."""
    return sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def test_blocks_that_are_newer_than_the_backup_are_registered_again(
    postgres_server: TestServer, database_url: str, tmp_path: Path
) -> None:
    back_up, restore, look, look_again = blocks(page("restore"), "sh")
    seen, *others = blocks(page("restore"), "sql")
    server = postgres_server.process.server
    restored_name = f"{sa.make_url(database_url).database}_restored"
    restored_url = server.url(restored_name)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")} | {
        "DATABASE": plain(database_url),
        "MAINTENANCE": plain(server.url("postgres")),
        "RESTORED": plain(restored_url),
        "FOREBAY_DATABASE_URL": restored_url,
        "FOREBAY_HOME": str(tmp_path),
        "FOREBAY_BLOCK_STORE": str(tmp_path / "receiver" / "blocks"),
        "COLUMNS": "300",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), str(server.binaries), os.environ["PATH"]]),
    }

    def run(commands: str) -> str:
        done = subprocess.run(
            ["sh", "-euc", commands.replace("forebay_restored", restored_name)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    source = NumberedSource()
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, segment_interval="1s")
    again = None
    try:
        process = rig.start()
        eventually(lambda: rig.records() > 50, "50 records")
        run(back_up)
        backed_up = rig.records()
        segments = len(rig.segments())
        eventually(lambda: rig.records() > backed_up + 50 and len(rig.segments()) > segments, "more, in another file")
        source.pause()
        eventually(lambda: rig.records() == source.sent, "all that was sent is registered")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED
        run(restore)
        assert "its segment has no row" in run(look)
        again = ReceiverRig(
            restored_url, rig.root, create_engine(restored_url, application_name="tests"), rig.receiver_id
        )
        assert again.records() <= backed_up
        again.assign(2)
        again.start(assignment=2)
        eventually(lambda: again is not None and again.records() == source.sent, "all is registered again")
        eventually(lambda: again is not None and again.state()[0] == "ACTIVE", "the receiver receives")
        assert [int(value) for value in again.values()] == list(range(source.sent))
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
