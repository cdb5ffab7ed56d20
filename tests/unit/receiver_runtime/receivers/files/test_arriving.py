"""Check files that are complete when they appear: each is read once despite kills, and the driver log stays small."""

from __future__ import annotations

import gzip
import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.files.arriving import ArrivingCatalog
from receiver_runtime.receivers.files.content import LocalFile
from receiver_runtime.receivers.files.declaration import FileLines, WholeFiles
from receiver_runtime.receivers.files.folders import LocalFolder
from receiver_runtime.receivers.framing import LETTER_BYTES
from tests.unit.receiver_runtime.receivers.files.files_rig import Log, Reader
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from pathlib import Path

DAY = 86_400.0
LONG_AGO = time.time() - 1000 * DAY


def arriving(root: Path, log: Log, kind: type[FileLines | WholeFiles] = FileLines, **fields: Any) -> Reader:  # noqa: ANN401
    settings = fields.pop("settings", {})
    source = kind(path=str(root), **fields)
    return Reader(
        log,
        lambda receiver, sharing, host, clock: ArrivingCatalog(
            source,
            receiver,
            sharing,
            host,
            folder=LocalFolder(source.path, follow_symlinks=source.follow_symlinks),
            clock=clock,
        ),
        **settings,
    )


def put(path: Path, *lines: str, days: float = 0.0, data: bytes | None = None) -> None:
    """Put a file under its name in one step; its time is `days` after a time long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.parent / ".making"
    made.write_bytes("".join(f"{line}\n" for line in lines).encode() if data is None else data)
    os.utime(made, (LONG_AGO + days * DAY,) * 2)
    made.rename(path)


def test_each_files_lines_come_once_in_order_of_time_and_name(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "c.txt", "five", days=2)
    put(tmp_path / "b.txt", "three", "four", days=1)
    put(tmp_path / "deep" / "er" / "a.txt", "one", "two", days=1)
    put(tmp_path / "empty.txt", days=3)
    reader = arriving(tmp_path, log)
    reader.run()
    assert log.values == ["three", "four", "one", "two", "five"]
    assert [row["offset"] for row in log.rows] == [0, 6, 0, 4, 0]
    assert log.rows[2]["path"] == str(tmp_path / "deep" / "er" / "a.txt")
    assert [at for name, at in sorted(log.positions.items()) if "b.txt" in name] == [Position(1, 11)]
    put(tmp_path / "d.txt", "six", days=3)
    reader.run()
    again = arriving(tmp_path, log)
    again.run()
    assert log.values == ["three", "four", "one", "two", "five", "six"]
    assert reader.supervisor.errors == again.supervisor.errors == []


def test_incomplete_files_are_skipped(tmp_path: Path) -> None:
    log = Log()
    for name in ("_a", ".b", "c.tmp", "d.part", "_temporary/e", "f.log"):
        put(tmp_path / name, name)
    put(tmp_path / "g.txt", "good")
    arriving(tmp_path, log, pattern="*").run()
    assert sorted(log.values) == ["f.log", "good"]
    other = Log()
    arriving(tmp_path, other, pattern="*.txt").run()
    assert other.values == ["good"]


def test_a_changing_file_is_not_read(tmp_path: Path) -> None:
    log = Log()
    reader = arriving(tmp_path, log, min_age="5s")
    path = tmp_path / "a.txt"
    for number in range(10):
        with path.open("a") as file:
            file.write(f"line {number}\n")
        os.utime(path, (time.time() + 3600,) * 2)  # as by a clock that is ahead
        reader.step(2.0)
    assert log.values == []
    reader.step(2.0)
    reader.step(2.0)
    reader.step(2.0)
    assert len(log.values) == 10
    assert reader.supervisor.errors == []


@pytest.mark.parametrize("changed", ["ignore", "read"])
def test_a_change_after_reading_is_reported(tmp_path: Path, changed: Any) -> None:  # noqa: ANN401
    log = Log()
    put(tmp_path / "a.txt", "one", days=1)
    reader = arriving(tmp_path, log, changed=changed)
    reader.run()
    put(tmp_path / "a.txt", "another", days=2)
    reader.run()
    assert log.values == (["one"] if changed == "ignore" else ["one", "another"])
    [error] = reader.supervisor.errors
    assert "a.txt was changed after it was read" in error
    arriving(tmp_path, log, changed=changed).run()
    assert len(log.values) == (1 if changed == "ignore" else 2)


def test_a_large_file_is_read_in_pieces_and_continued_from_the_logs_position(tmp_path: Path) -> None:
    log = Log()
    lines = [f"line {number}" for number in range(20_000)]
    put(tmp_path / "a.txt", *lines)
    settings = {"max_block_bytes": "64KiB"}
    reader = arriving(tmp_path, log, settings=settings)
    for _ in range(5):
        reader.step()
    reader.supervisor.holds = True
    reader.step()
    got = len(log.values)
    assert 0 < got < 20_000
    again = arriving(tmp_path, log, settings=settings)
    again.run()
    assert log.values == lines
    assert again.supervisor.blocks > 10


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_is_also_read_in_pieces(tmp_path: Path, suffix: str) -> None:
    log = Log()
    lines = [f"line {number}" for number in range(20_000)]
    data = "\n".join(lines).encode()
    put(
        tmp_path / f"a.txt.{suffix}",
        data=gzip.compress(data) if suffix == "gz" else pa.compress(data, "zstd", asbytes=True),
    )
    settings = {"max_block_bytes": "64KiB"}
    reader = arriving(tmp_path, log, settings=settings)
    for _ in range(5):
        reader.step()
    assert 0 < len(log.values) < 20_000
    arriving(tmp_path, log, settings=settings).run()
    assert log.values == lines


def test_a_broken_compressed_file_is_reported_and_delays_nothing(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt.gz", data=gzip.compress(b"one\n" * 100_000)[:-100], days=1)
    put(tmp_path / "b.txt", "two", days=2)
    reader = arriving(tmp_path, log)
    reader.run(20)
    assert "two" in log.values
    assert len(reader.supervisor.errors) == 1
    assert "a.txt.gz can't be read" in reader.supervisor.errors[0]
    [reason] = reader.supervisor.degraded.values()
    assert "a.txt.gz is not read: Truncated" in reason
    put(tmp_path / "a.txt.gz", data=gzip.compress(b"one\n"), days=3)
    reader.run(20)
    assert reader.supervisor.degraded == {}


def test_the_bytes_of_a_file_deleted_unread_are_counted_as_lost(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt", *(f"line {number}" for number in range(20_000)))
    reader = arriving(tmp_path, log, settings={"max_block_bytes": "64KiB"})
    reader.step()
    size = (tmp_path / "a.txt").stat().st_size
    read = next(iter(log.positions.values())).offset
    (tmp_path / "a.txt").unlink()
    reader.run()
    put(tmp_path / "b.txt", "one")
    reader.run()
    assert log.lost() == size - read > 0
    assert any(f"{size - read} of them, are lost" in error for error in reader.supervisor.errors)


def test_after_a_conflict_what_the_log_does_not_have_is_read_again(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt", "one", "two", days=1)
    reader = arriving(tmp_path, log)
    other = arriving(tmp_path, log)
    reader.supervisor.holds = other.supervisor.holds = True
    reader.step()
    put(tmp_path / "b.txt", "three", days=2)
    other.step()
    reader.step()
    other.supervisor.register()
    reader.supervisor.register()
    reader.supervisor.holds = other.supervisor.holds = False
    other.run()
    reader.run()
    assert sorted(log.values) == ["one", "three", "two"]


def test_bad_lines_become_dead_letters_and_the_file_is_still_completed(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt", data=b"\xff\xfd\n" + b"x" * 3_000_000, days=1)
    put(tmp_path / "b.txt", "one", days=2)
    reader = arriving(tmp_path, log, max_record_bytes=1000)
    reader.run()
    assert log.values == ["one"]
    reasons = [letter.reason for letter in reader.supervisor.letters]
    assert reasons == [DeadLetterReason.INVALID_ENCODING, DeadLetterReason.RECORD_TOO_LARGE]
    assert {at.generation for at in log.positions.values()} == {1}
    arriving(tmp_path, log, max_record_bytes=1000).run()
    assert log.values == ["one"]


def test_old_deleted_files_are_forgotten_and_existing_ones_never(tmp_path: Path) -> None:
    log = Log()
    for day in range(20):
        put(tmp_path / f"{day}.txt", f"of day {day}", days=day)
    put(tmp_path / "fresh.txt", "fresh", days=1000)
    reader = arriving(tmp_path, log, max_age="7d")
    reader.run(5)
    assert len(log.positions) == 21
    for day in range(10):
        (tmp_path / f"{day}.txt").unlink()
    (tmp_path / "fresh.txt").unlink()
    reader.run()
    # They may have been missing for a moment only.
    back = {day: tmp_path / f"{day}.txt" for day in (3, 4)}
    for day, path in back.items():
        put(path, f"of day {day}", days=day)
    for _ in range(70):
        reader.step(60.0)
    assert len(log.forgotten) == 8
    assert len(log.positions) == 13
    again = arriving(tmp_path, log, max_age="7d")
    again.run(5)
    assert len(log.values) == 21
    assert reader.supervisor.errors == again.supervisor.errors == []


def test_nothing_is_forgotten_while_the_directory_is_empty(tmp_path: Path) -> None:
    """A mount point without its mount is an empty directory."""
    log = Log()
    root = tmp_path / "incoming"
    put(root / "a.txt", "one", days=1)
    reader = arriving(root, log)
    reader.run()
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    for _ in range(70):
        reader.step(100.0)
    root.rmdir()
    (tmp_path / "elsewhere").rename(root)
    reader.run(5)
    assert log.values == ["one"]


@pytest.mark.parametrize("is_down", [True, False])
def test_a_copy_with_an_old_time_is_read(tmp_path: Path, *, is_down: bool) -> None:
    """`cp -p`, `rsync -t` and `tar` make such copies, whatever came before, and long after that was read."""
    log = Log()
    for day in range(0, 20, 2):
        put(tmp_path / f"{day}.txt", f"of day {day}", days=day)
    # This time was written by a clock that is years ahead.
    put(tmp_path / "ahead.txt", "ahead", days=5000)
    reader = arriving(tmp_path, log, max_age="1d")
    for _ in range(70):
        reader.step(100.0)
    put(tmp_path / "more.txt", "more", days=20)
    reader.run(5)
    for _ in range(70):
        reader.step(100.0)
    if is_down:
        reader.close()
        reader = arriving(tmp_path, log, max_age="1d")
    put(tmp_path / "late.txt", "late", days=1)
    reader.run(5)
    put(tmp_path / "usual.txt", "usual", days=999)
    reader.run(5)
    assert log.values[-2:] == ["late", "usual"]
    assert len(log.values) == 14
    assert reader.supervisor.errors == []


def test_a_file_from_a_host_whose_clock_is_behind_also_waits(tmp_path: Path) -> None:
    """By its own time it has long been unchanged, but it is still being written."""
    log = Log()
    reader = arriving(tmp_path, log, min_age="5s")
    path = tmp_path / "a.txt"
    for number in range(10):
        with path.open("a") as file:
            file.write(f"line {number}\n")
        os.utime(path, (time.time() - 30,) * 2)
        reader.step(2.0)
    assert log.values == []
    reader.run(8)
    assert len(log.values) == 10
    assert reader.supervisor.errors == []


def test_a_symbolic_link_to_itself_delays_nothing(tmp_path: Path) -> None:
    log = Log()
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    (tmp_path / "nowhere.txt").symlink_to("there is none")
    put(tmp_path / "a.txt", "one")
    reader = arriving(tmp_path, log)
    reader.run()
    assert log.values == ["one"]
    assert reader.supervisor.errors == []


def test_a_file_written_while_it_is_read_is_read_again_once_complete(tmp_path: Path) -> None:
    log = Log()
    path = tmp_path / "a.bin"
    put(path, data=b"old", days=1)
    reader = arriving(tmp_path, log, WholeFiles, changed="read")
    really_read = LocalFile.read

    def write_before(file: LocalFile, offset: int, size: int) -> bytes:
        path.write_bytes(b"new")
        return really_read(file, offset, size)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalFile, "read", write_before)
        reader.step(5.0)
    assert log.values == []
    reader.run(5)
    assert log.values == [b"new"]


def test_compressed_files_with_several_members_or_trailing_garbage(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt.gz", data=gzip.compress(b"one\n") + gzip.compress(b"two\n"), days=1)
    put(tmp_path / "b.txt.gz", data=gzip.compress(b"three\n") + b"garbage", days=2)
    put(tmp_path / "c.txt.gz", data=b"", days=3)
    put(tmp_path / "d.txt.gz", data=b"none at all\n", days=4)
    put(tmp_path / "e.txt", "four", days=5)
    reader = arriving(tmp_path, log)
    reader.run(10)
    # A name decides nothing.
    assert [value for value in log.values if value != "three"] == ["one", "two", "none at all", "four"]
    told = " ".join(reader.supervisor.errors)
    assert "b.txt.gz can't be read" in told


def test_a_thousand_small_files_make_few_blocks(tmp_path: Path) -> None:
    log = Log()
    for number in range(1000):
        put(tmp_path / f"{number}.txt", f"of {number}")
    reader = arriving(tmp_path, log)
    reader.run()
    assert sorted(log.values) == sorted(f"of {number}" for number in range(1000))
    assert reader.supervisor.blocks < 5


def test_whole_files_become_one_record_each(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.bin", data=b"\x00\xff\n\n", days=1)
    compressed = gzip.compress(b"{}")
    put(tmp_path / "b.json.gz", data=compressed, days=2)
    put(tmp_path / "c.bin", data=b"x" * 2_500_000, days=3)
    put(tmp_path / "d.bin", data=b"", days=4)
    put(tmp_path / "e.bin", data=b"last", days=5)
    reader = arriving(tmp_path, log, WholeFiles, max_record_bytes="1MiB")
    reader.run()
    assert log.values == [b"\x00\xff\n\n", compressed, b"", b"last"]
    [letter] = reader.supervisor.letters
    assert (letter.data, letter.left_out) == (b"x" * LETTER_BYTES, 2_500_000 - LETTER_BYTES)
    arriving(tmp_path, log, WholeFiles, max_record_bytes="1MiB").run()
    assert len(log.values) == 4


def test_a_missing_directory_is_reported_once(tmp_path: Path) -> None:
    log = Log()
    reader = arriving(tmp_path / "incoming", log)
    reader.run(10)
    assert len(reader.supervisor.errors) == 1
    assert "can't be listed" in reader.supervisor.errors[0]
    put(tmp_path / "incoming" / "a.txt", "one")
    reader.run()
    assert log.values == ["one"]
