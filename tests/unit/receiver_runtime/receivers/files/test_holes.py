"""Check that holes of NULs are passed over, with the lines around them kept and at their places."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from receiver_runtime.receivers.files.content import OpenedFile
from receiver_runtime.receivers.files.holes import LONG_RUN
from receiver_runtime.receivers.files.records import Limits, LineReader, Reading
from receiver_runtime.receivers.framing import LETTER_BYTES
from tests.support.searches import examples
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import copy_and_cut, follow, write
from tests.unit.receiver_runtime.receivers.files.test_arriving import arriving, put

if TYPE_CHECKING:
    from pathlib import Path

MOST = 40


def read(
    data: bytes, limits: Limits, *, ends: bool, encoding: str = "utf-8"
) -> tuple[list[tuple[str, int]], list[bytes], int, int]:
    """Return lines with places, dead letters, the position at the end, and how much was passed over."""
    reader = LineReader(encoding=encoding, max_record_bytes=MOST)
    reading = Reading("a")
    lines: list[tuple[str, int]] = []
    letters: list[bytes] = []
    hole = 0
    for _ in range(2 * len(data) + 20):
        before = reading.position, reading.large
        part = reader.read(reading, OpenedFile(pa.BufferReader(data)), limits, path="a", modified_ms=1, ends=ends)
        letters += [letter.data for letter in part.letters]
        hole += 0 if part.hole is None else part.hole.nbytes
        if part.batch is not None:
            part.batch.validate(full=True)
            lines += zip(part.batch.column("value").to_pylist(), part.batch.column("offset").to_pylist(), strict=True)
        if not part.more and (reading.position, reading.large) == before:
            return lines, letters, reading.position, hole
    raise AssertionError("it does not come to an end")


def model(
    data: bytes, *, ends: bool, most: int = MOST, run: int = LONG_RUN
) -> tuple[list[tuple[str, int]], list[bytes]]:
    """Do the same in plain Python, byte by byte."""
    lines: list[tuple[str, int]] = []
    letters: list[bytes] = []
    at = 0

    def add(line: bytes, place: int) -> None:
        if len(line) > most:
            letters.append(line)
        else:
            lines.append((line.decode(), place))

    while at < len(data):
        behind = len(data) - len(data[at:].lstrip(b"\0"))
        if behind > at:
            if behind == len(data) and not ends:
                break
            at = behind
            continue
        newline = data.find(b"\n", at)
        hole = data.find(bytes(run), at, None if newline < 0 else newline)
        if hole >= 0:
            stop = len(data) - len(data[hole:].lstrip(b"\0"))
            if stop == len(data) and not ends:
                break
            add(data[at:hole], at)
            # A newline right behind the hole ends the line that the hole has cut.
            at = stop + (data[stop : stop + 1] == b"\n")
        elif newline >= 0:
            add(data[at:newline], at)
            at = newline + 1
        elif ends:
            add(data[at:], at)
            at = len(data)
        else:
            break
    return lines, letters


PIECES = st.one_of(
    st.sampled_from([b"\n", b"one\n", b"two", b"x" * 50, b"x" * MOST, b"\0", b"\0\0\n", b"a\0b"]),
    st.sampled_from([1, 5, LONG_RUN - 1, LONG_RUN, LONG_RUN + 1, 3 * LONG_RUN]).map(bytes),
)


@pytest.mark.search
@settings(max_examples=examples(600), deadline=None)
@given(st.lists(PIECES, max_size=9).map(b"".join), st.booleans(), st.sampled_from([(2**20, 2**20), (3, 1), (600, 2)]))
@example(bytes(3 * 2**20) + b"one\n", True, (2**18, 100))  # noqa: FBT003
@example(bytes(2**20) + b"one\n", False, (2**20, 100))  # noqa: FBT003
def test_any_holes_are_passed_over_in_pieces_of_any_size(data: bytes, ends: bool, limits: tuple[int, int]) -> None:
    lines, letters, _, _ = read(data, Limits(*limits), ends=ends)
    expected_lines, expected_letters = model(data, ends=ends)
    assert lines == expected_lines
    assert letters == [letter[:LETTER_BYTES] for letter in expected_letters]


WIDE = ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")


@pytest.mark.search
@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(PIECES, max_size=9).map(b"".join),
    st.booleans(),
    st.sampled_from([(2**20, 2**20), (3, 1), (600, 2)]),
    st.sampled_from(WIDE),
)
@example(bytes(3 * 2**19) + b"one\n", True, (2**18, 100), "utf-16-be")  # noqa: FBT003
@example(b"x" * 2**20 + bytes(600) + b"one\n", True, (2**18, 100), "utf-16-le")  # noqa: FBT003
def test_holes_in_wide_text_are_those_of_the_text(
    data: bytes, ends: bool, limits: tuple[int, int], encoding: str
) -> None:
    size = 2 if "16" in encoding else 4
    wide = data.decode().encode(encoding)
    lines, letters, _, _ = read(wide, Limits(*limits), ends=ends, encoding=encoding)
    expected_lines, expected_letters = model(data, ends=ends, most=MOST // size, run=LONG_RUN // size)
    assert lines == [(line, place * size) for line, place in expected_lines]
    assert letters == [letter.decode().encode(encoding)[:LETTER_BYTES] for letter in expected_letters]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_the_line_behind_a_hole_in_wide_text_is_kept(tmp_path: Path, encoding: str) -> None:
    log = Log()
    reader = follow(tmp_path, log, encoding=encoding)
    with (tmp_path / "a.log").open("wb", buffering=0) as file:
        file.write(("one\n" + "x" * 5000 + "\n").encode(encoding))
        reader.run()
        copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
        file.write("two\n".encode(encoding))
        reader.run()
        file.write("three\n".encode(encoding))
        reader.run(5)
    assert [value for value in log.values if value[0] != "x"] == ["one", "two", "three"]
    assert reader.supervisor.letters == []


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("most", [6, 2**20])
@pytest.mark.parametrize("line", ["x", "x" * 100])
def test_a_newline_behind_a_hole_may_come_in_halves(line: str, most: int, encoding: str) -> None:
    """It ends the line before the hole, and is no empty line."""
    reader, reading = LineReader(encoding=encoding, max_record_bytes=MOST), Reading("a")
    written = line.encode(encoding) + bytes(2 * LONG_RUN) + "\ntwo\n".encode(encoding)
    values: list[str] = []
    for end in (len(written) - 9, len(written)):
        content, more = OpenedFile(pa.BufferReader(written[:end])), True
        while more:
            part = reader.read(reading, content, Limits(most, 100), path="a", modified_ms=1, ends=False)
            values += [] if part.batch is None else part.batch.column("value").to_pylist()
            more = part.more
    assert values == ([line] if len(line) <= MOST else []) + ["two"]


class Growing:
    """A file whose rest is written as soon as its first bytes were read to their end, behind a hole."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size
        self._is_searched = False

    def next_data(self, offset: int) -> int:
        self._is_searched = True
        return offset

    def read(self, offset: int, size: int) -> bytes:
        data = self._data[offset : min(offset + size, self._size)]
        if self._is_searched:
            self._size = len(self._data)
        return data

    def close(self) -> None:
        pass


