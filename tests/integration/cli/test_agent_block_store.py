"""Check that `forebay agent` ends with a message on a host that does not see the others' block store.

`forebay doctor` reports it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forebay.cli.checks.findings import Finding, Health
from forebay.cli.commands.doctor import examine
from tests.support.commands.forked_command import forebay
from tests.support.polling import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def refuse(host: str, settings: dict[str, str]) -> str:
    """Run an agent that ends by itself with exit code 1; return its error output."""
    done = forebay("agent", "--host", host, environment=settings)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


def adopt(settings: dict[str, str], root: Path) -> int:
    """Run `forebay blocks adopt`; return its exit code."""
    return forebay("blocks", "adopt", str(root), "--host", "b", "--yes", environment=settings).returncode


def environment(database_url: str, home: Path, block_store: Path | None = None) -> dict[str, str]:
    made = {k: v for k, v in os.environ.items() if not k.startswith("FOREBAY_")}
    made |= {"FOREBAY_DATABASE_URL": database_url, "FOREBAY_HOME": str(home)}
    return made if block_store is None else {**made, "FOREBAY_BLOCK_STORE": str(block_store)}


@contextmanager
def running_agent(host: str, settings: dict[str, str], *, role: str = "receivers") -> Iterator[None]:
    command = [sys.executable, "-m", "forebay.cli", "agent", "--host", host, "--roles", role, "--parent-pipe"]
    agent = subprocess.Popen(command, env=settings, stdin=subprocess.PIPE)
    try:
        yield
    finally:
        agent.send_signal(signal.SIGTERM)
        agent.communicate(timeout=30)


def agents(engine: sa.Engine) -> list[str]:
    with connect(engine) as connection:
        rows = connection.execute(
            sa.text("SELECT host FROM forebay.processes WHERE kind = 'agent' AND ended_at IS NULL ORDER BY host")
        )
        return [row.host for row in rows]


def findings(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> list[Finding]:
    for name in list(os.environ):
        if name.startswith("FOREBAY_"):
            monkeypatch.delenv(name)
    for name, value in settings.items():
        if name.startswith("FOREBAY_"):
            monkeypatch.setenv(name, value)
    return [finding for finding in examine() if finding.check == "hosts"]


def test_hosts_on_unshared_directories_are_refused_at_their_start(
    database_url: str, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check hosts with blocks in their own homes, which is the default: a path on two machines is not one directory."""
    of_a, of_b = (environment(database_url, tmp_path / host) for host in "ab")
    with running_agent("a", of_a):
        eventually(lambda: agents(engine) == ["a"], "the first agent")
        said = refuse("b", of_b).splitlines()[-1]
        assert said.startswith(f"the block store {tmp_path / 'b' / 'blocks'} can't be reached (not mounted? ")
        assert f"a has {tmp_path / 'a' / 'blocks'}" in said
        assert not (tmp_path / "b" / "blocks").exists(), "it may be a mount point"
        # A person confirms that it is not a mount point.
        assert adopt(of_b, tmp_path / "b" / "blocks") == 0
        assert refuse("b", of_b).startswith(
            f"host 'b' sees the block store {tmp_path / 'b' / 'blocks'}, "
            f"and host 'a' runs receivers with {tmp_path / 'a' / 'blocks'}, which is not the same one"
        )
        assert agents(engine) == ["a"]
        [found] = findings(monkeypatch, of_b)
        assert (found.health, found.found) == (
            Health.FAILED,
            f"host 'a' sees another block store: {tmp_path / 'a' / 'blocks'}",
        )
        assert "FOREBAY_BLOCK_STORE" in found.way_out


@pytest.mark.slow
def test_a_tracker_may_see_another_store_and_a_receiving_host_the_same_one_by_another_name(
    database_url: str, engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a, of_b = (environment(database_url, tmp_path / host) for host in "ab")
    with running_agent("a", of_a):
        eventually(lambda: agents(engine) == ["a"], "the first agent")
        assert adopt(of_b, tmp_path / "b" / "blocks") == 0
        with running_agent("b", of_b, role="tracker"):
            eventually(lambda: agents(engine) == ["a", "b"], "the tracker's agent")
        assert agents(engine) == ["a"]
        # As when two hosts mount it.
        (tmp_path / "mounted").symlink_to(tmp_path / "a" / "blocks")
        shared = environment(database_url, tmp_path / "b", tmp_path / "mounted")
        with running_agent("b", shared):
            eventually(lambda: agents(engine) == ["a", "b"], "the second agent")
            [found] = findings(monkeypatch, shared)
            assert (found.health, found.found) == (Health.OK, "the block store is shared with a, b")


def test_an_unwritable_store_is_reported_at_the_start(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    said = refuse("a", environment(database_url, tmp_path, tmp_path / "file" / "blocks"))
    assert f"the block store {tmp_path / 'file' / 'blocks'} can't be reached" in said.splitlines()[-1]


def test_an_agent_does_not_start_without_the_key_that_encrypts(
    engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    settings = {**environment(database_url, tmp_path), "FOREBAY_BLOCK_KEY": f"file:{tmp_path}/none"}
    told = refuse("h1", settings)
    assert "FOREBAY_BLOCK_KEY: No such file or directory" in told
    assert f"put the secret into file:{tmp_path}/none" in told
    with connect(engine) as connection:
        # It has not become a host on which receivers are placed.
        assert connection.execute(sa.text("SELECT count(*) FROM forebay.processes")).scalar_one() == 0
