"""Logs of containers in the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from forebay_contrib.container_logs.tests.container_files import ContainerFiles

if TYPE_CHECKING:
    from pathlib import Path

# A test waits for several things in turn, and for each as long as a process takes to start where others work beside it.
# Positions, rotation and sharing are those of followed files, whose suite runs each time: this one is slow.
pytestmark = [pytest.mark.timeout(240, func_only=True), pytest.mark.slow]


class TestContainerLogs(SourceConformance):
    """Exactly once."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> ContainerFiles:
        return ContainerFiles(tmp_path)
