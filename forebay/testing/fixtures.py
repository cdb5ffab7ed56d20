"""Fixtures for the tests of a source of your own: a driver log of its own for each test, and receivers that read it.

In your ``conftest.py``: ``pytest_plugins = ["forebay.testing.fixtures"]``. The driver logs are databases of one
embedded Postgres, which starts with the first of them and ends with the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.postgres import TestServer
from forebay.testing.source_rig import make_rigs
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.testing.source_rig import MakeRig


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark of the suite's tests that are enough for a short pass: ``-m core``."""
    config.addinivalue_line("markers", "core: the short pass over a conformance suite")


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestServer]:
    """Start an embedded Postgres for the whole run."""
    server = TestServer(EmbeddedPostgres(tmp_path_factory.mktemp("driver-log") / "postgres", durable=False))
    with server.process:
        yield server


@pytest.fixture
def database_url(postgres_server: TestServer) -> Iterator[str]:
    """Make a new driver log; return its URL."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture
def make_rig(database_url: str, tmp_path: Path) -> Iterator[MakeRig]:
    """Return a function that makes a stream of a source with its receivers; it takes `SourceRig.make`'s arguments."""
    with make_rigs(database_url, tmp_path) as make:
        yield make
