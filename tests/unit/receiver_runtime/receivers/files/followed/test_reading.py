"""Check the reading of followed files: lines, unfinished lines, dead letters, and what stays open."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import LETTER_BYTES
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tracker_store.blocks.blocks import Position

DESCRIPTORS = Path("/proc/self/fd")


def test_lines_have_path_offset_and_time(tmp_path: Path) -> None:
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
def test_with_complete_after_a_last_line_becomes_a_record(tmp_path: Path, before: list[str]) -> None:
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


def test_long_lines_and_invalid_text_become_dead_letters_and_the_rest_is_read(tmp_path: Path) -> None:
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
    assert [(letter.data, letter.left_out) for letter in large] == [
        (b"x" * LETTER_BYTES, 5_000_000 - LETTER_BYTES),
        (b"y" * 2000 + b"\r", 0),
    ]
    assert [letter.data for letter in letters if letter.reason is DeadLetterReason.INVALID_ENCODING] == [b"\xff\xfe"]
    assert reader.catalog._known._positions == {}
    assert [at for name, at in log.positions.items() if "+" not in name] == [Position(0, path.stat().st_size)]


def test_an_unfinished_compressed_file_is_read_once_complete(tmp_path: Path) -> None:
    log = Log()
    data = gzip.compress(b"".join(b"line %d\n" % number for number in range(10_000)))
    (tmp_path / "a.log.1.gz").write_bytes(data[:-2000])
    reader = follow(tmp_path, log)
    reader.run()
    assert len(reader.supervisor.errors) == 1
    (tmp_path / "a.log.1.gz").write_bytes(data)
    reader.run()
    assert log.values == [f"line {number}" for number in range(10_000)]


def test_a_deleted_file_is_read_to_its_end_while_it_is_open(tmp_path: Path) -> None:
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


def test_with_a_rate_limit_pieces_are_small(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", *(f"line {number}" for number in range(100)))
    reader = follow(tmp_path, log)
    reader.supervisor.most_lines = 10
    reader.run()
    assert reader.supervisor.blocks == 10
    assert log.values == [f"line {number}" for number in range(100)]
