"""Followed files in the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import SourceConformance, stop
from receiver_runtime.receivers.files.declaration import FollowedFiles
from tests.conformance.followed_files_source import LogDirectory

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.testing.source_rig import MakeRig

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = pytest.mark.timeout(240, func_only=True)


class TestFollowedFiles(SourceConformance):
    """Exactly once."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> LogDirectory:
        return LogDirectory(tmp_path)


def test_a_throttled_receiver_says_exactly_how_far_a_file_goes(tmp_path: Path, make_rig: MakeRig) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    line = b"%07d\n"
    path = logs / "a.log"
    path.write_bytes(b"".join(line % number for number in range(2_000)))
    rig = make_rig(FollowedFiles(path=f"{logs}/*.log", poll_interval="100ms"), receiver_max_rate=100)
    process = rig.start()

    def said() -> tuple[int, int, int, float]:
        """Return the registered position, the file's size as reported, what is unread, and the oldest's age."""
        found = rig.execute(
            "SELECT position, source_position, unread, extract(epoch FROM clock_timestamp() - oldest_unread_at) "
            "FROM forebay.source_progress WHERE position > 0 AND source_position > 0"
        )
        row = next(iter(found), (0, 0, 0, 0))
        return int(row[0]), int(row[1]), int(row[2]), float(row[3] or 0)

    eventually(lambda: said()[1] == path.stat().st_size, "the file's size")
    first = said()[3]
    for _ in range(3):
        with path.open("ab") as file:
            file.write(line % 0)
        size = path.stat().st_size
        eventually(lambda size=size: said()[1] == size, "the new size, while it is throttled")  # type: ignore[misc]
        position, end, unread, age = said()
        assert 0 < position < end
        assert (unread, unread % len(line % 0)) == (end - position, 0)
        # The beginning of what is unread was there at the first look, with the rest.
        assert age > first
    stop(process)
