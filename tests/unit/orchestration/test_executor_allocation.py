"""When more executors are asked for, and when one fewer (O04), by the original's rules."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestration.spark.executor_allocation import Scaling, executors_in_all, scaling

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
def test_o04_up_is_more_than_down_and_both_more_than_nothing(ratios: tuple[float, float]) -> None:
    up, down = ratios
    with pytest.raises(ValueError, match="scale up and one of"):
        scaling(times(100), INTERVAL, scaling_up_ratio=up, scaling_down_ratio=down)


def test_o04_the_bounds_hold() -> None:
    assert executors_in_all(3, 2, least=1) == 5
    assert executors_in_all(3, 2, least=1, most=4) == 4
    # Below the least it goes up to that, also where less was asked for.
    assert executors_in_all(1, 1, least=4) == 4
    assert executors_in_all(3, -1, least=2) == 2
    assert executors_in_all(2, -1, least=2) == 2
    assert executors_in_all(1, -1, least=2) == 1
    assert executors_in_all(3, 0, least=1) == 3
