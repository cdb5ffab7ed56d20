"""Check that log lines that can't be written are counted and reported later, and that logging never raises."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import pytest

from tests.support.commands.run_program import run_program
from tests.support.polling import joined
from tracker_store.host.process_output import UnfailingOutput, open_child_log, unfailing_log

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = OSError(errno.ENOSPC, "No space left on device")


class Disk:
    """Takes bytes until it is full; then part of a write, then nothing."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.taken = b""

    def write(self, data: bytes) -> int:
        done = len(data) if self.room is None else min(len(data), self.room)
        if not done:
            raise _FULL
        if self.room is not None:
            self.room -= done
        self.taken += data[:done]
        return done

    @property
    def lines(self) -> list[str]:
        return self.taken.decode().splitlines()


def output(disk: Disk) -> UnfailingOutput:
    return UnfailingOutput(disk.write)


def test_lines_refused_by_a_full_disk_are_counted_and_reported_once_it_has_room() -> None:
    disk = Disk()
    made = output(disk)
    made.write(b"before\n")
    disk.room = 0
    made.write(b"lost\n")
    made.write(b"lost\nlost too\n")
    disk.room = None
    made.write(b"after\n")
    first, report, last = disk.lines
    assert (first, last) == ("before", "after")
    assert report.endswith("3 log lines could not be written: No space left on device")


def test_a_truncated_line_is_ended_before_the_report() -> None:
    disk = Disk()
    made = output(disk)
    disk.room = 3
    made.write(b"in the middle\n")
    disk.room = None
    made.write(b"after\n")
    cut, report, last = disk.lines
    assert (cut, last) == ("in ", "after")
    assert report.endswith("1 log line could not be written: No space left on device")


def test_a_failed_report_is_repeated() -> None:
    disk = Disk()
    made = output(disk)
    disk.room = 0
    made.write(b"lost\n")
    disk.room = 10
    made.write(b"lost\n")
    disk.room = None
    made.write(b"after\n")
    assert "2 log lines could not be written" in disk.lines[-2]


class FailingStream(io.StringIO):
    """A text stream on a full disk."""

    full = True

    def write(self, text: str, /) -> int:
        if self.full:
            raise _FULL
        return super().write(text)


def test_the_logger_never_raises_whatever_its_stream_does() -> None:
    stream = FailingStream()
    streams: list[TextIO] = [stream]
    log = unfailing_log(lambda: streams[0])()
    log.warning("lost")
    log.error("lost")
    streams.clear()
    log.msg("without any stream")
    streams.append(stream)
    stream.full = False
    log.info("after")
    report, last = stream.getvalue().splitlines()
    assert "3 log lines could not be written" in report
    assert last == "after"


_SERVICE = """
import sys, threading
import structlog
from tracker_store.host.process_output import configure_log, keep_output_from_failing

keep_output_from_failing()
configure_log()
structlog.get_logger("test").warning("a line")
print("a line")
print("another", file=sys.stderr)

def die():
    raise RuntimeError("a thread's end, with its traceback")

thread = threading.Thread(target=die)
thread.start()
thread.join()
import logging
logging.getLogger("uvicorn").error("a line of a library")
sys.exit(75)
"""


def test_a_service_keeps_its_exit_code_when_nothing_can_be_written() -> None:
    """Without this, the first line would raise, or the flush at exit would fail and make the exit code 120."""
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run([sys.executable, "-c", _SERVICE], stdout=full, stderr=full, check=False, timeout=60)
    assert ended.returncode == 75


def test_everything_that_a_service_writes_comes_out() -> None:
    ended = run_program([sys.executable, "-c", _SERVICE])
    assert ended.stdout == "a line\n"
    assert "a line" in ended.stderr
    assert "another\n" in ended.stderr
    assert "a thread's end, with its traceback" in ended.stderr
    assert "a line of a library\n" in ended.stderr


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_lines_of_many_threads_come_out_separately(pipe: tuple[int, int]) -> None:
    made = UnfailingOutput(partial(os.write, pipe[1]))
    threads = [threading.Thread(target=made.write, args=(b"%d" % n * 100 + b"\n",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    assert sorted(os.read(pipe[0], 65536).split()) == [b"%d" % n * 100 for n in range(8)]


def test_a_child_runs_without_a_log_if_its_log_can_not_be_opened(tmp_path: Path) -> None:
    with open_child_log(tmp_path / "no such folder" / "child.log") as log:
        log.write(b"to nobody\n")
    with open_child_log(tmp_path / "child.log") as log:
        log.write(b"kept\n")
    assert (tmp_path / "child.log").read_bytes() == b"kept\n"


_TRACEBACK = """
import structlog
from tracker_store.host import process_output
process_output.{configure}()
def handle(authorization):
    raise ValueError("bad")
try:
    handle("Bearer pl" + "4nted")
except ValueError:
    structlog.get_logger().exception("a request failed")
"""


@pytest.mark.parametrize("configure", ["configure_log", "keep_log_from_failing"])
def test_a_traceback_in_the_log_has_no_local_variables(configure: str) -> None:
    done = run_program(
        [sys.executable, "-c", _TRACEBACK.format(configure=configure)], cwd=Path(__file__).parents[2], check=True
    )
    log = done.stdout + done.stderr
    assert "in handle" in log
    assert "ValueError: bad" in log
    assert "pl4nted" not in log
