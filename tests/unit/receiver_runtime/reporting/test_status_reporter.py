from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from receiver_runtime.reporting.status_reporter import REPEAT_SECONDS, StatusReporter
from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter
from tests.unit.receiver_runtime.support import ManualClock, advance_until, eventually
from tracker_store.blocks.blocks import Claim
from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from receiver_runtime.reporting.receiver_reporter import ReceiverReporter


class Rows:
    """Takes statements as the driver log does, and keeps each one's parameters."""

    def __init__(self) -> None:
        self.away = False
        self.refuse = False
        self.attempts = 0
        self.written: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def once(self, statement: Callable[[Any], object]) -> object:
        # Read the flags before the attempt becomes visible: a test that sees it may make the driver log available
        # again.
        away, refuse = self.away, self.refuse
        self.attempts += 1
        if away:
            raise DriverLogUnavailableError
        if refuse:
            raise ValueError("refused")
        return statement(self)

    def execute(self, _: object, parameters: dict[str, Any]) -> Rows:
        if "bad" in parameters.get("messages", ()):
            raise ValueError("refused")
        with self._lock:
            self.written.append(parameters)
        return self

    def scalar_one(self) -> bool:
        return True

    def states(self) -> list[tuple[str, str]]:
        return [(row["state"], row["reason"]) for row in self.written if "state" in row]

    def events(self) -> list[tuple[str, str, str]]:
        return [
            event
            for row in self.written
            if "kinds" in row
            for event in zip(row["kinds"], row["messages"], row["details"], strict=True)
        ]


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def reporter(rows: Rows, clock: ManualClock) -> Iterator[StatusReporter]:
    made = StatusReporter(rows, clock=clock)  # type: ignore[arg-type]
    made.start()
    yield made
    stopping = threading.Thread(target=made.stop)
    stopping.start()
    advance_until(clock, lambda: not stopping.is_alive(), step=1.0)


@pytest.fixture
def receiver(reporter: StatusReporter) -> ReceiverReporter:
    return reporter.for_receiver(Claim(4, 9, 0), assignment=2, process_id=7)


def test_a_state_is_written_with_its_assignment_and_process(receiver: ReceiverReporter, rows: Rows) -> None:
    receiver.state(ReceiverState.ACTIVE, "connected")
    eventually(lambda: rows.states() == [("ACTIVE", "connected")])
    assert rows.written[0]["assignment"] == 2
    assert rows.written[0]["process"] == 7
    receiver.state(ReceiverState.INACTIVE, "stopped")
    eventually(lambda: len(rows.states()) == 2)
    assert rows.written[1]["process"] is None


def test_an_unchanged_state_is_written_once_and_a_new_reason_keeps_the_state(
    receiver: ReceiverReporter, rows: Rows
) -> None:
    receiver.reason("before any state: nothing to say it of")
    for _ in range(5):
        receiver.state(ReceiverState.PAUSED, "by an operator")
    eventually(lambda: len(rows.states()) == 1)
    receiver.reason("still")
    eventually(lambda: rows.states() == [("PAUSED", "by an operator"), ("PAUSED", "still")])


def test_while_the_driver_log_is_away_the_newest_state_waits(
    receiver: ReceiverReporter, rows: Rows, clock: ManualClock
) -> None:
    rows.away = True
    for n in range(50):
        receiver.state(ReceiverState.ACTIVE, f"reason {n}")
    receiver.event(ReceiverEventKind.ERROR, "something", "1")
    eventually(lambda: rows.attempts > 0)
    rows.away = False
    advance_until(clock, rows.events)
    assert rows.states() == [("ACTIVE", "reason 49")]
    assert rows.events() == [("ERROR", "something", "1")]


