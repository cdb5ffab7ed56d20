"""Check followed files that all begin with the same header line: none is mistaken for another that is gone."""

from __future__ import annotations

import gzip
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import compress, copy_and_cut, follow, write

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "time,host,value"


@pytest.mark.parametrize("is_down", [True, False])
@pytest.mark.parametrize("keeps_inode", [True, False])
def test_a_longer_file_is_not_mistaken_for_a_deleted_one(tmp_path: Path, *, is_down: bool, keeps_inode: bool) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1")
    reader = follow(tmp_path, log)
    reader.run()
    if is_down:
        reader.close()
    if keeps_inode:
        (tmp_path / "a.log").write_text(f"{HEADER}\n2,a,1\n2,a,2\n")
    else:
        write(tmp_path / "new", HEADER, "2,a,1", "2,a,2")
        (tmp_path / "a.log").unlink()
        (tmp_path / "new").rename(tmp_path / "b.log")
    (follow(tmp_path, log) if is_down else reader).run(10)
    assert log.values == [HEADER, "1,a,1", HEADER, "2,a,1", "2,a,2"]
    follow(tmp_path, log).run(10)
    assert len(log.values) == 5


def test_a_compressed_file_is_not_mistaken_for_a_deleted_one(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1", "1,a,2")
    follow(tmp_path, log).run()
    (tmp_path / "a.log").unlink()
    for number in (2, 3):
        path = tmp_path / f"b.log.{number}.gz"
        path.write_bytes(gzip.compress(f"{HEADER}\n{number},a,1\n{number},a,2\n".encode()))
        follow(tmp_path, log).run(10)
        path.unlink()
    assert log.values == [f"{HEADER}", "1,a,1", "1,a,2", HEADER, "2,a,1", "2,a,2", HEADER, "3,a,1", "3,a,2"]


@pytest.mark.parametrize("how", ["copied", "compressed", "renamed"])
def test_a_copy_of_one_of_many_similar_files_is_recognized(tmp_path: Path, how: str) -> None:
    log = Log()
    for name in "abc":
        write(tmp_path / f"{name}.log", HEADER, f"1,{name},1")
    follow(tmp_path, log).run(10)
    write(tmp_path / "b.log", "1,b,2")
    # Keep these inodes in use, so that they are not reused.
    (tmp_path / "a.log").rename(tmp_path / "a")
    (tmp_path / "c.log").rename(tmp_path / "c")
    match how:
        case "copied":
            shutil.copy(tmp_path / "b.log", tmp_path / "b.log.1")
            (tmp_path / "b.log").rename(tmp_path / "b")
        case "compressed":
            compress(tmp_path / "b.log", tmp_path / "b.log.gz")
        case _:
            (tmp_path / "b.log").rename(tmp_path / "b.log.1")
    follow(tmp_path, log).run(10)
    assert sorted(log.values) == sorted([*[HEADER] * 3, "1,a,1", "1,b,1", "1,c,1", "1,b,2"])


def test_compressed_files_that_differ_only_at_their_end_are_both_read(tmp_path: Path) -> None:
    log = Log()
    same = [f"{number:06d}" for number in range(2000)]
    reader = follow(tmp_path, log)
    for name in "ab":
        data = "".join(f"{line}\n" for line in [*same, name]).encode()
        (tmp_path / f"{name}.log.gz").write_bytes(gzip.compress(data, compresslevel=0, mtime=0))
        reader.run(10)
    assert sorted(log.values) == sorted([*same, *same, "a", "b"])


def test_a_file_truncated_between_two_runs_and_longer_than_before(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1")
    follow(tmp_path, log).run()
    copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
    write(tmp_path / "a.log", HEADER, "2,a,1", "2,a,2", "2,a,3")
    follow(tmp_path, log).run(10)
    assert sorted(log.values) == sorted([HEADER, "1,a,1", HEADER, "2,a,1", "2,a,2", "2,a,3"])


def test_a_compressed_file_shorter_than_what_was_read_is_another(tmp_path: Path) -> None:
    log = Log()
    same = [f"{number:06d}" for number in range(1000)]
    write(tmp_path / "a.log", *same, "a")
    follow(tmp_path, log).run()
    (tmp_path / "a.log").rename(tmp_path / "a")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in same[:-100]).encode()))
    follow(tmp_path, log).run(10)
    assert log.values == [*same, "a", *same[:-100]]


def test_a_first_line_longer_than_the_fingerprint_comes_once(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "x" * 5000, "two")
    follow(tmp_path, log).run()
    (tmp_path / "a.log").rename(tmp_path / "a.log.1")
    compress(tmp_path / "a.log.1", tmp_path / "a.log.1.gz")
    follow(tmp_path, log).run(5)
    assert log.values == ["x" * 5000, "two"]
    write(tmp_path / "b.log", "x" * 5000, "three")
    follow(tmp_path, log).run(5)
    assert log.values[2:] == ["x" * 5000, "three"]
    follow(tmp_path, log).run(5)
    assert len(log.values) == 4


def test_a_file_is_not_mistaken_for_a_deleted_one_that_is_still_open(tmp_path: Path) -> None:
    """Only the header was read of either; the deleted file, still open, shows what it has after the header."""
    log = Log()
    (tmp_path / "a.log").write_text(f"{HEADER}\n1,a")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "new", HEADER, "2,b,1")
    (tmp_path / "a.log").unlink()
    (tmp_path / "new").rename(tmp_path / "b.log")
    reader.run(10)
    assert log.values == [HEADER, "1,a", HEADER, "2,b,1"]


@pytest.mark.parametrize("lines", [1, 2])
def test_files_with_the_same_first_line_are_reported_once(tmp_path: Path, lines: int) -> None:
    log = Log()
    for name in "abc":
        write(tmp_path / f"{name}.log", HEADER, f"1,{name},1")
    reader = follow(tmp_path, log, fingerprint_lines=lines)
    reader.run(5)
    assert len(log.values) == 6
    told = [error for error in reader.supervisor.errors if "set fingerprint_lines to more lines" in error]
    assert len(told) == len(reader.supervisor.errors) == (lines == 1)
    assert all(f"{tmp_path}/b.log begins with the same line as {tmp_path}/a.log" in error for error in told)
