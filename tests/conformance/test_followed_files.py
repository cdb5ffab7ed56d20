"""Followed files by the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.followed_files_source import LogDirectory
from tests.conformance.suite import ConformanceSuite

if TYPE_CHECKING:
    from pathlib import Path


class TestFollowedFiles(ConformanceSuite):
    """Exactly once."""

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> LogDirectory:
        return LogDirectory(tmp_path)
