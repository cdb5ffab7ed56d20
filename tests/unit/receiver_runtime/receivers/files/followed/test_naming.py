"""Check followed files that are renamed, copied, truncated or compressed: each content continues under its name."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import compress, copy_and_cut, follow, write

if TYPE_CHECKING:
    from pathlib import Path


def test_a_renamed_file_is_read_to_its_end_and_a_new_one_from_its_start(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "two")
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    write(tmp_path / "a.log.1", "three")
    write(tmp_path / "a.log", "four")
    reader.run()
    assert sorted(log.values) == ["four", "one", "three", "two"]
    reader.close()
    again = follow(tmp_path, log)
    write(tmp_path / "a.log.1", "five")
    again.run()
    assert sorted(log.values) == ["five", "four", "one", "three", "two"]
    assert reader.supervisor.errors == again.supervisor.errors == []


@pytest.mark.parametrize("is_seen_before", [True, False])
def test_after_copytruncate_nothing_is_lost_or_doubled(tmp_path: Path, *, is_seen_before: bool) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "three")
    if is_seen_before:
        shutil.copy(tmp_path / "a.log", tmp_path / "a.log.1")
        reader.step()
        os.truncate(tmp_path / "a.log", 0)
    else:
        copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
    write(tmp_path / "a.log", "four is longer than all that was there", "five")
    reader.run(10)
    assert sorted(log.values) == ["five", "four is longer than all that was there", "one", "three", "two"]
    assert log.lost() == 0
    assert "was truncated" in reader.supervisor.errors[0]
    follow(tmp_path, log).run(10)
    assert len(log.values) == 5


def test_copytruncate_between_two_runs(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    follow(tmp_path, log).run()
    write(tmp_path / "a.log", "three")
    copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
    write(tmp_path / "a.log", "four")
    follow(tmp_path, log).run(10)
    assert sorted(log.values) == ["four", "one", "three", "two"]
    assert log.lost() == 0


def test_after_copytruncate_of_files_with_the_same_first_line_nothing_is_doubled(tmp_path: Path) -> None:
    """Both contents begin with the same line."""
    log = Log()
    write(tmp_path / "a.log", "header", "one")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "two")
    copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
    write(tmp_path / "a.log", "header", "three")
    reader.run(10)
    assert sorted(log.values) == ["header", "header", "one", "three", "two"]
    follow(tmp_path, log).run(10)
    assert len(log.values) == 5


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".zst"])
def test_a_compressed_file_is_not_read_twice_and_its_rest_is_read(tmp_path: Path, suffix: str) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    reader = follow(tmp_path, log)
    reader.run()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    write(tmp_path / "a.log.1", "three")
    compress(tmp_path / "a.log.1", tmp_path / f"a.log.2{suffix}")
    write(tmp_path / "a.log", "four")
    reader.run(5)
    assert sorted(log.values) == ["four", "one", "three", "two"]
    assert sum("/z" in name for name in log.positions) == 1
    (tmp_path / f"a.log.2{suffix}").rename(tmp_path / f"a.log.3{suffix}")
    again = follow(tmp_path, log)
    again.run(5)
    assert len(log.values) == 4
    assert again.catalog._open._decompressed._open == {}


def test_file_and_compressed_copy_exist_during_compression(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    reader = follow(tmp_path, log)
    reader.run()
    (tmp_path / "a.log.gz").write_bytes(gzip.compress((tmp_path / "a.log").read_bytes()))
    reader.run(20)
    assert log.values == ["one", "two"]
    (tmp_path / "a.log").unlink()
    reader.run(10)
    assert log.values == ["one", "two"]


def test_a_reused_inode_is_another_file(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    inode = (tmp_path / "a.log").stat().st_ino
    follow(tmp_path, log).run()
    # Write it in place: it looks like a deletion on a file system that reuses the inode.
    (tmp_path / "a.log").write_text("another\n")
    assert (tmp_path / "a.log").stat().st_ino == inode
    follow(tmp_path, log).run(10)
    assert log.values == ["one", "another"]
    assert len({name for name in log.positions if f"/{inode:x}/" in name}) == 2


def test_files_with_the_same_beginning_are_all_read(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "header", "one")
    write(tmp_path / "b.log", "header", "two")
    write(tmp_path / "c.log", "header")
    reader = follow(tmp_path, log)
    reader.run(10)
    assert sorted(log.values) == ["header", "header", "header", "one", "two"]
    follow(tmp_path, log).run(10)
    assert len(log.values) == 5


@pytest.mark.parametrize("lines", [1, 2])
def test_more_first_lines_distinguish_files(tmp_path: Path, lines: int) -> None:
    """Two files have the same first line, and no more was read of the one that is gone."""
    log = Log()
    write(tmp_path / "a.log", "header")
    follow(tmp_path, log, fingerprint_lines=lines).run()
    (tmp_path / "a.log").rename(tmp_path / "gone")
    write(tmp_path / "b.log", "header", "two")
    follow(tmp_path, log, fingerprint_lines=lines).run(10)
    assert log.values == ["header", "two"]
    assert [
        name.partition("/")[2].partition("/")[2].partition("-")[0] for name in log.positions if "+" not in name
    ] == ["7" if lines == 1 else "11"]
