"""Followed files in the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from tests.conformance.followed_files_source import LogDirectory

if TYPE_CHECKING:
    from pathlib import Path

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestFollowedFiles(SourceConformance):
    """Exactly once."""

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> LogDirectory:
        return LogDirectory(tmp_path)
