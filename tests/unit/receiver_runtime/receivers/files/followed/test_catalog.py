"""Check followed files some of which other receivers read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_conflict_drops_unregistered_lines_and_continues_from_the_log(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    reader = follow(tmp_path, log)
    other = follow(tmp_path, log)
    other.supervisor.holds = reader.supervisor.holds = True
    reader.step()
    other.step()
    other.supervisor.register()
    write(tmp_path / "a.log", "three")
    reader.step()
    reader.supervisor.register()
    reader.supervisor.holds = False
    reader.run()
    assert log.values == ["one", "two", "three"]
    assert any("another receiver has read on" in error for error in reader.supervisor.errors)


def test_files_of_other_receivers_are_not_read(tmp_path: Path) -> None:
    log = Log()
    for number in range(20):
        write(tmp_path / f"{number}.log", f"line of {number}")
    readers = [follow(tmp_path, log) for _ in range(2)]
    for which, reader in enumerate(readers):
        reader.sharing.ours = lambda key, which=which: int(key[-1], 16) % 2 == which  # type: ignore[misc]
        reader.run()
    assert len(log.values) == 20
    assert all(reader.supervisor.blocks for reader in readers)
    assert all(reader.supervisor.errors == [] for reader in readers)
