"""Complete files by the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.file_lines_source import Incoming
from tests.conformance.suite import ConformanceSuite

if TYPE_CHECKING:
    from pathlib import Path


class TestFileLines(ConformanceSuite):
    """Exactly once."""

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Incoming:
        return Incoming(tmp_path)
