"""Files that all begin with the same line, as a header is: none is taken for another that is gone."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.files_rig import Log
from tests.unit.receiver_runtime.receivers.test_followed_files import compress, copy_and_cut, follow, write

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "time,host,value"


@pytest.mark.parametrize("is_down", [True, False])
@pytest.mark.parametrize("keeps_inode", [True, False])
def test_a_longer_file_is_not_taken_for_a_deleted_one(tmp_path: Path, *, is_down: bool, keeps_inode: bool) -> None:
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


def test_a_compressed_file_is_not_taken_for_a_deleted_one(tmp_path: Path) -> None:
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
def test_of_many_alike_a_copy_is_taken_for_the_right_one(tmp_path: Path, how: str) -> None:
    log = Log()
    for name in "abc":
        write(tmp_path / f"{name}.log", HEADER, f"1,{name},1")
    follow(tmp_path, log).run(10)
    write(tmp_path / "b.log", "1,b,2")
    # No inode is given out anew.
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


def test_compressed_files_that_differ_at_their_end_alone_are_both_read(tmp_path: Path) -> None:
    log = Log()
    same = [f"{number:06d}" for number in range(2000)]
    reader = follow(tmp_path, log)
    for name in "ab":
        data = "".join(f"{line}\n" for line in [*same, name]).encode()
        (tmp_path / f"{name}.log.gz").write_bytes(gzip.compress(data, compresslevel=0, mtime=0))
        reader.run(10)
    assert sorted(log.values) == sorted([*same, *same, "a", "b"])


def test_cut_while_nobody_looked_and_longer_than_before(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1")
    follow(tmp_path, log).run()
    copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
    write(tmp_path / "a.log", HEADER, "2,a,1", "2,a,2", "2,a,3")
    follow(tmp_path, log).run(10)
    assert sorted(log.values) == sorted([HEADER, "1,a,1", HEADER, "2,a,1", "2,a,2", "2,a,3"])


def test_a_compressed_file_that_is_taken_for_another_after_a_start_is_told(tmp_path: Path) -> None:
    log = Log()
    same = [f"{number:06d}" for number in range(2000)]
    write(tmp_path / "a.log", *same, "a")
    follow(tmp_path, log).run()
    (tmp_path / "a.log").rename(tmp_path / "a")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in [*same, "b"]).encode()))
    reader = follow(tmp_path, log)
    reader.run(10)
    assert log.values == [*same, "a"]
    [error] = reader.supervisor.errors
    assert f"{tmp_path}/b.log.gz is taken for what was read of here/" in error
    assert "first 4096 bytes" in error
    assert "up to 14002 are not compared" in error
    again = follow(tmp_path, log)
    again.run(10)
    assert again.supervisor.errors == []


def test_with_start_latest_too(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1")
    follow(tmp_path, log, start="latest").run()
    (tmp_path / "a.log").rename(tmp_path / "a")
    write(tmp_path / "b.log", HEADER, "2,a,1", "2,a,2")
    follow(tmp_path, log, start="latest").run(10)
    assert log.values == [HEADER, "2,a,1", "2,a,2"]


def test_a_second_print_is_forgotten_with_its_content(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1")
    write(tmp_path / "b.log", "other", "lines")
    reader = follow(tmp_path, log, forget_after="1h")
    reader.run()
    assert len([name for name in log.positions if "+" in name]) == 4
    (tmp_path / "a.log").unlink()
    reader.run(70)
    for _ in range(64):
        reader.step(60.0)
    assert len(log.forgotten) == len(log.positions) == 3


def test_what_was_never_told_apart_and_is_gone_is_told(tmp_path: Path) -> None:
    """Of a file of one unfinished line nothing is known: it is lost, and not silently."""
    log = Log()
    (tmp_path / "a.log").write_text("no newline")
    (tmp_path / "empty.log").write_text("")
    reader = follow(tmp_path, log)
    reader.run()
    os.unlink(tmp_path / "a.log")  # noqa: PTH108  as it is
    (tmp_path / "empty.log").unlink()
    reader.run()
    [error] = reader.supervisor.errors
    assert "a.log is gone: its 10 bytes were seen and not read" in error
