"""Check what is registered about followed files, so that they are found again after a start."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.receivers.files.followed.contents.second_fingerprints import SecondFingerprints
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import follow, write

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "time,host,value"


def test_start_latest_reads_only_new_lines_and_later_files_whole(tmp_path: Path) -> None:
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
    # A file that appeared while no reader ran counts as a later one.
    write(tmp_path / "c.log", "later")
    follow(tmp_path, log, start="latest").run()
    assert sorted(log.values) == ["begun", "later", "new"]


def test_files_with_one_header_are_distinguished_with_start_latest(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "a.log", HEADER, "1,a,1")
    follow(tmp_path, log, start="latest").run()
    (tmp_path / "a.log").rename(tmp_path / "a")
    write(tmp_path / "b.log", HEADER, "2,a,1", "2,a,2")
    follow(tmp_path, log, start="latest").run(10)
    assert log.values == [HEADER, "2,a,1", "2,a,2"]


def test_marks_are_few_and_those_followed_by_others_are_forgotten(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("blocks", [1, 7])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_after_a_start_a_file_is_compared_with_everything_that_was_read(
    tmp_path: Path, suffix: str, blocks: int, *, waits: bool
) -> None:
    """Two files are equal for 14,000 bytes: one was read and is gone, the other appears while no reader runs."""
    log = Log()
    same = [f"{number:06d}" for number in range(2000)]
    lines = [*same, "a"]
    reader = follow(tmp_path, log)
    for block in range(blocks):
        write(tmp_path / "a.log", *lines[block * 2001 // blocks : (block + 1) * 2001 // blocks])
        reader.step()
    if waits or blocks > 1:
        # The file stands still, and gets a mark at its end.
        reader.run(12)
    assert log.values == lines
    (tmp_path / "a.log").rename(tmp_path / "a")
    data = (tmp_path / "a").read_bytes().replace(b"a", b"b")
    (tmp_path / f"b.log{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    follow(tmp_path, log).run(10)
    assert log.values == [*lines, *same, "b"]
    # The first file's own copy is recognized, and its unread rest is read.
    with (tmp_path / "a").open("a") as file:
        file.write("end\n")
    data = (tmp_path / "a").read_bytes()
    (tmp_path / f"a.log.1{suffix}").write_bytes(gzip.compress(data) if suffix else data)
    follow(tmp_path, log).run(10)
    assert log.values == [*lines, *same, "b", "end"]


def test_a_compressed_file_without_a_mark_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with a receiver that was killed after it had registered what it skips, and before the mark of that."""
    log = Log()
    same = ["x" * 5000, *(f"{number:06d}" for number in range(3000))]
    write(tmp_path / "a.log", *same, "a")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killed:
        killed.setattr(SecondFingerprints, "add_mark", die)
        with pytest.raises(KeyboardInterrupt):
            follow(tmp_path, log, start="latest").run()
    (tmp_path / "a.log").rename(tmp_path / "a")
    (tmp_path / "b.log.gz").write_bytes(gzip.compress("".join(f"{line}\n" for line in [*same, "b"]).encode()))
    reader = follow(tmp_path, log, start="latest")
    reader.run(10)
    assert log.values == []
    [error] = reader.supervisor.errors
    assert f"{tmp_path}/b.log.gz is taken for what was read of here/" in error
    assert "first 4096 bytes" in error
    assert "up to 26003 are not compared" in error
    again = follow(tmp_path, log, start="latest")
    again.run(10)
    assert again.supervisor.errors == []
