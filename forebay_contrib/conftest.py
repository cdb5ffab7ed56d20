"""Fixtures for the tests of every contributed kind."""

from __future__ import annotations

from tests.conformance.source_rig import make_rig as make_rig  # noqa: PLC0414  a fixture
from tests.integration.s3.conftest import azurite as azurite  # noqa: PLC0414  a fixture
