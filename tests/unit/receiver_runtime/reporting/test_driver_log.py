from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from receiver_runtime.reporting.driver_log import DriverLog, GivenUpError
from receiver_runtime.reporting.receiver_status import ReceiverStatus
from tests.support.polling import joined
from tests.unit.receiver_runtime.support import ManualClock, PaidClock, advance_until, eventually
from tracker_store.connection.errors import DriverLogUnavailableError, NotAssignedError, OutcomeUnknownError


class Engine:
    """Stands for an engine: it is its own connection."""

    def connect(self) -> AbstractContextManager[Any]:
        return nullcontext(self)


def make(clock: ManualClock | None = None) -> DriverLog:
    return DriverLog(Engine(), clock=clock)  # type: ignore[arg-type]


def test_an_answer_is_returned_at_once() -> None:
    assert make().until_answered("ask", lambda _: 42) == 42


def test_a_call_is_repeated_until_it_is_answered() -> None:
    clock = ManualClock()
    log = make(clock)
    asked: list[float] = []
    answers: list[int] = []

    def statement(_: object) -> int:
        asked.append(clock.monotonic())
        if len(asked) < 8:
            raise (DriverLogUnavailableError, OutcomeUnknownError)[len(asked) % 2]
        return 7

    thread = threading.Thread(target=lambda: answers.append(log.until_answered("ask", statement)))
    thread.start()
    advance_until(clock, lambda: answers)
    joined(thread)
    assert answers == [7]
    assert asked[-1] - asked[-2] >= 1.8


def test_a_refused_call_is_not_repeated() -> None:
    asked = 0

    def statement(_: object) -> None:
        nonlocal asked
        asked += 1
        raise NotAssignedError("receiver 1")

    with pytest.raises(NotAssignedError, match="receiver 1"):
        make().until_answered("claim", statement)
    assert asked == 1


def test_giving_up_ends_a_wait_and_every_later_call() -> None:
    log = make(ManualClock())
    asked = threading.Event()
    ended = threading.Event()

    def statement(_: object) -> None:
        asked.set()
        raise DriverLogUnavailableError

    def call() -> None:
        with pytest.raises(GivenUpError, match="open a segment"):
            log.until_answered("open a segment", statement)
        ended.set()

    thread = threading.Thread(target=call)
    thread.start()
    eventually(asked.is_set)
    log.give_up()
    eventually(ended.is_set)
    joined(thread)
    with pytest.raises(GivenUpError):
        log.until_answered("anything", lambda _: None)


class RecordingStatus(ReceiverStatus):
    """Keeps the waits that are reported to it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def driver_log_unavailable(self, what: str, error: Exception) -> None:
        self.told.append(f"{what}: {error}")

    def driver_log_available(self, what: str, seconds: float) -> None:
        self.told.append(f"{what}: {seconds:.0f} s")


def test_only_a_long_wait_is_reported_once_and_at_its_end() -> None:
    clock, status = PaidClock(), RecordingStatus()
    clock.pays()
    log = make(clock)
    healed = clock.monotonic() + 60.0

    def statement(_: object) -> int:
        if clock.monotonic() < healed:
            raise DriverLogUnavailableError("full")
        return 7

    assert log.until_answered("open a segment", statement, status=status) == 7
    told, over = status.told
    assert told.startswith("open a segment: full")
    assert over.startswith("open a segment: 6")
    log.until_answered("open a segment", lambda _: 7, status=status)
    assert len(status.told) == 2
