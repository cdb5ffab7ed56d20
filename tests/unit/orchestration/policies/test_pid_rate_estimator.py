"""Check the estimator against numbers computed by hand (C04-C06)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.policies.pid_rate_estimator import EstimatorState, PIDRateEstimator


def test_c05_the_first_batch_that_counts_is_remembered_and_answers_nothing() -> None:
    estimator = PIDRateEstimator(1000)
    assert estimator.state is None
    assert estimator.compute(1000, 500, 250, 9999) is None
    # 500 records in 250 ms.
    assert estimator.state == EstimatorState(1000, 2000.0, 0.0)


def test_c04_worked_by_hand_with_the_defaults() -> None:
    estimator = PIDRateEstimator(1000)
    estimator.compute(1000, 500, 250, 0)
    # 1000 in 1000 ms: 1000/s. Error 2000 - 1000; backlog 500 * 1000 / 1000 = 500. 2000 - 1000 - 0.2 * 500.
    assert estimator.compute(2000, 1000, 1000, 500) == 900.0
    assert estimator.state == EstimatorState(2000, 900.0, 1000.0)
    # 1200 in 800 ms: 1500/s. Error 900 - 1500 = -600; no backlog. 900 + 600.
    assert estimator.compute(3000, 1200, 800, 0) == 1500.0
    assert estimator.state == EstimatorState(3000, 1500.0, -600.0)


def test_c04_computed_by_hand_with_a_derivative() -> None:
    estimator = PIDRateEstimator(2000, proportional=0.5, integral=0.1, derivative=2.0, min_rate=1)
    estimator.compute(10_000, 1000, 1000, 0)
    # 1600 in 2000 ms: 800/s. Error 200; backlog 1000 * 800 / 2000 = 400; change 200 in 4 s = 50.
    # 1000 - 0.5 * 200 - 0.1 * 400 - 2 * 50 = 760.
    assert estimator.compute(14_000, 1600, 2000, 1000) == 760.0


def test_c04_in_the_originals_order_of_operations() -> None:
    """Divide first, then multiply: in the other order the last digits differ."""
    estimator = PIDRateEstimator(1000)
    estimator.compute(1000, 138, 583, 0)
    assert estimator.state == EstimatorState(1000, 236.7066895368782, 0.0)
    assert 138 * 1000 / 583 != 236.7066895368782


def test_c04_never_below_the_least_rate() -> None:
    estimator = PIDRateEstimator(1000, min_rate=50)
    estimator.compute(1000, 100, 1000, 0)
    assert estimator.compute(2000, 100, 1000, 60_000) == 50.0
    # This rate is also remembered: the next error is computed from it.
    assert estimator.state == EstimatorState(2000, 50.0, 0.0)


@pytest.mark.parametrize(
    ("time", "elements", "processing"),
    [(1000, 10, 10), (999, 10, 10), (2000, 0, 10), (2000, 10, 0), (2000, -1, 10), (2000, 10, -1)],
)
def test_c04_a_batch_that_says_nothing_changes_nothing(time: int, elements: int, processing: int) -> None:
    estimator = PIDRateEstimator(1000)
    estimator.compute(1000, 100, 100, 0)
    before = estimator.state
    assert estimator.compute(time, elements, processing, 0) is None
    assert estimator.state == before


def test_c05_time_0_is_after_the_beginning() -> None:
    """The original's latest time starts at -1."""
    estimator = PIDRateEstimator(1000)
    estimator.compute(-1, 100, 100, 0)
    assert estimator.state is None
    estimator.compute(0, 100, 100, 0)
    assert estimator.state is not None


def test_c06_the_defaults() -> None:
    plain, told = PIDRateEstimator(1000), PIDRateEstimator(1000, 1.0, 0.2, 0.0, 100.0)
    for time, (elements, processing, scheduling) in enumerate([(900, 900, 0), (700, 800, 300), (1, 900, 900)], 1):
        assert plain.compute(time * 1000, elements, processing, scheduling) == told.compute(
            time * 1000, elements, processing, scheduling
        )
    assert plain.state == told.state
    assert plain.state is not None
    assert plain.state.latest_rate == 100.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_interval_ms": 0},
        {"batch_interval_ms": -1},
        {"proportional": -0.1},
        {"integral": -0.1},
        {"derivative": -0.1},
        {"derivative": float("nan")},
        {"min_rate": 0},
        {"min_rate": -1},
        {"min_rate": float("nan")},
    ],
)
def test_c06_what_can_not_work_is_refused_by_name(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ValueError, match=name):
        PIDRateEstimator(**{"batch_interval_ms": 1000, **wrong})


batches = st.lists(
    st.tuples(st.integers(-5, 5_000), st.integers(-1, 10**9), st.integers(-1, 10**6), st.integers(0, 10**7)),
    min_size=1,
    max_size=20,
)


@given(batches=batches, cut=st.integers(0, 20), derivative=st.sampled_from([0.0, 0.7]))
def test_estimator_restored_from_state_continues_identically(
    batches: list[tuple[int, int, int, int]], cut: int, derivative: float
) -> None:
    whole = PIDRateEstimator(1000, derivative=derivative)
    before = PIDRateEstimator(1000, derivative=derivative)
    time = 0
    after: PIDRateEstimator | None = None
    for number, (step, *rest) in enumerate(batches):
        time += step
        if number == cut:
            after = PIDRateEstimator(1000, derivative=derivative, state=before.state)
        assert (after or before).compute(time, *rest) == whole.compute(time, *rest)
