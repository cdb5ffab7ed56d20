"""Fixtures of schema registries: one in memory, and Apicurio's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.servers.apicurio import ApicurioServer
from tests.support.servers.schema_registry import RegistryServer, registry_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as made:
        yield made


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[ApicurioServer]:
    made = ApicurioServer(tmp_path / "registry")
    made.start()
    try:
        yield made
    finally:
        made.kill()
