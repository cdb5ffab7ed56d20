"""Files that are complete when they appear: each is read once, whatever is killed; and the driver log stays small."""

from __future__ import annotations

import gzip
import os
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.arriving_files import ArrivingCatalog, LocalFolder
from receiver_runtime.sources.files import FileLines, WholeFiles
from tests.unit.receiver_runtime.receivers.files_rig import Log, Reader
from tracker_store.blocks import Position

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
            source, receiver, sharing, host, folder=LocalFolder(source.path), clock=clock
        ),
        **settings,
    )


def put(path: Path, *lines: str, days: float = 0.0, data: bytes | None = None) -> None:
    """Under its name at once, so many days after long ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.parent / ".making"
    made.write_bytes("".join(f"{line}\n" for line in lines).encode() if data is None else data)
    os.utime(made, (LONG_AGO + days * DAY,) * 2)
    made.rename(path)


def test_each_file_s_lines_come_once_in_the_order_of_time_and_name(tmp_path: Path) -> None:
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


def test_what_is_not_complete_is_passed_over(tmp_path: Path) -> None:
    log = Log()
    for name in ("_a", ".b", "c.tmp", "d.part", "_temporary/e", "f.log"):
        put(tmp_path / name, name)
    put(tmp_path / "g.txt", "good")
    arriving(tmp_path, log, pattern="*").run()
    assert sorted(log.values) == ["f.log", "good"]
    other = Log()
    arriving(tmp_path, other, pattern="*.txt").run()
    assert other.values == ["good"]


def test_a_file_that_changes_waits(tmp_path: Path) -> None:
    log = Log()
    reader = arriving(tmp_path, log, min_age="5s")
    path = tmp_path / "a.txt"
    for number in range(10):
        with path.open("a") as file:
            file.write(f"line {number}\n")
        os.utime(path, (time.time() + 3600,) * 2)  # a clock that is ahead
        reader.step(2.0)
    assert log.values == []
    reader.step(2.0)
    reader.step(2.0)
    reader.step(2.0)
    assert len(log.values) == 10
    assert reader.supervisor.errors == []


@pytest.mark.parametrize("changed", ["ignore", "read"])
def test_a_file_that_was_changed_after_it_was_read_is_told(tmp_path: Path, changed: Any) -> None:  # noqa: ANN401
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


def test_a_large_file_is_read_in_pieces_and_on_from_where_the_log_is(tmp_path: Path) -> None:
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
def test_a_compressed_file_is_read_in_pieces_too(tmp_path: Path, suffix: str) -> None:
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


def test_a_compressed_file_that_is_broken_is_told_and_holds_nothing_up(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt.gz", data=gzip.compress(b"one\n" * 100_000)[:-100], days=1)
    put(tmp_path / "b.txt", "two", days=2)
    reader = arriving(tmp_path, log)
    reader.run(20)
    assert "two" in log.values
    assert len(reader.supervisor.errors) == 1
    assert "a.txt.gz can't be read" in reader.supervisor.errors[0]


def test_a_file_that_goes_unread_is_lost_by_numbers(tmp_path: Path) -> None:
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


def test_a_conflict_reads_again_what_the_log_does_not_have(tmp_path: Path) -> None:
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


def test_bad_lines_go_aside_and_the_file_ends_all_the_same(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt", data=b"\xff\xfe\n" + b"x" * 3_000_000, days=1)
    put(tmp_path / "b.txt", "one", days=2)
    reader = arriving(tmp_path, log, max_record_bytes=1000)
    reader.run()
    assert log.values == ["one"]
    reasons = [letter.reason for letter in reader.supervisor.letters]
    assert reasons == [DeadLetterReason.INVALID_ENCODING, *[DeadLetterReason.RECORD_TOO_LARGE] * 3]
    assert {at.generation for at in log.positions.values()} == {1}
    arriving(tmp_path, log, max_record_bytes=1000).run()
    assert log.values == ["one"]


def test_what_is_older_than_max_age_is_forgotten_and_not_read_again(tmp_path: Path) -> None:
    log = Log()
    for day in range(20):
        put(tmp_path / f"{day}.txt", f"of day {day}", days=day)
    reader = arriving(tmp_path, log, max_age="7d")
    reader.run()
    assert len(log.positions) == 20
    for _ in range(3):
        reader.step(100.0)
        # A block for the watermark to go in with.
        put(tmp_path / "more.txt", "more", days=19)
        reader.run()
    assert len(log.forgotten) == 12
    assert log.positions["here/@watermark"].offset == int((LONG_AGO + 12 * DAY) * 1000)
    assert len(log.positions) == 20 - 12 + 2
    again = arriving(tmp_path, log, max_age="7d")
    again.run()
    assert len(log.values) == 21
    assert again.supervisor.errors == []
    put(tmp_path / "late.txt", "late", days=3)
    again.run()
    assert len(log.values) == 21
    [error] = again.supervisor.errors
    assert "1 files are older than max_age allows and are not read" in error


def test_the_watermark_waits_for_what_is_not_read_to_its_end(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.txt.gz", data=gzip.compress(b"one\n" * 100_000)[:-100], days=1)
    for day in range(20):
        put(tmp_path / f"{day}.txt", f"of day {day}", days=day)
    reader = arriving(tmp_path, log, max_age="7d")
    for _ in range(3):
        reader.run()
        reader.step(100.0)
    put(tmp_path / "more.txt", "more", days=19)
    reader.run()
    assert log.positions["here/@watermark"].offset == int((LONG_AGO + 1 * DAY) * 1000)
    (tmp_path / "a.txt.gz").unlink()
    reader.run()
    put(tmp_path / "much.txt", "much", days=19)
    reader.run(2)
    reader.step(100.0)
    put(tmp_path / "most.txt", "most", days=19)
    reader.run()
    assert log.positions["here/@watermark"].offset == int((LONG_AGO + 12 * DAY) * 1000)


def test_a_thousand_small_files_make_few_blocks(tmp_path: Path) -> None:
    log = Log()
    for number in range(1000):
        put(tmp_path / f"{number}.txt", f"of {number}")
    reader = arriving(tmp_path, log)
    reader.run()
    assert sorted(log.values) == sorted(f"of {number}" for number in range(1000))
    assert reader.supervisor.blocks < 5


def test_a_record_a_file(tmp_path: Path) -> None:
    log = Log()
    put(tmp_path / "a.bin", data=b"\x00\xff\n\n", days=1)
    put(tmp_path / "b.json.gz", data=gzip.compress(b"{}"), days=2)
    put(tmp_path / "c.bin", data=b"x" * 2_500_000, days=3)
    put(tmp_path / "d.bin", data=b"", days=4)
    put(tmp_path / "e.bin", data=b"last", days=5)
    reader = arriving(tmp_path, log, WholeFiles, max_record_bytes="1MiB")
    reader.run()
    assert log.values == [b"\x00\xff\n\n", gzip.compress(b"{}"), b"", b"last"]
    assert b"".join(letter.data for letter in reader.supervisor.letters) == b"x" * 2_500_000
    assert [letter.part for letter in reader.supervisor.letters] == [0, 1, 2]
    arriving(tmp_path, log, WholeFiles, max_record_bytes="1MiB").run()
    assert len(log.values) == 4


def test_a_directory_that_is_away_is_told_once(tmp_path: Path) -> None:
    log = Log()
    reader = arriving(tmp_path / "incoming", log)
    reader.run(10)
    assert len(reader.supervisor.errors) == 1
    assert "can't be listed" in reader.supervisor.errors[0]
    put(tmp_path / "incoming" / "a.txt", "one")
    reader.run()
    assert log.values == ["one"]