def test_repeated_events_are_reported_once_and_then_counted(
    receiver: ReceiverReporter, rows: Rows, clock: ManualClock
) -> None:
    for n in range(1000):
        receiver.event(ReceiverEventKind.RESTARTED, "refused", f"try {n}")
    receiver.event(ReceiverEventKind.RESTARTED, "another reason")
    eventually(lambda: len(rows.events()) == 2)
    assert rows.events() == [("RESTARTED", "refused", "try 0"), ("RESTARTED", "another reason", "")]
    advance_until(clock, lambda: len(rows.events()) == 3, step=REPEAT_SECONDS / 3)
    assert rows.events()[2] == ("RESTARTED", "refused", "try 999 (999 more since the last report)")
    advance_until(clock, lambda: not receiver.queue.repeated, step=REPEAT_SECONDS / 3)
    receiver.event(ReceiverEventKind.RESTARTED, "refused", "anew")
    eventually(lambda: len(rows.events()) == 4)
    assert rows.events()[3] == ("RESTARTED", "refused", "anew")


def test_the_log_has_a_line_for_each_kind_of_event_and_then_a_count(rows: Rows) -> None:
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    receiver = reporter.for_receiver(Claim(1, 1, 0), assignment=1, process_id=1)
    unfailing = UnfailingReporter(receiver, receiver_id=1)
    with capture_logs() as logged:
        for n in range(1000):
            unfailing.error("a connection was closed", ConnectionError(f"from {n}"))
        reporter.start()
        reporter.stop()
    assert [(line["log_level"], line["message"], line["detail"]) for line in logged] == [
        ("warning", "a connection was closed", "ConnectionError: from 0"),
        ("warning", "a connection was closed", "ConnectionError: from 999 (999 more since the last report)"),
    ]
    assert len(rows.events()) == 2


def test_a_sender_that_makes_up_kinds_of_events_fills_neither_memory_nor_log(rows: Rows) -> None:
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    receiver = reporter.for_receiver(Claim(1, 1, 0), assignment=1, process_id=1)
    with capture_logs() as logged:
        for n in range(5000):
            receiver.event(ReceiverEventKind.ERROR, f"file {n} can't be read", "denied")
        assert len(receiver.queue.repeated) <= 201
        reporter.start()
        reporter.stop()
    assert len(logged) <= 202
    assert rows.events()[-1] == (
        "ERROR",
        "more kinds of events than are counted apart",
        "file 4999 can't be read: denied (4799 more since the last report)",
    )


def test_a_refused_report_does_not_stop_the_others(receiver: ReceiverReporter, rows: Rows) -> None:
    rows.refuse = True
    receiver.event(ReceiverEventKind.ERROR, "bad")
    eventually(lambda: rows.attempts == 1)
    rows.refuse = False
    receiver.event(ReceiverEventKind.ERROR, "good")
    eventually(lambda: rows.events() == [("ERROR", "good", "")])


def test_a_stop_writes_waiting_reports_and_the_counts(rows: Rows) -> None:
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    receiver = reporter.for_receiver(Claim(1, 1, 0), assignment=1, process_id=1)
    for _ in range(3):
        receiver.event(ReceiverEventKind.BAD_RECORD, "aside", "x")
    receiver.state(ReceiverState.INACTIVE, "over")
    reporter.start()
    reporter.stop()
    assert rows.states() == [("INACTIVE", "over")]
    assert rows.events() == [("BAD_RECORD", "aside", "x"), ("BAD_RECORD", "aside", "x (2 more since the last report)")]


def test_a_stop_is_bounded_in_time(rows: Rows) -> None:
    rows.away = True
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    reporter.for_receiver(Claim(1, 1, 0), assignment=1, process_id=1).state(ReceiverState.INACTIVE, "over")
    reporter.start()
    reporter.stop(timeout=0.05)
    eventually(lambda: not reporter._thread.is_alive())
    assert rows.states() == []


def test_the_number_of_waiting_events_is_bounded(
    reporter: StatusReporter, receiver: ReceiverReporter, rows: Rows
) -> None:
    rows.away = True
    for n in range(5000):
        receiver.event(ReceiverEventKind.ERROR, f"message {n}")
    assert len(receiver.queue.events) <= 500
    rows.away = False


