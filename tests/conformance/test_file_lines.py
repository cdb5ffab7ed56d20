"""Complete files in the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from tests.conformance.file_lines_source import Incoming

if TYPE_CHECKING:
    from pathlib import Path

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestFileLines(SourceConformance):
    """Exactly once."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Incoming:
        return Incoming(tmp_path)
