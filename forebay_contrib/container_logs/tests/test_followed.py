"""Check containers' logs in files that grow, rotate and are read on after kills: each record once, none too late."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.container_logs.declaration import ContainerLogs
from forebay_contrib.container_logs.receiver import make_line_reader
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.files.followed.catalog import FollowedCatalog
from receiver_runtime.sources.fields.multiline import Multiline
from receiver_runtime.sources.source import SourceError
from tests.unit.receiver_runtime.receivers.files.files_rig import Log, Reader
from tests.unit.receiver_runtime.receivers.files.followed.followed_rig import compress, write

if TYPE_CHECKING:
    from pathlib import Path

OUT, ERR = "2026-11-30T12:00:00Z stdout F ", "2026-11-30T12:00:00Z stderr F "
START = Multiline(start="^b", timeout="5s")


def follow(root: Path, log: Log, **fields: Any) -> Reader:  # noqa: ANN401  fields of the source
    source = ContainerLogs(path=f"{root}/*.log*", **fields)
    return Reader(
        log,
        lambda receiver, sharing, host, clock: FollowedCatalog(
            source, make_line_reader(source), receiver, sharing, host, clock=clock
        ),
    )


def test_what_waits_behind_an_open_record_comes_once_after_a_kill_and_not_too_late(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "0.log", f"{ERR}b error", f"{OUT}b one", f"{OUT}b two", f"{ERR} more", f"{OUT}b three")
    reader = follow(tmp_path, log, multiline=START)
    reader.run(3)
    assert log.values == []
    # The receiver is killed: everything behind the open record is read again.
    reader = follow(tmp_path, log, multiline=START)
    reader.run(3)
    write(tmp_path / "0.log", f"{OUT} more of three")
    reader.run(4)
    assert log.values == ["b error\n more", "b one", "b two", "b three\n more of three"]
    assert [row["stream"] for row in log.rows] == ["stderr", "stdout", "stdout", "stdout"]
    write(tmp_path / "0.log", f"{OUT} late")
    reader.run(7)
    assert log.values[4:] == [" late"]
    reader.close()


def test_the_younger_of_two_open_records_waits_on(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "0.log", f"{ERR}b error")
    reader = follow(tmp_path, log, multiline=START)
    reader.run(4)
    write(tmp_path / "0.log", f"{OUT}b one")
    reader.run(2)
    assert log.values == ["b error"]
    write(tmp_path / "0.log", f"{OUT} more of one")
    reader.run(2)
    assert log.values == ["b error"]
    reader.run(2)
    # Five seconds after its own first line was read, not after the other record was complete.
    assert log.values == ["b error", "b one\n more of one"]
    reader.close()


def test_a_piece_whose_end_never_comes_is_a_record_after_its_time(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "0.log", "2026-11-30T12:00:00Z stdout P long", f"{ERR}error")
    reader = follow(tmp_path, log)
    reader.run(3)
    assert log.values == []
    reader.run(3)
    assert log.values == ["long", "error"]
    reader.close()


@pytest.mark.parametrize("multiline", [START, None])
def test_a_complete_record_waits_no_longer_than_the_open_one_that_it_overlaps(
    tmp_path: Path, multiline: Multiline | None
) -> None:
    log = Log()
    if multiline is None:
        write(
            tmp_path / "0.log",
            f"{OUT}b one".replace(" F ", " P "),
            f"{ERR}b error".replace(" F ", " P "),
            f"{OUT} more",
        )
    else:
        write(tmp_path / "0.log", f"{OUT}b one", f"{ERR}b error", f"{OUT} more", f"{OUT}b two")
    reader = follow(tmp_path, log, multiline=multiline)
    reader.run(3)
    assert log.values == []
    reader.run(3)
    assert log.values[:2] == [f"b one{'' if multiline is None else chr(10)} more", "b error"]
    reader.close()


def test_a_rotated_and_compressed_log_is_read_on(tmp_path: Path) -> None:
    log = Log()
    write(tmp_path / "0.log", f"{OUT}b one", f"{OUT} more", f"{OUT}b two")
    reader = follow(tmp_path, log, multiline=START)
    reader.run(2)
    assert log.values == ["b one\n more"]
    reader.close()
    write(tmp_path / "0.log", f"{OUT} more of two", f"{ERR}b three")
    compress(tmp_path / "0.log", tmp_path / "0.log.20261130-120000.gz")
    reader = follow(tmp_path, log, multiline=START)
    reader.run(7)
    assert log.values == ["b one\n more", "b two\n more of two", "b three"]
    reader.close()


@pytest.mark.parametrize("seed", range(2))
def test_killed_receivers_store_each_record_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    log = Log()
    sent: dict[str, list[str]] = {"stdout": [], "stderr": []}
    reader = follow(tmp_path, log, multiline=Multiline(start="^b", timeout="60s"))
    for number in range(80):
        stream = chance.choice(["stdout", "stdout", "stderr"])
        if chance.random() < 0.5 or not sent[stream]:
            sent[stream].append(f"b{number}")
        else:
            sent[stream][-1] += f"\n {number}"
        text = sent[stream][-1].rsplit("\n")[-1]
        cut = chance.randrange(len(text))
        write(
            tmp_path / "0.log",
            *([f"2026-11-30T12:00:00Z {stream} P {text[:cut]}"] * (cut > 0)),
            f"2026-11-30T12:00:00Z {stream} F {text[cut:]}",
        )
        match chance.randrange(8):
            case 0:
                reader = follow(tmp_path, log, multiline=Multiline(start="^b", timeout="60s"))
            case 1:
                reader.run(1)
    reader.run(70)
    for stream, records in sent.items():
        assert [row["value"] for row in log.rows if row["stream"] == stream] == records
    reader.close()


def test_a_pattern_that_only_re2_can_refuse_fails_the_receiver_at_once(tmp_path: Path) -> None:
    source = ContainerLogs(path=f"{tmp_path}/a", multiline=Multiline(start="(.{900}){900}"))
    with pytest.raises(SourceError, match=r"multiline: .* is no regular expression of RE2"):
        make_receiver(source)


def test_a_program_that_writes_bytes_loses_only_the_lines_that_are_no_text(tmp_path: Path) -> None:
    log = Log()
    garbage = b"".join(b"2026-11-30T12:00:00Z stdout F \x01\x02\xff\x03%d\n" % number for number in range(500))
    (tmp_path / "0.log").write_bytes(garbage + f"{OUT}text\n".encode())
    reader = follow(tmp_path, log)
    reader.run(2)
    assert log.values == ["text"]
    reader.close()


def test_much_of_the_other_stream_ends_a_record_that_waits(tmp_path: Path) -> None:
    log = Log()
    lines = [f"{OUT}b{number} {'x' * 1000}" for number in range(2_000)]
    write(tmp_path / "0.log", f"{ERR}b error", *lines, f"{ERR} late")
    reader = follow(tmp_path, log, multiline=START, max_record_bytes="256KiB")
    reader.run(2)
    # Only the last record of each stream waits, and what is behind the first of them.
    assert len(log.values) == 2_000
    assert log.values[0] == "b error"
    reader.run(7)
    assert log.values == ["b error", *(line.removeprefix(OUT) for line in lines), " late"]
    reader.close()
