"""Check when executors are added, and when one is removed (O04), by Spark Streaming's rules."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestration.policies.executor_allocation import (
    Bounds,
    Scaling,
    decide,
    executor_configuration,
    executors_in_all,
    has_executors,
    scaling,
)

INTERVAL = timedelta(seconds=1)


def times(*milliseconds: float) -> list[timedelta]:
    return [timedelta(milliseconds=value) for value in milliseconds]


@pytest.mark.parametrize(
    ("milliseconds", "executors"),
    [(100, -1), (300, -1), (301, 0), (899, 0), (900, 1), (1499, 1), (1500, 2), (2499, 2), (2500, 3)],
)
def test_o04_up_from_nine_tenths_of_the_interval_by_its_multiple_and_down_by_one(
    milliseconds: float, executors: int
) -> None:
    assert scaling(times(milliseconds), INTERVAL) == Scaling(milliseconds / 1000, 1, executors)


def test_o04_the_mean_counts_in_whole_milliseconds() -> None:
    assert scaling(times(899, 900), INTERVAL) == Scaling(0.899, 2, 0)
    assert scaling(times(900, 901), INTERVAL) == Scaling(0.9, 2, 1)
    assert scaling(times(899.9, 900.9), INTERVAL) == Scaling(0.899, 2, 0)


def test_o04_without_batches_nothing_is_decided() -> None:
    assert scaling([], INTERVAL) is None


@pytest.mark.parametrize("ratios", [(0.3, 0.3), (0.2, 0.3), (0.9, 0.0), (0.9, -1.0)])
def test_o04_scaling_ratios_must_be_positive_and_up_above_down(ratios: tuple[float, float]) -> None:
    up, down = ratios
    with pytest.raises(ValueError, match="scale up and one of"):
        scaling(times(100), INTERVAL, scaling_up_ratio=up, scaling_down_ratio=down)


def test_o04_the_bounds_hold() -> None:
    assert executors_in_all(3, 2, least=1) == 5
    assert executors_in_all(3, 2, least=1, most=4) == 4
    # Below the minimum, scaling up goes up to the minimum, even if fewer were asked for.
    assert executors_in_all(1, 1, least=4) == 4
    assert executors_in_all(3, -1, least=2) == 2
    assert executors_in_all(2, -1, least=2) == 2
    assert executors_in_all(1, -1, least=2) == 1
    assert executors_in_all(3, 0, least=1) == 3


@pytest.mark.parametrize(
    ("master", "executors"),
    [
        ("local", False),
        ("local[*]", False),
        ("local[4, 2]", False),
        ("local-cluster[2,1,1024]", True),
        ("spark://master:7077", True),
        ("yarn", True),
        ("sc://connect:15002", False),
        ("k8s://https://kubernetes", True),
    ],
)
def test_o04_which_masters_have_executors(master: str, *, executors: bool) -> None:
    assert has_executors(master) == executors
    assert bool(executor_configuration(master, executors=2, least=1)) == executors


def test_o04_a_session_gets_exactly_the_wanted_executors() -> None:
    configuration = executor_configuration("yarn", executors=2, least=3)
    # minExecutors is never more than maxExecutors: Spark refuses that.
    assert configuration["spark.dynamicAllocation.minExecutors"] == "2"
    assert configuration["spark.dynamicAllocation.maxExecutors"] == "2"


@pytest.mark.parametrize(
    ("found", "before", "wanted", "said"),
    [
        (Scaling(1.6, 2, 2), 1, 3, "batches take 160% of their interval (mean of 2): 3 executors instead of 1; the"),
        (Scaling(0.2, 1, -1), 3, 2, "20% of their interval (mean of 1): 2 executors instead of 3"),
        (Scaling(0.5, 1, 0), 3, 3, "3 executors as before"),
        (Scaling(2.0, 1, 2), 4, 4, "4 executors as before, the most that is allowed: lengthen the interval"),
        (Scaling(0.1, 1, -1), 1, 1, "1 executor as before"),
        # An operator has lowered the maximum.
        (Scaling(0.5, 1, 0), 6, 4, "4 executors instead of 6"),
    ],
)
def test_o04_executors_on_a_cluster(found: Scaling, before: int, wanted: int, said: str) -> None:
    decision = decide(found, executors=before, batch_drivers=1, bounds=Bounds(1, 4), master="yarn", applied=True)
    assert (decision.executors, decision.batch_drivers) == (wanted, 1)
    assert said in decision.reason


@pytest.mark.parametrize(
    ("found", "before", "at_once", "wanted", "said"),
    [
        (Scaling(1.6, 2, 2), 1, 4, 3, "3 batch drivers instead of 1; agents start them"),
        (Scaling(1.6, 2, 2), 1, 1, 1, "no more than 1 batch of it may run at a time: lengthen the interval"),
        (Scaling(0.2, 2, -1), 2, 4, 1, "1 batch driver instead of 2"),
        (Scaling(0.2, 2, -1), 1, 4, 1, "1 batch driver as before"),
        # concurrent_batches was lowered: further drivers have nothing to do.
        (Scaling(0.5, 2, 0), 4, 1, 1, "1 batch driver instead of 4"),
    ],
)
def test_o04_batch_drivers_on_a_local_master(found: Scaling, before: int, at_once: int, wanted: int, said: str) -> None:
    decision = decide(
        found,
        executors=1,
        batch_drivers=before,
        bounds=Bounds(batch_drivers=at_once),
        master="local[*]",
        applied=True,
    )
    assert (decision.executors, decision.batch_drivers) == (1, wanted)
    assert said in decision.reason


def test_o04_advice_that_does_not_take_effect_says_so() -> None:
    for master in ("yarn", "local[*]"):
        decision = decide(
            Scaling(2.0, 1, 2),
            executors=1,
            batch_drivers=1,
            bounds=Bounds(batch_drivers=3),
            master=master,
            applied=False,
        )
        assert decision.reason.endswith("advice, dynamic_allocation_enabled is off")
