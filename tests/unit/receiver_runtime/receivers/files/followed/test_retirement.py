"""Check followed files that are gone or truncated: what is lost, and what is forgotten."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "time,host,value"


def test_bytes_truncated_without_a_copy_are_counted_as_lost(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", "one", "two")
    reader = follow(tmp_path, log)
    reader.run()
    write(tmp_path / "a.log", "x" * 9_000_000)  # an unfinished line is seen but not read
    with (tmp_path / "a.log").open("r+") as file:
        file.truncate(9_000_000)
    reader.run(2)
    os.truncate(tmp_path / "a.log", 0)
    write(tmp_path / "a.log", "three")
    reader.run(10)
    assert log.values == ["one", "two", "three"]
    assert log.lost() == 0  # it is recorded with the next block
    write(tmp_path / "a.log", "four")
    reader.run()
    assert log.lost() == 9_000_000 - 8
    assert any("bytes 8 up to 9000000, 8999992 of them, are lost" in error for error in reader.supervisor.errors)


def test_a_truncated_file_with_the_same_first_line_is_the_next_generation(tmp_path: Path) -> None:
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


def test_unread_bytes_of_a_deleted_file_are_counted_as_lost(tmp_path: Path) -> None:
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


def test_files_gone_for_a_long_time_are_forgotten(tmp_path: Path) -> None:
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
    # While the directory is empty, all files may only be temporarily missing.
    (tmp_path / "b.log").unlink()
    for _ in range(200):
        reader.step(60.0)
    assert len(log.positions) == 2


def test_a_second_fingerprint_is_forgotten_with_its_content(tmp_path: Path) -> None:
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


def test_the_loss_of_a_file_without_a_fingerprint_is_reported(tmp_path: Path) -> None:
    """Check a file with only an unfinished line: nothing of it is registered; it is lost, and the loss is reported."""
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
