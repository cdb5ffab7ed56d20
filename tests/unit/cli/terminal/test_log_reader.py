"""Test how log files are read: the newest lines, across rolled files, and on from there while the log is rolled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.cli.terminal.log_reader import LogFollower, newest_lines
from tracker_store.host.log_files import open_log, roll

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "agent.log"


def write(log: Path, text: str) -> None:
    with open_log(log) as file:
        file.write(text.encode())


@pytest.mark.parametrize("count", [0, 1, 2, 7, 100])
@pytest.mark.parametrize("length", [0, 3, 40_000])
def test_the_newest_lines_are_those_at_the_end(log: Path, count: int, length: int) -> None:
    lines = [f"{number} {'x' * length}" for number in range(7)]
    write(log, "".join(f"{line}\n" for line in lines))
    assert newest_lines(log, count)[0] == (lines[-count:] if count else [])


def test_lines_of_rolled_files_come_before_those_of_the_log(log: Path) -> None:
    for number in range(3):
        write(log, f"{number}a\n{number}b\n")
        if number < 2:
            assert roll(log, most_bytes=1)
    assert newest_lines(log, 5)[0] == ["0b", "1a", "1b", "2a", "2b"]
    assert newest_lines(log, 100)[0] == ["0a", "0b", "1a", "1b", "2a", "2b"]


def test_a_line_without_its_newline_is_shown_once(log: Path) -> None:
    write(log, "one\ntw")
    assert newest_lines(log, 9)[0] == ["one", "tw"]
    lines, position = newest_lines(log, 9, whole=True)
    assert lines == ["one"]
    follower = LogFollower(log, position)
    assert list(follower.read()) == []
    write(log, "o\nthree\n")
    assert list(follower.read()) == ["two", "three"]


def test_bytes_that_are_no_text_are_shown_as_escapes(log: Path) -> None:
    log.write_bytes(b"\xff\x00a\n")
    assert newest_lines(log, 1)[0] == ["\\xff\x00a"]


@settings(max_examples=50)
@given(steps=st.lists(st.sampled_from(["write", "part", "roll", "read"]), max_size=30))
def test_a_follower_gives_each_line_once_whatever_is_rolled(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    log = tmp_path_factory.mktemp("logs") / "agent.log"
    write(log, "begin\n")
    follower = LogFollower(log, newest_lines(log, 0, whole=True)[1])
    written, read, rolled = "", list[str](), False
    for number, step in enumerate(steps):
        text = ""
        if step == "read":
            read += follower.read()
            rolled = False
        elif step == "roll" and not rolled:
            # A log is rolled when it is large, and the follower has read nearly all of it.
            large = f"{number} large {'x' * 10_000}\n"
            write(log, large)
            read += follower.read()
            write(log, text := f"{number} between\n{number}-")
            rolled = roll(log, most_bytes=1)
            written += large + text
        else:
            write(log, text := f"{number}-" if step == "part" else f"{number} line\n")
            written += text
    read += follower.read()
    assert read == written.split("\n")[:-1]


def test_a_log_that_is_gone_gives_nothing(log: Path) -> None:
    write(log, "one\n")
    follower = LogFollower(log, 4)
    log.unlink()
    assert list(follower.read()) == []
    with pytest.raises(FileNotFoundError):
        newest_lines(log, 1)
