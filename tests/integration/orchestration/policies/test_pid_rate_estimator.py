"""Check the rate estimator against Spark's own class (C04-C06)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, cast

import pytest

from orchestration.policies.pid_rate_estimator import PIDRateEstimator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_c04_c05_c06_beside_sparks_own_class(session: SparkSession) -> None:
    """Compare both on random inputs: the outputs are equal to the last bit."""
    numbers = random.Random(6)
    jvm = cast("Any", session.sparkContext._jvm)
    answered = 0
    for _ in range(20):
        interval = numbers.choice([1, 500, 1000, 60_000])
        p, i, d = (numbers.choice([0.0, 0.2, 1.0, numbers.random() * 3]) for _ in range(3))
        least = numbers.choice([0.5, 100.0])
        original = jvm.org.apache.spark.streaming.scheduler.rate.PIDRateEstimator(interval, p, i, d, least)
        ours = PIDRateEstimator(interval, p, i, d, least)
        time = 0
        for _ in range(50):
            time += numbers.randint(-2, 3000)
            batch = [
                numbers.choice([0, 1, numbers.randint(1, 10**6)]),
                numbers.choice([0, 1, numbers.randint(1, 10**5)]),
                numbers.choice([0, numbers.randint(1, 10**6)]),
            ]
            theirs = original.compute(time, *batch)
            rate = ours.compute(time, *batch)
            assert rate == (theirs.get() if theirs.isDefined() else None), (interval, p, i, d, least, time, batch)
            answered += rate is not None
    assert answered > 100
