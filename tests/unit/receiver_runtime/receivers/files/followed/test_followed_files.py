"""Files that are followed, through whatever becomes of them; step by step, by a clock that the test moves."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.files.followed.catalog import FollowedCatalog
from receiver_runtime.sources.files import FollowedFiles
from tests.unit.receiver_runtime.receivers.files.files_rig import Log, Reader
from tracker_store.blocks import Position

DESCRIPTORS = Path("/proc/self/fd")


def follow(root: Path, log: Log, *, pattern: str = "*.log*", clock: Any = None, **fields: Any) -> Reader:  # noqa: ANN401
    settings = fields.pop("settings", {})
    source = FollowedFiles(path=f"{root}/{pattern}", **fields)
    return Reader(
        log,
        lambda receiver, sharing, host, clock: FollowedCatalog(source, receiver, sharing, host, clock=clock),
        clock=clock,
        **settings,
    )


def write(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}{end}" for line in lines))


def compress(path: Path, to: Path) -> None:
    data = path.read_bytes()
    match to.suffix:
        case ".gz":
            to.write_bytes(gzip.compress(data))
        case ".bz2":
            to.write_bytes(bz2.compress(data))
        case _:
            to.write_bytes(pa.compress(data, "zstd", asbytes=True))
    path.unlink()


def copy_and_cut(path: Path, to: Path) -> None:
    """As logrotate's copytruncate."""
    shutil.copy(path, to)
    os.truncate(path, 0)


def test_lines_come_with_their_places(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "zwei €", "three")
    os.utime(tmp_path / "a.log", ns=(0, 1_700_000_000_123_000_000))
    reader = follow(tmp_path, log)
    reader.run()
    path = str(tmp_path / "a.log")
    assert [(row["value"], row["path"], row["offset"]) for row in log.rows] == [
        ("one", path, 0),
        ("zwei €", path, 4),
        ("three", path, 13),
    ]
    assert {row["modified_at"].timestamp() for row in log.rows} == {1_700_000_000.123}
    write(tmp_path / "a.log", "four")
    reader.run(1)
    assert log.rows[-1]["offset"] == 19
    reader.close()


def test_a_renamed_file_is_read_to_its_end_and_the_new_one_from_its_beginning(tmp_path: Path) -> None:
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
def test_copied_and_cut_nothing_is_lost_and_nothing_comes_twice(tmp_path: Path, *, is_seen_before: bool) -> None:
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


