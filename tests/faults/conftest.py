"""One running system for all kills that it survives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import running_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.systems.running_system import RunningSystem


@pytest.fixture(scope="module")
def shared_system() -> Iterator[RunningSystem]:
    """Start `forebay up` with the numbered pipeline at a 2 s interval."""
    with state_directory() as home, NumberedSource() as source, running_system(home, source) as system:
        yield system


@pytest.fixture
def system(shared_system: RunningSystem) -> RunningSystem:
    """Return the shared system while it receives: records flow before the kill, whatever the previous test did."""
    shared_system.receive(500)
    return shared_system
