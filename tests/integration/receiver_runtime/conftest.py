"""Fixtures for tests of a receiver's process that reads a socket of numbered lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def source() -> Iterator[NumberedSource]:
    made = NumberedSource()
    yield made
    made.close()


@pytest.fixture
def rig(database_url: str, tmp_path: Path, source: NumberedSource) -> Iterator[ReceiverRig]:
    made = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port)
    yield made
    made.close()
