"""Files that all begin with the same line, as a header is: none is taken for another that is gone."""

from __future__ import annotations

import gzip
import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.test_followed_files import (
    compress,
    copy_and_cut,
    follow,
    write,
)

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


@pytest.mark.parametrize("blocks", [1, 7])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_after_a_start_a_file_is_compared_with_all_that_was_read(
    tmp_path: Path, suffix: str, blocks: int, *, waits: bool
) -> None:
    """Two that are the same for 14,000 bytes: one was read and is gone, the other comes while nobody reads."""
    log = Log()
    same = [f"{number:06d}" for number in range(2000)]
    lines = [*same, "a"]
    reader = follow(tmp_path, log)
    for block in range(blocks):
        write(tmp_path / "a.log", *lines[block * 2001 // blocks : (block + 1) * 2001 // blocks])
        reader.step()
    if waits or blocks > 1:
        # It stands still, and is marked where it ends.
        reader.run(12)
    assert log.values == lines
    (tmp_path / "a.log").rename(tmp_path / "a")
    data = (tmp_path / "a").read_bytes().replace(b"a", b"b")
    (tmp_path / f"b.log{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    follow(tmp_path, log).run(10)
    assert log.values == [*lines, *same, "b"]
    # The first one's own copy is known, with what was not read of it.
    with (tmp_path / "a").open("a") as file:
        file.write("end\n")
    data = (tmp_path / "a").read_bytes()
    (tmp_path / f"a.log.1{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    follow(tmp_path, log).run(10)
    assert log.values == [*lines, *same, "b", "end"]


def test_a_compressed_file_of_fewer_bytes_than_were_read_is_another(tmp_path: Path) -> None:
    log = Log()
    same = [f"{number:06d}" for number in range(1000)]
    write(tmp_path / "a.log", *same, "a")
    follow(tmp_path, log).run()
    (tmp_path / "a.log").rename(tmp_path / "a")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in same[:-100]).encode()))
    follow(tmp_path, log).run(10)
    assert log.values == [*same, "a", *same[:-100]]


def test_a_compressed_file_of_which_there_is_no_mark_is_told(tmp_path: Path) -> None:
    """As an earlier version read it."""
    log = Log()
    same = [f"{number:06d}" for number in range(3000)]
    write(tmp_path / "a.log", *same, "a")
    reader = follow(tmp_path, log)
    reader.run()
    [mark] = [name for name in log.positions if "+0:21002-" in name]
    del log.positions[mark]
    (tmp_path / "a.log").rename(tmp_path / "a")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in [*same, "b"]).encode()))
    reader = follow(tmp_path, log)
    reader.run(10)
    assert log.values == [*same, "a"]
    [error] = reader.supervisor.errors
    assert f"{tmp_path}/b.log.gz is taken for what was read of here/" in error
    assert "first 4096 bytes" in error
    assert "up to 21002 are not compared" in error
    again = follow(tmp_path, log)
    again.run(10)
    assert again.supervisor.errors == []


def test_a_first_line_of_more_than_is_compared_comes_once(tmp_path: Path) -> None:
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


def test_marks_are_few_and_those_behind_which_there_are_others_are_forgotten(tmp_path: Path) -> None:
    log = Log()
    reader = follow(tmp_path, log)
    for number in range(300):
        write(tmp_path / "a.log", f"{number:099d}")
        reader.step(0.1)
    size = (tmp_path / "a.log").stat().st_size

    def marks() -> list[int]:
        return sorted(
            int(name.rpartition(":")[2].partition("-")[0]) for name in log.positions if "+" in name and "=" not in name
        )

    assert marks() == [200, 800, 3200, 12_800]
    for _ in range(70):
        reader.step()
    assert marks() == [3200, size]
    assert len(log.values) == 300


def test_a_file_is_not_taken_for_a_deleted_one_that_is_open(tmp_path: Path) -> None:
    """No more than the header was read of either; what was begun behind it is seen in the one that is deleted."""
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
def test_that_files_begin_with_the_same_line_is_told_once(tmp_path: Path, lines: int) -> None:
    log = Log()
    for name in "abc":
        write(tmp_path / f"{name}.log", HEADER, f"1,{name},1")
    reader = follow(tmp_path, log, fingerprint_lines=lines)
    reader.run(5)
    assert len(log.values) == 6
    told = [error for error in reader.supervisor.errors if "set fingerprint_lines to more lines" in error]
    assert len(told) == len(reader.supervisor.errors) == (lines == 1)
    assert all(f"{tmp_path}/b.log begins with the same line as {tmp_path}/a.log" in error for error in told)


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
    assert len([name for name in log.positions if "+" in name]) == 6
    (tmp_path / "a.log").unlink()
    reader.run(70)
    for _ in range(64):
        reader.step(60.0)
    assert len(log.forgotten) == len(log.positions) == 4


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
