"""Fixtures for these tests alone."""

from __future__ import annotations

from tests.support.servers.registry_fixtures import registry as registry  # noqa: PLC0414  a fixture
from tests.support.servers.registry_fixtures import server as server  # noqa: PLC0414  a fixture
