"""Test docs/how-to/several-hosts.md: its commands run, and its agent is registered afterwards."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from orchestration.declarations.settings import Settings
from tests.support.commands.forked_command import programs
from tests.support.commands.run_program import run_program
from tests.support.polling import eventually
from tracker_store.blocks.block_stores import UnsharedBlockStoreError, attach_block_store, unshared_way_out
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "several-hosts.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> Mapping[str, str]:
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")},
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path),
        **programs(),
    }


@pytest.mark.parametrize("command", blocks("sh runnable"))
def test_a_command(environment: Mapping[str, str], tmp_path: Path, command: str) -> None:
    done = run_program(["sh", "-euc", command], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_agent(environment: Mapping[str, str], engine: sa.Engine, tmp_path: Path) -> None:
    [command] = blocks("sh agent")
    agent = subprocess.Popen(shlex.split(command), env=environment, cwd=tmp_path)

    def there() -> bool:
        with connect(engine) as connection:
            rows = connection.execute(
                sa.text(
                    "SELECT p.host, p.slots FROM forebay.processes p JOIN forebay.block_stores USING (host) "
                    "WHERE p.kind = 'agent' AND p.ended_at IS NULL"
                )
            ).all()
        return [tuple(row) for row in rows] == [("h1", 16)]

    try:
        eventually(there, "the agent")
    finally:
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(40) == 0


def test_the_variables_are_the_program_s() -> None:
    [exports] = blocks("sh")
    assert set(re.findall(r"FOREBAY_(\w+)=", exports)) <= {name.upper() for name in Settings.model_fields}
    assert {name.lower() for name in re.findall(r"`FOREBAY_(\w+)`", PAGE)} <= set(Settings.model_fields)


def test_the_refusal_is_the_program_s(engine: sa.Engine) -> None:
    [shown] = blocks("text")
    with connect(engine) as connection:
        attach_block_store(connection, host="h1", roots={"one": "/data/blocks"})
        connection.exec_driver_sql(
            "INSERT INTO forebay.processes (kind, name, host, pid, slots) VALUES ('agent', 'h1', 'h1', 1, 4)"
        )
        with pytest.raises(UnsharedBlockStoreError) as refused:
            attach_block_store(connection, host="h2", roots={"two": "/data/blocks"})
    assert str(refused.value) == shown.strip().removesuffix("…") + unshared_way_out("HOST")
