"""Test that a receiver is restarted if a thread that it has started itself ends by an exception."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.process.dead_threads import restart_at_dead_threads
from receiver_runtime.supervisor.lifecycle import SupervisorState
from tests.unit.receiver_runtime.rig import HandReceiver, rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Reading(threading.Thread):
    def __init__(self, receiver: HandReceiver) -> None:
        super().__init__(daemon=True)
        self.receiver = receiver

    def run(self) -> None:
        read()


def read() -> None:
    raise ValueError("an odd answer")


def read_for(_: HandReceiver) -> None:
    read()


def exit_for(_: HandReceiver) -> None:
    sys.exit()


class MethodReceiver(HandReceiver):
    def watch(self) -> None:
        read()


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Keep what is printed of threads that end by an exception."""
    said: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda ended: said.append(str(ended.exc_value)))
    with restart_at_dead_threads():
        yield said


@pytest.mark.parametrize(
    "thread",
    [
        lambda receiver: threading.Thread(target=receiver.watch, daemon=True),
        lambda receiver: threading.Thread(target=read_for, args=(receiver,), daemon=True),
        Reading,
    ],
    ids=["method", "function", "thread"],
)
def test_a_receiver_whose_thread_ends_is_restarted(
    tmp_path: Path, printed: list[str], thread: Callable[[HandReceiver], threading.Thread]
) -> None:
    receiver = MethodReceiver()
    receiver.on_starting = lambda: thread(receiver).start() if receiver.starts == 1 else None
    with rig(tmp_path, receiver) as made:
        eventually(lambda: receiver.starts == 2, "another start")
        said = [(message, detail) for _, message, detail in made.reporter.events]
        assert [message for message, detail in said if "an odd answer" in detail] == [
            "one of its threads ended by an exception"
        ]
    assert printed == ["an odd answer"]


def test_a_thread_that_exits_restarts_nothing(tmp_path: Path, printed: list[str]) -> None:
    receiver = MethodReceiver()
    with rig(tmp_path, receiver) as made:
        eventually(lambda: receiver.starts == 1, "the start")
        thread = threading.Thread(target=exit_for, args=(receiver,), daemon=True)
        thread.start()
        thread.join(60)
        assert (made.supervisor.lifecycle.wanted_restart, receiver.stops) == (None, 0)


def test_a_thread_of_the_start_before_restarts_nothing_when_it_ends_late(tmp_path: Path, printed: list[str]) -> None:
    receiver = MethodReceiver()
    ends = [threading.Event(), threading.Event()]
    threads: list[threading.Thread] = []

    def read_until(end: threading.Event) -> None:
        assert end.wait(60)
        receiver.watch()

    def start() -> None:
        if receiver.starts <= len(ends):
            thread = threading.Thread(target=read_until, args=(ends[receiver.starts - 1],), daemon=True)
            thread.start()
            threads.append(thread)

    receiver.on_starting = start
    with rig(tmp_path, receiver) as made:
        eventually(lambda: threads, "the start")
        receiver.restart("another one, please")
        eventually(lambda: len(threads) == 2, "another start")
        ends[0].set()
        threads[0].join(60)
        lifecycle = made.supervisor.lifecycle
        assert (lifecycle.wanted_restart, lifecycle.state, receiver.stops) == (None, SupervisorState.STARTED, 1)
        ends[1].set()
        eventually(lambda: receiver.starts == 3, "a start because of the second thread")
    assert printed == ["an odd answer"] * 2


def test_a_thread_of_nobody_restarts_nothing(tmp_path: Path, printed: list[str]) -> None:
    with rig(tmp_path, MethodReceiver()) as made:
        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        thread.join(60)
        assert printed == ["an odd answer"]
        assert made.reporter.events == []
