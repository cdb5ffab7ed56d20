"""Check a receiver that is taken for dead after it read the first part of a file, and wakes up after another read it.

The first to register the content in the driver log decides: the content has one name, whatever inode it has by then.
"""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write

if TYPE_CHECKING:
    from pathlib import Path


def _go_on_elsewhere(root: Path, how: str) -> None:
    path = root / "a.log"
    match how:
        case "compressed":
            (root / "a.log.1.gz").write_bytes(gzip.compress(path.read_bytes()))
            # Keep the inode in use, so that it is not reused.
            path.rename(root / "a")
        case "copied":
            shutil.copy(path, root / "a.log.1")
            path.rename(root / "a")
        case _:
            shutil.copy(path, root / "a.log.1")
            os.truncate(path, 0)


@pytest.mark.parametrize("lines", [1, 3])
@pytest.mark.parametrize("how", ["compressed", "copied", "copied and cut"])
@pytest.mark.parametrize("knows_already", [False, True])
def test_lines_that_the_sleeping_receiver_read_first_come_once(
    tmp_path: Path, how: str, lines: int, *, knows_already: bool
) -> None:
    log = Log()
    # Each receiver takes itself to be alone. The other one loads the known contents before or after the first sees the
    # file.
    other = follow(tmp_path, log) if knows_already else None
    asleep = follow(tmp_path, log)
    asleep.supervisor.holds = True
    written = [f"line {number}" for number in range(lines)]
    write(tmp_path / "a.log", *written)
    asleep.step()
    assert log.values == []
    _go_on_elsewhere(tmp_path, how)
    other = other or follow(tmp_path, log)
    other.run(10)
    assert log.values == written
    asleep.supervisor.register()
    asleep.supervisor.holds = False
    for _ in range(5):
        asleep.run(1)
        other.run(1)
    assert log.values == written
    assert any("another receiver has read on" in error for error in asleep.supervisor.errors)


def test_two_receivers_that_see_a_file_in_two_places_use_one_name(tmp_path: Path) -> None:
    """One named it while the file was the other's, and continues with a copy of it; the other knows only the copy."""
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    first = follow(tmp_path, log)
    first.sharing.is_alone = False
    first.sharing.ours = lambda _: False
    first.step()
    shutil.copy(tmp_path / "a.log", tmp_path / "a.log.1")
    os.truncate(tmp_path / "a.log", 0)
    first.step()
    second = follow(tmp_path, log)
    second.run(3)
    assert log.values == ["one", "two"]
    first.sharing.ours = lambda _: True
    first.catalog.release()
    for file in first.catalog._bindings.files():
        # This happens if it learns that the file is its own before it asks what is known.
        file.ours = True
    first.run(10)
    assert log.values == ["one", "two"]


def test_a_truncation_followed_by_anothers_reading_is_not_seen_twice(tmp_path: Path) -> None:
    """One receiver sees the truncation in the same look in which it sees that the other read what came afterwards."""
    log = Log()
    write(tmp_path / "a.log", "line 1", "line 2", "line 3")
    first, second = follow(tmp_path, log), follow(tmp_path, log)
    for reader in (first, second):
        reader.sharing.is_alone = False
    second.sharing.ours = lambda _: False
    first.step()
    second.step()
    second.reader._load()
    second.step()
    os.truncate(tmp_path / "a.log", 0)
    write(tmp_path / "a.log", "line 4")
    first.step()
    first.step()
    second.sharing.ours = lambda _: True
    second.run(10)
    first.run(10)
    assert log.values == ["line 1", "line 2", "line 3", "line 4"]
