"""Check what a receiver reports of its source: since when records are unread, what is written, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from receiver_runtime.reporting.source_lag import LOOK_SECONDS, SourceLag
from tests.unit.receiver_runtime.support import ManualClock
from tracker_store.receivers.source_lag import LagReport, Unread

PLACE = ("topic", "0")


class Source:
    """One partition: each record's time of arrival, and how many were read; looked at by a receiver."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lag = SourceLag(7, self.clock, wall_clock=self.clock.monotonic)
        self.came: list[float] = []
        self.read = 0

    def look(self, *, oldest_at: float | None = None) -> Unread:
        self.clock.advance(LOOK_SECONDS)
        end = len(self.came)
        self.lag.look(lambda: {PLACE: Unread(end - self.read, "records", end=end, oldest_at=oldest_at)})
        report = self.lag.changes()
        assert report is not None
        return report.unread[PLACE]

    def receive(self, records: int) -> None:
        self.came += [self.clock.monotonic()] * records


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=300))
def test_the_oldest_unread_record_came_between_the_last_two_looks_that_it_names(turns: list[tuple[int, int]]) -> None:
    source = Source()
    source.look()
    for comes, read in turns:
        source.receive(comes)
        source.read = min(len(source.came), source.read + read)
        found = source.look()
        if source.read == len(source.came):
            assert (found.amount, found.oldest_at, found.end) == (0, None, None)
        else:
            assert found.end == len(source.came)
            assert found.oldest_at is not None
            came = source.came[source.read]
            # With very many ends some are dropped: a record then counts as younger, by a few hundredths.
            most = LOOK_SECONDS + (source.clock.monotonic() - came) / 30
            assert came <= found.oldest_at <= came + most


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=100),
)
def test_a_queue_that_others_read_too_makes_its_oldest_message_too_old_and_never_too_young(
    turns: list[tuple[int, int, int, bool]],
) -> None:
    """Let another receiver read, and this one begin to count again, as after a restart."""
    source = Source()
    source.look()
    mine, alone = 0, True
    for comes, read, read_elsewhere, restarts in turns:
        source.receive(comes)
        took = min(len(source.came) - source.read, read)
        elsewhere = min(len(source.came) - source.read - took, read_elsewhere)
        alone = alone and not elsewhere and not restarts
        source.read += took + elsewhere
        mine = took if restarts else mine + took
        amount = len(source.came) - source.read
        source.clock.advance(LOOK_SECONDS)
        source.lag.look(lambda amount=amount, mine=mine: {PLACE: Unread(amount, "messages", read=mine)})  # type: ignore[misc]
        report = source.lag.changes()
        assert report is not None
        found = report.unread[PLACE]
        assert (found.read, found.end) == (None, None)
        if amount:
            assert found.oldest_at is not None
            came = source.came[source.read]
            assert found.oldest_at <= came + LOOK_SECONDS
            assert not alone or found.oldest_at >= came


def test_what_was_there_at_the_first_look_is_as_old_as_the_source_says() -> None:
    source = Source()
    source.receive(10)
    source.clock.advance(100)
    assert source.look(oldest_at=1000.0).oldest_at == 1000.0
    source.receive(5)
    source.read = 9
    assert source.look(oldest_at=1050.0).oldest_at == 1050.0
    # A file that is written to says when its newest line came, and not when the oldest did.
    assert source.look(oldest_at=source.clock.monotonic()).oldest_at == 1050.0
    # From here on the looks have seen the records come, whatever the source says.
    source.read = 12
    at = source.clock.monotonic()
    assert source.look(oldest_at=3.0).oldest_at == pytest.approx(at, abs=LOOK_SECONDS)


def test_a_partition_that_begins_again_is_new() -> None:
    source = Source()
    source.receive(10)
    source.look()
    source.came.clear()
    source.receive(3)
    source.clock.advance(50)
    found = source.look()
    assert (found.end, found.oldest_at) == (3, source.clock.monotonic())


def test_reports_hold_what_changed_and_make_up_the_whole() -> None:
    clock = ManualClock()
    lag = SourceLag(7, clock)
    assert lag.changes() is None
    written: dict[tuple[str, str], Unread] = {}
    one, two, none = Unread(1, "files"), Unread(2, "files"), Unread(0, "files")
    states = [
        {("s", "a"): one, ("s", "b"): none},
        {("s", "a"): one, ("s", "b"): two, ("s", "c"): two},
        {("s", "c"): two},
        {("s", "c"): two},
        {},
    ]
    sizes = []
    for state in states:
        clock.advance(LOOK_SECONDS)
        lag.look(lambda state=state: state)  # type: ignore[misc]
        report = lag.changes()
        if report is not None:
            assert lag.changes() == report, "it is asked for again until it is written"
            _apply(report, written)
            lag.note_written(report)
            sizes.append((report.whole, len(report.unread), len(report.gone)))
        assert lag.changes() is None
        assert written == state
    assert sizes == [(True, 2, 0), (False, 2, 0), (False, 0, 2), (False, 0, 1)]


def test_records_that_are_read_at_once_cost_no_report() -> None:
    clock = ManualClock()
    lag = SourceLag(7, clock)
    reports = 0
    for end in range(100):
        clock.advance(LOOK_SECONDS)
        lag.look(lambda end=end: {PLACE: Unread(0, "records", end=end, oldest_at=float(end))})  # type: ignore[misc]
        report = lag.changes()
        if report is not None:
            reports += 1
            lag.note_written(report)
    assert reports == 1


def test_a_look_that_takes_long_is_made_less_often() -> None:
    clock = ManualClock()
    lag = SourceLag(7, clock)
    looks = 0

    def find() -> dict[tuple[str, str], Unread]:
        nonlocal looks
        looks += 1
        clock.advance(0.05)
        return {}

    began = clock.monotonic()
    for _ in range(6000):
        clock.advance(0.01)
        lag.look(find)
    assert looks * 0.05 <= 0.012 * (clock.monotonic() - began)
    assert looks > 5


def test_a_look_that_fails_keeps_what_was_known_and_is_made_again_later() -> None:
    clock = ManualClock()
    lag = SourceLag(7, clock)
    lag.look(lambda: {PLACE: Unread(1, "files")})
    looks = 0

    def fail() -> dict[tuple[str, str], Unread]:
        nonlocal looks
        looks += 1
        raise ConnectionError("away")

    with capture_logs() as logged:
        for _ in range(100):
            clock.advance(LOOK_SECONDS)
            lag.look(fail)
    assert 2 <= looks == len(logged) <= 5
    report = lag.changes()
    assert report is not None
    assert report.unread == {PLACE: Unread(1, "files")}


def _apply(report: LagReport, to: dict[tuple[str, str], Unread]) -> None:
    if report.whole:
        to.clear()
    for place in report.gone:
        del to[place]
    to.update({place: replace(one) for place, one in report.unread.items()})
