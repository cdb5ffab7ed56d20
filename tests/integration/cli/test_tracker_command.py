"""Test `forebay tracker` as its agent runs it: it serves HTTP, and refuses to start open to others without a token."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.commands.forked_command import forebay
from tests.support.driver_log.log import make_log
from tests.support.polling import eventually
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa


def environment(home: Path, database_url: str, **settings: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {**inherited, "FOREBAY_HOME": str(home), "FOREBAY_DATABASE_URL": database_url, **settings}


@contextmanager
def tracker(home: Path, database_url: str, **settings: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a tracker that ends with its standard input, as its agent's child does."""
    with subprocess.Popen(
        [sys.executable, "-m", "forebay.cli", "tracker"],
        env=environment(home, database_url, **settings),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def get(url: str) -> Any:  # noqa: ANN401  whatever it is
    with urllib.request.urlopen(url, timeout=20) as answer:
        return json.load(answer)


def test_it_serves_leads_and_ends_with_its_parent(database_url: str, engine: sa.Engine, home: Path) -> None:
    with connect(engine) as connection:
        make_log(connection)
    address = home / "run" / "tracker.url"
    with tracker(home, database_url, FOREBAY_TRACKER_HTTP="127.0.0.1:0") as process:
        eventually(address.exists, "the file with the address")
        url = address.read_text().strip()
        eventually(lambda: get(f"{url}/health")["leading"], "that it leads")
        assert get(f"{url}/ready")["leading"] is True
        assert [application["id"] for application in get(f"{url}/api/v1/applications")] == ["words"]
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert f"the tracker serves HTTP        token=False url={url}" in process.stderr.read().decode()
    assert not address.exists()


def test_off_serves_nothing(database_url: str, engine: sa.Engine, home: Path) -> None:
    with tracker(home, database_url, FOREBAY_TRACKER_HTTP="off") as process:
        with connect(engine) as connection:
            eventually(
                lambda: connection.exec_driver_sql("SELECT holder FROM forebay.leadership").scalar(), "that it leads"
            )
        assert not (home / "run").exists()
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    "command", [["tracker"], ["agent", "--roles", "tracker"], ["up", "forebay.demo.pipeline"], ["demo"]]
)
def test_it_does_not_start_open_to_others_without_a_token(database_url: str, home: Path, command: list[str]) -> None:
    refused = forebay(*command, environment=environment(home, database_url, FOREBAY_TRACKER_HTTP="0.0.0.0:3070"))
    assert refused.returncode == 1
    said = " ".join((refused.stdout + refused.stderr).split())
    assert "FOREBAY_TRACKER_HTTP='0.0.0.0:3070' can be reached from other machines" in said
    assert "set FOREBAY_TRACKER_TOKEN" in said
    assert "Traceback" not in said