@pytest.mark.parametrize("encoding", ["utf-16-be", "utf-32-be"])
@pytest.mark.parametrize("most", [6, 2**20])
@pytest.mark.parametrize("line", ["x", "x" * 100])
def test_a_file_may_grow_while_the_end_of_its_hole_is_looked_for(line: str, most: int, encoding: str) -> None:
    """The writer was in the middle of a newline, which begins with NUL as the hole does."""
    reader, reading = LineReader(encoding=encoding, max_record_bytes=MOST), Reading("a")
    before = line.encode(encoding) + bytes(2 * LONG_RUN)
    content = Growing(before + "\ntwo\nthree\n".encode(encoding), len(before) + 1)
    values: list[str] = []
    for _ in range(200):
        part = reader.read(reading, content, Limits(most, 100), path="a", modified_ms=1, ends=False)
        values += [] if part.batch is None else part.batch.column("value").to_pylist()
    assert values == ([line] if len(line) <= MOST else []) + ["two", "three"]


def test_what_is_behind_a_hole_is_looked_at_too(tmp_path: Path) -> None:
    log = Log()
    (tmp_path / "a.log").write_bytes(bytes(10**6) + "text without a mark\n".encode("utf-16-le") * 50)
    reader = follow(tmp_path, log)
    reader.run(5)
    assert log.values == []
    assert "no text in utf-8" in next(iter(reader.supervisor.degraded.values()))