def test_copied_and_cut_while_nobody_looked(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    follow(tmp_path, log).run()
    write(tmp_path / "a.log", "three")
    copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
    write(tmp_path / "a.log", "four")
    follow(tmp_path, log).run(10)
    assert sorted(log.values) == ["four", "one", "three", "two"]
    assert log.lost() == 0


def test_what_was_cut_without_a_copy_is_lost_by_numbers(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "x" * 9_000_000)  # a line without its end is seen, and not read
    with (tmp_path / "a.log").open("r+") as file:
        file.truncate(9_000_000)
    reader.run(2)
    os.truncate(tmp_path / "a.log", 0)
    write(tmp_path / "a.log", "three")
    reader.run(10)
    assert log.values == ["one", "two", "three"]
    assert log.lost() == 0  # until a block goes in after it
    write(tmp_path / "a.log", "four")
    reader.run()
    assert log.lost() == 9_000_000 - 8
    assert any("bytes 8 up to 9000000, 8999992 of them, are lost" in error for error in reader.supervisor.errors)


def test_cut_and_begun_alike_is_the_next_generation(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "header", "one", "two")
    reader = follow(tmp_path, log)
    reader.run()
    os.truncate(tmp_path / "a.log", 0)
    write(tmp_path / "a.log", "header", "three")
    reader.run(10)
    assert log.values == ["header", "one", "two", "header", "three"]
    assert [at for name, at in log.positions.items() if "+" not in name] == [Position(1, 13)]
    follow(tmp_path, log).run(10)
    assert len(log.values) == 5


def test_begun_alike_copied_and_cut_nothing_comes_twice(tmp_path: Path) -> None:
    """The first line of each is the same."""
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


def test_a_compressed_file_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log = Log()
    data = gzip.compress(b"".join(b"line %d\n" % number for number in range(10_000)))
    (tmp_path / "a.log.1.gz").write_bytes(data[:-2000])
    reader = follow(tmp_path, log)
    reader.run()
    assert len(reader.supervisor.errors) == 1
    (tmp_path / "a.log.1.gz").write_bytes(data)
    reader.run()
    assert log.values == [f"line {number}" for number in range(10_000)]


def test_while_a_file_is_being_compressed_both_are_there(tmp_path: Path) -> None:
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


def test_a_last_line_waits_for_its_newline(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    write(tmp_path / "a.log", "tw", end="")
    reader = follow(tmp_path, log)
    reader.run(60)
    assert log.values == ["one"]
    write(tmp_path / "a.log", "o")
    reader.run()
    assert log.values == ["one", "two"]


@pytest.mark.parametrize("before", [["one"], []])
def test_or_is_a_record_after_a_time(tmp_path: Path, before: list[str]) -> None:
    log = Log()
    write(tmp_path / "a.log", *before)
    write(tmp_path / "a.log", "tw", end="")
    reader = follow(tmp_path, log, complete_after="5s")
    reader.run(4)
    assert log.values == before
    reader.run(4)
    assert log.values == [*before, "tw"]
    write(tmp_path / "a.log", "o")
    reader.run(4)
    again = follow(tmp_path, log, complete_after="5s")
    again.run(10)
    assert log.values == [*before, "tw", "o"]


def test_long_lines_and_invalid_text_go_aside_and_the_rest_comes(tmp_path: Path) -> None:
    log = Log()
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n" + b"x" * 5_000_000 + b"\ntwo\n\xff\xfe\n" + b"y" * 2000 + b"\r\nthree\n")
    reader = follow(tmp_path, log, max_record_bytes=1000)
    reader.run()
    assert [(row["value"], row["offset"]) for row in log.rows] == [
        ("one", 0),
        ("two", 5_000_005),
        ("three", 5_002_014),
    ]
    letters = reader.supervisor.letters
    large = [letter for letter in letters if letter.reason is DeadLetterReason.RECORD_TOO_LARGE]
    assert b"".join(letter.data for letter in large[:-1]) == b"x" * 5_000_000
    assert [letter.part for letter in large[:-1]] == [0, 1, 2, 3, 4]
    assert large[-1].data == b"y" * 2000 + b"\r"
    assert [letter.data for letter in letters if letter.reason is DeadLetterReason.INVALID_ENCODING] == [b"\xff\xfe"]
    assert reader.catalog._known._positions == {}
    assert [at for name, at in log.positions.items() if "+" not in name] == [Position(0, path.stat().st_size)]


def test_start_latest_reads_only_what_comes_and_later_files_whole(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "old", "begun", end="\n")
    write(tmp_path / "a.log", "be", end="")
    (tmp_path / "a.log.1.gz").write_bytes(gzip.compress(b"older\n"))
    reader = follow(tmp_path, log, start="latest")
    reader.run()
    write(tmp_path / "a.log", "gun")
    write(tmp_path / "b.log", "new")
    reader.run()
    assert sorted(log.values) == ["begun", "new"]
    # A file that came while nobody looked is a later one.
    write(tmp_path / "c.log", "later")
    follow(tmp_path, log, start="latest").run()
    assert sorted(log.values) == ["begun", "later", "new"]


def test_a_deleted_file_is_read_to_its_end_as_long_as_it_is_open(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    write(tmp_path / "b.log", "other")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "two")
    (tmp_path / "a.log").unlink()
    reader.run(10)
    assert sorted(log.values) == ["one", "other", "two"]
    assert reader.supervisor.errors == []


def test_what_was_deleted_unread_is_lost_by_numbers(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    write(tmp_path / "b.log", "other")
    reader = follow(tmp_path, log)
    reader.run()
    reader.close()
    write(tmp_path / "a.log", "two")
    reader.catalog._schedule.hurry()
    reader.catalog.look()
    (tmp_path / "a.log").unlink()
    reader.run(10)
    write(tmp_path / "b.log", "another")
    reader.run()
    assert sorted(log.values) == ["another", "one", "other"]
    assert log.lost() == 4
    assert any("bytes 4 up to 8, 4 of them, are lost" in error for error in reader.supervisor.errors)


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    inode = (tmp_path / "a.log").stat().st_ino
    follow(tmp_path, log).run()
    # In place: what a file system that gives the inode out again makes of a deletion.
    (tmp_path / "a.log").write_text("another\n")
    assert (tmp_path / "a.log").stat().st_ino == inode
    follow(tmp_path, log).run(10)
    assert log.values == ["one", "another"]
    assert len({name for name in log.positions if f"/{inode:x}/" in name}) == 2


def test_files_that_begin_alike_are_all_read(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "header", "one")
    write(tmp_path / "b.log", "header", "two")
    write(tmp_path / "c.log", "header")
    reader = follow(tmp_path, log)
    reader.run(10)
    assert sorted(log.values) == ["header", "header", "header", "one", "two"]
    follow(tmp_path, log).run(10)
    assert len(log.values) == 5


def test_a_directory_that_is_away_is_told_once_and_nothing_is_lost(tmp_path: Path) -> None:
    root = tmp_path / "logs"
    root.mkdir()
    log = Log()
    write(root / "a.log", "one")
    reader = follow(root, log)
    reader.run()
    root.rename(tmp_path / "elsewhere")
    reader.run(20)
    assert [error for error in reader.supervisor.errors if "can't be listed" in error] == reader.supervisor.errors
    assert len(reader.supervisor.errors) == 1
    (tmp_path / "elsewhere").rename(root)
    write(root / "a.log", "two")
    reader.run()
    assert log.values == ["one", "two"]
    assert log.lost() == 0


def test_a_file_that_may_not_be_read_is_told_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    write(tmp_path / "b.log", "other")
    really_open = os.open

    def refuse(path: Any, flags: int, *more: Any, **named: Any) -> int:  # noqa: ANN401  as os.open takes them
        if str(path).endswith("a.log"):
            raise PermissionError(13, "Permission denied", path)
        return really_open(path, flags, *more, **named)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        reader = follow(tmp_path, log)
        reader.run(5)
    assert log.values == ["other"]
    assert len(reader.supervisor.errors) == 1
    assert "Permission denied" in reader.supervisor.errors[0]
    reader.run()
    assert sorted(log.values) == ["one", "other"]


def test_thousands_of_files_take_few_descriptors_and_few_blocks(tmp_path: Path) -> None:
    log = Log()
    for number in range(3000):
        write(tmp_path / f"{number}.log", f"line of {number}")
    reader = follow(tmp_path, log)
    before = len(list(DESCRIPTORS.iterdir()))
    reader.run(1)
    assert len(log.values) == 3000
    assert len(list(DESCRIPTORS.iterdir())) - before <= 200
    assert reader.supervisor.blocks < 5
    reader.close()
    assert len(list(DESCRIPTORS.iterdir())) <= before


def test_a_conflict_drops_what_was_read_and_reads_on_from_the_log(tmp_path: Path) -> None:
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


def test_what_is_another_s_is_not_read(tmp_path: Path) -> None:
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


def test_with_a_rate_limit_pieces_are_small(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", *(f"line {number}" for number in range(100)))
    reader = follow(tmp_path, log)
    reader.supervisor.most_lines = 10
    reader.run()
    assert reader.supervisor.blocks == 10
    assert log.values == [f"line {number}" for number in range(100)]


def test_files_that_are_gone_for_long_are_forgotten(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one")
    write(tmp_path / "b.log", "other")
    reader = follow(tmp_path, log, forget_after="1h")
    reader.run()
    assert len(log.positions) == 4
    (tmp_path / "a.log").unlink()
    reader.run(70)
    assert len(log.positions) == 4
    for _ in range(62):
        reader.step(60.0)
    assert len(log.positions) == len(log.forgotten) == 2
    # While nothing is there, all of it may be away.
    (tmp_path / "b.log").unlink()
    for _ in range(200):
        reader.step(60.0)
    assert len(log.positions) == 2


@pytest.mark.parametrize("lines", [1, 2])
def test_more_first_lines_tell_files_apart(tmp_path: Path, lines: int) -> None:
    """Two have the same first line, and no more was read of the one that is gone."""
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
