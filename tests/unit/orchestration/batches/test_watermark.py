"""Check the watermark against its definition: the least of what sources that are not idle have reached, never back."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from orchestration.batches.stateful.watermark import EventProgress, Patience, SourceTime, advanced

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
#: A batch: how long after the one before, and the greatest event time in it by stream and source, in minutes.
Batch = tuple[int, dict[tuple[str, str], int]]
STREAMS = {"a": Patience(2 * MINUTE, 5 * MINUTE), "b": Patience(MINUTE * 0, 3 * MINUTE)}
SOURCES = [("a", "1"), ("a", "2"), ("b", "1")]


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


histories = st.lists(
    st.tuples(st.integers(1, 6), st.dictionaries(st.sampled_from(SOURCES), st.integers(0, 30))), max_size=12
)


def run(before: EventProgress, minute: int, found: dict[tuple[str, str], int], late: int = 0) -> EventProgress:
    """Advance, and keep what is found as the driver log does."""
    times = {key: at(value) for key, value in found.items()}
    after = advanced(before, times, STREAMS, batch_time=at(minute), late=late)
    read = EventProgress.of_rows(after.watermark, json.loads(json.dumps(after.rows())))
    assert read.sources == after.sources
    return EventProgress(read.watermark, read.sources, after.late, after.next_idle)


def defined(history: list[Batch]) -> datetime | None:
    """Return the watermark after a history of less than a day."""
    watermark = None
    now = 0
    found: dict[tuple[str, str], tuple[int, int]] = {}
    begins = None
    for later, batch in history:
        now += later
        begins = now if begins is None else begins
        for key, value in batch.items():
            found[key] = max(value, found.get(key, (value, 0))[0]), now
        reached: list[datetime | None] = []
        for stream, patience in STREAMS.items():
            of_stream = {key: value for key, value in found.items() if key[0] == stream}
            reached += [
                at(latest) - patience.lateness
                for latest, seen in of_stream.values()
                if at(seen) + patience.idle > at(now)
            ]
            if not of_stream and at(begins) + patience.idle > at(now):
                reached.append(None)
        if reached and None not in reached:
            least = min(time for time in reached if time is not None)
            watermark = least if watermark is None else max(watermark, least)
    return watermark


@given(histories)
def test_it_is_the_least_of_the_sources_that_are_not_idle_and_never_goes_back(history: list[Batch]) -> None:
    progress, now = EventProgress(), 0
    for number, (later, found) in enumerate(history):
        now += later
        before = progress.watermark
        progress = run(progress, now, found)
        assert progress.watermark == defined(history[: number + 1])
        assert before is None or (progress.watermark is not None and progress.watermark >= before)


@given(histories, st.integers(1, 12))
def test_without_records_it_moves_only_when_a_source_becomes_idle(history: list[Batch], wait: int) -> None:
    progress, now = EventProgress(), 0
    for later, found in history:
        now += later
        progress = run(progress, now, found)
    if progress.next_idle is None or at(now + wait) < progress.next_idle:
        assert run(progress, now + wait, {}).watermark == progress.watermark
        return
    for _ in SOURCES:
        if progress.next_idle is None:
            break
        now = (progress.next_idle - NOON) // MINUTE
        progress = run(progress, now, {})
    assert progress.next_idle is None


def test_a_stream_without_records_is_waited_for_until_it_is_idle() -> None:
    first = run(EventProgress(), 0, {("a", "1"): 10})
    assert (first.watermark, first.next_idle) == (None, at(3))
    assert run(first, 2, {("a", "1"): 11}).watermark is None
    assert run(first, 3, {}).watermark == at(8)
    again = run(run(first, 3, {}), 4, {("a", "1"): 12, ("b", "1"): 9})
    assert again.watermark == at(9)
    assert [(each.stream, each.source) for each in again.sources] == [("a", "1"), ("b", "1")]


def test_it_moves_without_records_once_all_that_hold_it_back_are_idle() -> None:
    first = run(EventProgress(), 0, {("a", "1"): 10, ("a", "2"): 20, ("b", "1"): 8})
    assert (first.watermark, first.next_idle) == (at(8), at(5))
    assert run(first, 4, {("a", "2"): 20}).watermark == at(8)
    assert run(first, 5, {("a", "2"): 20}).watermark == at(18)


def test_a_source_that_is_idle_for_a_day_is_forgotten_unless_it_is_the_last_of_its_stream() -> None:
    first = run(EventProgress(), 0, {("a", "1"): 10, ("a", "2"): 9, ("b", "1"): 20})
    almost = run(first, 24 * 60 - 1, {("a", "2"): 30})
    assert [(each.stream, each.source, each.idle) for each in almost.sources] == [
        ("a", "1", True),
        ("a", "2", False),
        ("b", "1", True),
    ]
    later = run(almost, 24 * 60, {})
    assert [(each.stream, each.source) for each in later.sources] == [("a", "2"), ("b", "1")]
    assert later.watermark == at(28)


def test_a_stream_that_is_read_no_more_does_not_count() -> None:
    before = EventProgress(at(5), (SourceTime("gone", "1", at(0), at(0)),))
    after = run(before, 1, {("a", "1"): 20, ("b", "1"): 9}, late=3)
    assert after.watermark == at(9)
    assert {each.stream for each in after.sources} == {"a", "b"}
    assert after.late == 3


def test_times_at_the_ends_of_the_calendar() -> None:
    first, last = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    streams = {"a": Patience(MINUTE, MINUTE)}
    early = advanced(EventProgress(), {("a", "1"): first}, streams, batch_time=NOON)
    assert early.watermark == first
    late = advanced(early, {("a", "1"): last}, streams, batch_time=at(1))
    assert late.watermark == last - MINUTE
    assert EventProgress.of_rows(late.watermark, json.loads(json.dumps(late.rows()))).sources == late.sources
