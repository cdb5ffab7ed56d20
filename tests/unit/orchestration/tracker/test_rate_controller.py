"""Check what follows from batches: a stream's rate, each receiver's share, that a slow pipeline settles (C03-C06)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.tracker.rate_controller import ReckonedBatch, receiver_rates, reckon
from tracker_store.receivers.rates import CompletedBatch, RatedReceiver, StreamRate
from tracker_store.schema.states import DesiredState, ReceiverState

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTERVAL = timedelta(seconds=10)
NOTHING = StreamRate(1, 2, EPOCH, None, None, None, None, expired=False)
SETTINGS = PipelineSettings(backpressure_enabled=True)


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def batch(
    time: float, *, records: int = 1000, start: float, end: float, oldest: float | None = None, left: int = 0
) -> ReckonedBatch:
    return ReckonedBatch(
        CompletedBatch(at(time), at(time if oldest is None else oldest), records, at(start), at(end)), left
    )


def test_c03_the_first_batch_decides_nothing_and_the_second_does() -> None:
    first = reckon(SETTINGS, INTERVAL, NOTHING, [batch(10, start=10, end=15)])
    assert (first.batch_time, first.rate_limit, first.latest_rate, first.latest_at) == (at(10), None, 200.0, at(15))
    # 1500 in 10 s: 150/s; it waited for 2 s: 150 * 2 / 10 = 30. 200 - 50 - 0.2 * 30.
    second = reckon(SETTINGS, INTERVAL, first, [batch(20, records=1500, start=22, end=32)])
    assert (second.rate_limit, second.latest_rate, second.latest_error) == (144.0, 144.0, 50.0)


def test_c03_a_clock_that_is_set_back_does_not_keep_the_rate_as_it_is() -> None:
    first = reckon(SETTINGS, INTERVAL, NOTHING, [batch(3600, start=3600, end=3605)])
    second = reckon(SETTINGS, INTERVAL, first, [batch(3610, records=1500, start=3612, end=3622)])
    # Batch times go on; the clock now repeats the hour in which those batches ran.
    anew = reckon(SETTINGS, INTERVAL, second, [batch(3620, records=2000, start=20, end=30)])
    assert (anew.rate_limit, anew.latest_rate, anew.latest_at) == (second.rate_limit, 200.0, at(30))
    after = reckon(SETTINGS, INTERVAL, anew, [batch(3630, records=1000, start=40, end=50)])
    assert after.rate_limit == 100.0
    # As always, a batch that ran beside its predecessor and ended a little before it says nothing.
    late = reckon(SETTINGS, INTERVAL, after, [batch(3640, records=9000, start=40, end=49)])
    assert (late.rate_limit, late.latest_at) == (100.0, at(50))


def test_c03_a_merged_batch_waited_since_the_oldest_boundary_in_it() -> None:
    first = reckon(SETTINGS, INTERVAL, NOTHING, [batch(10, records=10_000, start=10, end=15)])
    plain = reckon(SETTINGS, INTERVAL, first, [batch(40, records=10_000, start=40, end=45)])
    merged = reckon(SETTINGS, INTERVAL, first, [batch(40, records=10_000, start=40, end=45, oldest=20)])
    assert plain.rate_limit == 2000.0
    # It waited for 20 s: 2000 * 20 / 10 = 4000, of which a fifth (0.2) counts.
    assert merged.rate_limit == 1200.0


def test_c03_what_a_limit_left_behind_counts_as_the_delay_that_it_will_have() -> None:
    """Otherwise a pipeline with a limit would look as if it kept up."""
    first = reckon(SETTINGS, INTERVAL, NOTHING, [batch(10, records=10_000, start=10, end=15)])
    kept_up = reckon(SETTINGS, INTERVAL, first, [batch(20, records=10_000, start=20, end=25)])
    cut_short = reckon(SETTINGS, INTERVAL, first, [batch(20, records=10_000, start=20, end=25, left=20_000)])
    waited = reckon(SETTINGS, INTERVAL, first, [batch(20, records=10_000, start=20, end=25, oldest=10)])
    assert kept_up.rate_limit == 2000.0
    # 20,000 records at 2000/s take 10 s.
    assert cut_short.rate_limit == waited.rate_limit == 1600.0


@pytest.mark.parametrize(
    "ignored",
    [
        batch(20, start=50, end=60),  # a replay of the newest batch that counted, or a leader that asks twice
        batch(10, start=50, end=60),  # a replay of an older batch
    ],
)
def test_c03_a_replay_changes_nothing(ignored: ReckonedBatch) -> None:
    before = reckon(SETTINGS, INTERVAL, NOTHING, [batch(10, start=10, end=15), batch(20, start=20, end=25)])
    assert reckon(SETTINGS, INTERVAL, before, [ignored]) == before


@pytest.mark.parametrize(
    "says_nothing",
    [
        batch(30, records=0, start=30, end=35),
        batch(30, start=30, end=30),
        batch(30, start=31, end=30),  # the clock was set back in between
        batch(30, start=20, end=24),
        ReckonedBatch(CompletedBatch(at(30), at(30), 0, None, at(30))),  # an interval without records: no batch ran
    ],
)
def test_c03_a_batch_without_information_is_skipped_and_the_rate_stays(says_nothing: ReckonedBatch) -> None:
    before = reckon(SETTINGS, INTERVAL, NOTHING, [batch(10, start=10, end=15), batch(20, start=20, end=25)])
    assert before.rate_limit == 200.0
    assert reckon(SETTINGS, INTERVAL, before, [says_nothing]) == replace(before, batch_time=at(30))


def test_c03_the_settings_reach_the_estimator() -> None:
    settings = PipelineSettings(
        backpressure_enabled=True,
        backpressure_pid_proportional=0.5,
        backpressure_pid_integral=0.1,
        backpressure_pid_derived=2.0,
        backpressure_pid_min_rate=1,
    )
    first = reckon(settings, INTERVAL, NOTHING, [batch(10, start=10, end=11)])
    # 1000 in 2 s: 500/s. Error 500; waited 4 s: 200; change 500 in 15 s. 1000 - 250 - 20 - 66.7.
    second = reckon(settings, INTERVAL, first, [batch(20, start=24, end=26)])
    assert second.rate_limit == pytest.approx(1000 - 250 - 20 - 2 * 500 / 15)
    assert reckon(settings, INTERVAL, second, [batch(30, start=900, end=909)]).rate_limit == 1.0


@given(cut=st.integers(0, 8), seconds=st.lists(st.floats(0.1, 30), min_size=8, max_size=8))
def test_c03_a_new_leader_goes_on_with_the_very_numbers(cut: int, seconds: list[float]) -> None:
    batches = [batch(10 * n, records=1000 * n, start=10 * n + 1, end=10 * n + 1 + s) for n, s in enumerate(seconds, 1)]
    whole = reckon(SETTINGS, INTERVAL, NOTHING, batches)
    assert reckon(SETTINGS, INTERVAL, reckon(SETTINGS, INTERVAL, NOTHING, batches[:cut]), batches[cut:]) == whole


def receiver(
    receiver_id: int,
    stream_id: int = 1,
    state: ReceiverState = ReceiverState.ACTIVE,
    desired: DesiredState = DesiredState.RUNNING,
) -> RatedReceiver:
    return RatedReceiver(receiver_id, stream_id, state, desired, None)


def test_c03_a_streams_rate_is_divided_and_the_slowest_pipeline_decides() -> None:
    receivers = [receiver(1), receiver(2), receiver(3, stream_id=7), receiver(4, stream_id=8)]
    assert receiver_rates({1: [900.0, 300.0], 7: [50.0]}, receivers) == {1: 150.0, 2: 150.0, 3: 50.0, 4: None}


def test_c03_receiver_that_can_not_receive_takes_no_share_and_has_one_when_it_can() -> None:
    receivers = [
        receiver(1),
        receiver(2, state=ReceiverState.FAILED),
        receiver(3, desired=DesiredState.PAUSED),
        receiver(4, desired=DesiredState.STOPPED),
        receiver(5, state=ReceiverState.INACTIVE),
    ]
    assert receiver_rates({1: [900.0]}, receivers) == dict.fromkeys([1, 2, 3, 4, 5], 450.0)
    assert receiver_rates({1: [900.0]}, [receiver(4, desired=DesiredState.STOPPED)]) == {4: 900.0}


@dataclass(frozen=True)
class Interval:
    """Hold one interval of a simulation: records received per second, the batch's wait and run time, the new rate."""

    input_rate: float
    scheduling_delay: float
    processing_time: float
    rate: float | None


