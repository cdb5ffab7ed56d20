"""Test a real receiver process on two replica directories; one goes and comes back while it receives."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.testing.receiver_processes import eventually
from receiver_runtime.watching.exit_codes import ExitCode
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig, exit_code

if TYPE_CHECKING:
    from pathlib import Path


def blocks(command: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["blocks", command, "--json"])
    return result.exit_code, json.loads(result.stdout)


def told(rig: ReceiverRig, message: str) -> bool:
    return bool(rig.execute("SELECT FROM forebay.receiver_events WHERE message = :m", m=message))


@pytest.mark.parametrize("comes_back", ["as it was", "empty"])
def test_h02_a_replica_goes_and_comes_back_and_no_record_is_lost(
    database_url: str, tmp_path: Path, source: NumberedSource, monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, segment_interval="200ms")
    rig.roots = f"{first},{second}"
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", rig.roots)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    try:
        process = rig.start()
        eventually(lambda: rig.records() > 50, "50 records")
        away = second.rename(tmp_path / "away")
        eventually(lambda: told(rig, f"the block store's replica {second} is lost"), "the replica's loss is told")
        held = rig.records()
        eventually(lambda: rig.records() > held + 50, "receiving goes on without it")
        assert not second.exists()
        if comes_back == "empty":
            shutil.rmtree(away)
            second.mkdir()
        else:
            away.rename(second)
        eventually(lambda: told(rig, f"the block store's replica {second} is back"), "its return is told")
        held = rig.records()
        eventually(lambda: rig.records() > held + 50, "and it goes on")
        process.send_signal(signal.SIGTERM)
        assert exit_code(process) == ExitCode.STOPPED, rig.logs()
        values = [str(number) for number in range(rig.records())]
        assert rig.values() == values
        assert rig.state()[0] == "INACTIVE"

        code, report = blocks("verify")
        assert (code, report["lost"], report["intact"]) == (1, [], False)
        lacking = {replica["name"]: replica["lacking"] for replica in report["replicas"]}
        assert not lacking[str(first)]
        assert lacking[str(second)]
        code, repaired = blocks("repair")
        assert (code, repaired["not_copied"]) == (0, [])
        assert {path for _, path in repaired["copied"]} == set(lacking[str(second)])
        code, report = blocks("verify")
        assert (code, report["intact"]) == (0, True)
        # This replica alone has everything now.
        rig.roots = str(second)
        assert rig.values() == values
    finally:
        rig.close()
