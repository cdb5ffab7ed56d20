"""Fixtures for the tests of object stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.servers.azurite import AzuriteServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzuriteServer]:
    """Return a server of Azure's blobs, for the tests of a module."""
    server = AzuriteServer(tmp_path_factory.mktemp("azurite"))
    server.start()
    yield server
    server.kill()