def simulate(
    *,
    source: float,
    capacity: float,
    fixed: float = 0.0,
    latency: float = 0.0,
    first_rate: float | None = None,
    most: int | None = None,
    intervals: int = 80,
) -> list[Interval]:
    """Simulate a source, a receiver that keeps to its rate, and single batches of known cost, in virtual time."""
    interval, step = INTERVAL.total_seconds(), 0.2
    rates: list[tuple[float, float | None]] = [(0.0, first_rate)]
    decided, free, waiting, seen = NOTHING, 0.0, 0.0, []
    for number in range(1, intervals + 1):
        came = 0.0
        for tick in range(round(interval / step)):
            now = (number - 1) * interval + tick * step
            limit = next(rate for since, rate in reversed(rates) if since <= now)
            came += min(source, limit or source) * step
        taken = min(waiting + came, most or waiting + came)
        waiting += came - taken
        start = max(number * interval, free) + latency
        free = start + fixed + taken / capacity
        done = batch(number * interval, records=round(taken), start=start, end=free, left=round(waiting))
        decided = reckon(SETTINGS, INTERVAL, decided, [done])
        rates.append((free, decided.rate_limit or first_rate))
        seen.append(Interval(came / interval, start - number * interval, free - start, decided.rate_limit))
    return seen


