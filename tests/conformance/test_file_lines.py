"""Complete files by the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.file_lines_source import Incoming
from tests.conformance.suite import ConformanceSuite

if TYPE_CHECKING:
    from pathlib import Path

# A test waits for several things in turn, and for each as long as a process takes to start where others work beside it.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestFileLines(ConformanceSuite):
    """Exactly once."""

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Incoming:
        return Incoming(tmp_path)