def test_a_detached_receiver_has_reported_everything_and_reports_no_more(
    reporter: StatusReporter, receiver: ReceiverReporter, rows: Rows
) -> None:
    other = reporter.for_receiver(Claim(5, 1, 0), assignment=1, process_id=7)
    for _ in range(3):
        receiver.event(ReceiverEventKind.BAD_RECORD, "aside", "x")
    receiver.state(ReceiverState.INACTIVE, "over")
    reporter.detach(receiver)
    assert rows.states() == [("INACTIVE", "over")]
    assert rows.events() == [("BAD_RECORD", "aside", "x"), ("BAD_RECORD", "aside", "x (2 more since the last report)")]
    receiver.state(ReceiverState.ACTIVE, "late")
    receiver.event(ReceiverEventKind.ERROR, "late")
    other.state(ReceiverState.ACTIVE, "here")
    eventually(lambda: rows.states() == [("INACTIVE", "over"), ("ACTIVE", "here")])
    assert len(rows.events()) == 2


def test_a_detach_is_bounded_in_time(
    reporter: StatusReporter, receiver: ReceiverReporter, rows: Rows, clock: ManualClock
) -> None:
    rows.away = True
    receiver.state(ReceiverState.INACTIVE, "over")
    detaching = threading.Thread(target=reporter.detach, args=(receiver,))
    detaching.start()
    advance_until(clock, lambda: not detaching.is_alive(), step=0.5)
    reporter.for_receiver(Claim(5, 1, 0), assignment=1, process_id=7).state(ReceiverState.ACTIVE, "here")
    # An attempt for the detached receiver may still be in progress.
    attempts = rows.attempts
    advance_until(clock, lambda: rows.attempts >= attempts + 2)
    rows.away = False
    advance_until(clock, rows.states)
    assert rows.states() == [("ACTIVE", "here")]


def test_a_receiver_with_many_reports_does_not_silence_the_others(rows: Rows) -> None:
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    loud = reporter.for_receiver(Claim(1, 1, 0), assignment=1, process_id=1)
    quiet = reporter.for_receiver(Claim(2, 1, 0), assignment=1, process_id=1)
    for n in range(20):
        loud.event(ReceiverEventKind.ERROR, f"message {n}")
    quiet.state(ReceiverState.ACTIVE, "here")
    reporter.start()
    reporter.stop()
    assert "state" in rows.written[0]
    assert len(rows.events()) == 20


def test_reports_of_many_receivers_are_written_together_and_each_once(rows: Rows) -> None:
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    for number in range(200):
        receiver = reporter.for_receiver(Claim(number, 1, 0), assignment=1, process_id=1)
        receiver.state(ReceiverState.INACTIVE, "over")
        receiver.event(ReceiverEventKind.STOPPED, "stopped", str(number))
    reporter.start()
    reporter.stop()
    assert len(rows.states()) == 200
    assert rows.events() == [("STOPPED", "stopped", str(number)) for number in range(200)]
    # One turn for the states and one for the events, each on one connection.
    assert rows.attempts == 2


def test_a_refused_event_among_others_is_left_out_alone(rows: Rows) -> None:
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    for number, message in enumerate(("good", "bad", "good")):
        receiver = reporter.for_receiver(Claim(number, 1, 0), assignment=1, process_id=1)
        receiver.event(ReceiverEventKind.ERROR, message, str(number))
        receiver.event(ReceiverEventKind.ERROR, "another", str(number))
    with capture_logs() as logged:
        reporter.start()
        reporter.stop()
    assert [line["event"] for line in logged] == ["a report was refused by the driver log"]
    assert rows.events() == [("ERROR", "good", "0"), ("ERROR", "good", "2")] + [
        ("ERROR", "another", str(number)) for number in range(3)
    ]