@pytest.mark.parametrize("source", [1500, 2000, 3000])
@pytest.mark.parametrize(("fixed", "latency"), [(0.0, 0.0), (2.0, 0.0), (1.0, 0.5)])
def test_c03_w18_a_pipeline_that_is_slower_than_its_source_settles(source: float, fixed: float, latency: float) -> None:
    seen = simulate(source=source, capacity=1000, fixed=fixed, latency=latency)
    delays = [interval.scheduling_delay for interval in seen]
    assert max(delays) == max(delays[:10]), "the scheduling delay stops growing within 10 batches"
    batches_can_take = (10 - fixed - latency) * 1000 / 10
    for interval in seen[-10:]:
        assert interval.input_rate == pytest.approx(batches_can_take, rel=0.1)
        assert interval.scheduling_delay + interval.processing_time < 2 * 10


def test_c03_without_back_pressure_the_same_pipeline_does_not_settle() -> None:
    """Show that the test above can fail: run the same batches without a rate limit."""
    seen = simulate(source=2000, capacity=1000, intervals=2)
    assert [interval.rate for interval in seen] == [None, 800.0]
    assert seen[1].scheduling_delay > seen[0].scheduling_delay


def test_c03_w18_a_first_rate_holds_back_a_source_that_is_ten_times_too_fast() -> None:
    seen = simulate(source=10_000, capacity=1000, first_rate=1500)
    delays = [interval.scheduling_delay for interval in seen]
    assert max(delays) == max(delays[:10]) <= 20
    assert seen[-1].input_rate == pytest.approx(1000, rel=0.1)


def test_c03_a_limited_pipeline_settles_too_and_clears_its_backlog() -> None:
    seen = simulate(source=5000, capacity=1000, most=12_000)
    assert seen[1].rate == 100.0
    assert seen[-1].input_rate == pytest.approx(1000, rel=0.1)
    assert seen[-1].scheduling_delay == pytest.approx(0, abs=1)
