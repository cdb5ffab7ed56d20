"""Test that a wait for processes ends when one ends, when it is woken, and when its time is over, and never spins."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.agent import process_ends
from receiver_runtime.agent.process_ends import ProcessEnds
from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

LONG = 60.0
READS = "import sys; sys.stdin.read()"


@pytest.fixture(params=["with pidfds", "without pidfds"])
def ends(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[ProcessEnds]:
    if request.param == "without pidfds":
        monkeypatch.setattr(process_ends, "_pidfd", lambda _: None)
    with ProcessEnds() as made:
        yield made


@pytest.fixture
def two() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Return two processes that end when their standard input is closed."""
    started = [subprocess.Popen([sys.executable, "-S", "-c", READS], stdin=subprocess.PIPE) for _ in range(2)]
    yield started
    for process in started:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)


def test_a_wait_ends_with_the_first_process(ends: ProcessEnds, two: list[subprocess.Popen[bytes]]) -> None:
    ender = threading.Timer(0.2, lambda: two[1].stdin and two[1].stdin.close())
    ender.start()
    began = time.monotonic()
    assert ends.wait(two, LONG)
    assert time.monotonic() - began < LONG / 2
    assert two[1].wait(30) == 0
    assert two[0].poll() is None
    joined(ender)
    # Its end was taken: the next wait is for the other one.
    assert not ends.wait(two, 0.1)


def test_an_end_that_was_before_the_wait_is_seen_until_it_is_taken(two: list[subprocess.Popen[bytes]]) -> None:
    assert two[0].stdin is not None
    two[0].stdin.close()
    with ProcessEnds() as ends:
        assert ends.wait(two, LONG)
        assert ends.wait(two, LONG)
        two[0].wait(30)
        assert not ends.wait(two, 0)


def test_a_wait_is_ended_from_another_thread_once(ends: ProcessEnds, two: list[subprocess.Popen[bytes]]) -> None:
    waker = threading.Timer(0.2, ends.wake)
    waker.start()
    assert ends.wait(two, LONG)
    joined(waker)
    assert not ends.wait(two, 0.05)
    # One that comes before the wait counts, and many count once.
    for _ in range(100_000):
        ends.wake()
    assert ends.wait([], LONG)
    while ends.wait([], 0):
        pass
    assert not ends.wait([], 0.05)


def test_a_wait_with_pidfds_does_not_use_the_processor(two: list[subprocess.Popen[bytes]]) -> None:
    with ProcessEnds() as ends:
        before = time.process_time()
        assert not ends.wait(two, 1.0)
        assert time.process_time() - before < 0.1
