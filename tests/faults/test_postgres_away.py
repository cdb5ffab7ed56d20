"""Postgres away, full, locked or replaced: receivers keep what they hold and stop reading, nobody ends, all resumes.

Issue 4, item 7. A socket delivers nothing twice and nothing again, so with no process ended every number that was sent
is registered once. `POSTGRES_AWAY_SECONDS` is the length of an outage: 15 unless given, 60 in CI, 600 by hand.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psycopg2
import pytest

from tests.faults.driver_log_server import Address, DriverLogServer, MountRefusedError, fill, small_file_system
from tests.faults.receiving_host import receiving_host
from tests.state_directory import state_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.faults.receiving_host import ReceivingHost

AWAY_SECONDS = float(os.environ.get("POSTGRES_AWAY_SECONDS", "15"))

pytestmark = pytest.mark.timeout(240 + 2 * AWAY_SECONDS)

RecordProperty = "Callable[[str, object], None]"


@pytest.fixture(scope="module")
def server() -> Iterator[DriverLogServer]:
    """One server for the tests that leave it as it was."""
    with state_directory() as directory, DriverLogServer(directory / "postgres", max_connections="60") as server:
        yield server


@pytest.fixture
def host(server: DriverLogServer, home: Path) -> Iterator[ReceivingHost]:
    """Two receivers under load."""
    with receiving_host(server.new_database(), home) as host:
        yield host


def status(host: ReceivingHost) -> tuple[int, str]:
    """`forebay status` as an operator runs it: exit code, and all that it says."""
    environment = {**os.environ, "FOREBAY_DATABASE_URL": host.database_url, "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "forebay.cli", "status"], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("end", [DriverLogServer.stop_fast, DriverLogServer.kill], ids=["stopped", "killed"])
def test_the_server_is_away_and_comes_back(
    server: DriverLogServer,
    host: ReceivingHost,
    end: Callable[[DriverLogServer], None],
    record_property: Callable[[str, object], None],
) -> None:
    end(server)
    try:
        code, said = status(host)
        assert code == 1
        assert "can't be reached" in said
        assert "Connection refused" in said
        host.stay_away(AWAY_SECONDS)
    finally:
        server.ensure_running()
    record_property("resumed_after_seconds", round(host.resume(), 2))
    host.check_every_number_is_there_once()
    waited = [detail for message, detail in host.events("ERROR") if "the driver log" in message]
    assert len(waited) >= len(host.sources), host.report()
    assert all("driver log" not in reason for reason in host.reasons())