@pytest.mark.parametrize("hole", [0, 4, 1001, 10**6])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("is_followed", [False, True])
def test_a_mark_behind_a_hole_belongs_to_no_record_and_names_the_encoding(
    tmp_path: Path, hole: int, encoding: str, is_followed: bool
) -> None:
    log = Log()
    put(tmp_path / "a.log", data=bytes(hole) + "\ufeffone ü\ntwo\n".encode(encoding))
    reader = follow(tmp_path, log) if is_followed else arriving(tmp_path, log)
    reader.run(5)
    assert log.values == ["one ü", "two"]
    assert sum("NUL bytes" in error for error in reader.supervisor.errors) == (hole > 0)
    if is_followed:
        # The next process continues behind both.
        with (tmp_path / "a.log").open("ab") as more:
            more.write("three\n".encode(encoding))
        follow(tmp_path, log).run(5)
        assert log.values == ["one ü", "two", "three"]


def test_a_hole_that_grows_does_not_decide_the_encoding(tmp_path: Path) -> None:
    log = Log()
    reader = follow(tmp_path, log)
    with (tmp_path / "a.log").open("wb", buffering=0) as file:
        file.write(bytes(2000))
        reader.run(3)
        file.write("\ufeffone\n".encode("utf-16-le"))
        reader.run(5)
    assert log.values == ["one"]


@pytest.mark.parametrize("size", [3, 300_000, 5 * 2**20])
def test_the_line_behind_a_hole_is_kept_after_copytruncate(tmp_path: Path, size: int) -> None:
    log = Log()
    reader = follow(tmp_path, log)
    with (tmp_path / "a.log").open("wb", buffering=0) as file:
        file.write(b"one\n" + b"x" * size + b"\n")
        reader.run()
        copy_and_cut(tmp_path / "a.log", tmp_path / "a.log.1")
        file.write(b"two\n")
        reader.run()
        file.write(b"three\n")
        reader.run(5)
    assert [value for value in log.values if not value.startswith("x")] == ["one", "two", "three"]
    assert [letter.left_out for letter in reader.supervisor.letters] == ([size - LETTER_BYTES] if size > 2**20 else [])
    assert sum("NUL bytes" in error for error in reader.supervisor.errors) == 1
    again = follow(tmp_path, log)
    again.run(5)
    assert len([value for value in log.values if not value.startswith("x")]) == 3


def test_a_sparse_hole_of_two_gigabytes_takes_no_time_and_no_room(tmp_path: Path) -> None:
    log = Log()
    with (tmp_path / "a.log").open("wb") as file:
        file.seek(2**31)
        file.write(b"one\n")
    reader = follow(tmp_path, log)
    reader.run()
    assert [(row["value"], row["offset"]) for row in log.rows] == [("one", 2**31)]
    assert reader.supervisor.letters == []
    assert f"a hole of {2**31:,} NUL bytes" in reader.supervisor.errors[0]


def test_a_file_that_was_made_with_nuls_is_read_as_it_is_written(tmp_path: Path) -> None:
    log = Log()
    path = tmp_path / "a.log"
    path.write_bytes(b"one\n" + bytes(2**21))
    reader = follow(tmp_path, log)
    reader.run()
    assert log.values == ["one"]
    descriptor = os.open(path, os.O_WRONLY)
    for number, line in enumerate([b"two\n", b"thr", b"ee\n"]):
        os.pwrite(descriptor, line, 4 + sum(map(len, [b"two\n", b"thr"][:number])))
        os.utime(path, ns=(0, 1_700_000_000_000_000_000 + number))
        reader.run()
    os.close(descriptor)
    assert log.values == ["one", "two", "three"]
    assert reader.supervisor.errors == []


def test_nuls_at_the_end_of_a_complete_file_are_a_hole(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt", data=b"one\ntwo" + bytes(1000), days=1)
    put(tmp_path / "b.txt", data=bytes(1000), days=2)
    reader = arriving(tmp_path, log)
    reader.run()
    assert log.values == ["one", "two"]
    arriving(tmp_path, log).run()
    assert log.values == ["one", "two"]


def test_lines_that_a_program_writes_with_their_nul(tmp_path: Path) -> None:
    log = Log()
    (tmp_path / "a.log").write_bytes(b"".join(b"line %d\n\0" % number for number in range(50_000)))
    reader = follow(tmp_path, log)
    reader.run()
    assert log.values == [f"line {number}" for number in range(50_000)]
    write(tmp_path / "a.log", "more")
    reader.run()
    assert log.values[-1] == "more"
    assert len(set(reader.supervisor.errors)) == 1
