"""Check the load model's sums: how often an operation runs in a minute, and what that is of a core."""

from __future__ import annotations

import pytest

from benchmarks.scale_model import OPERATIONS, Cost, Measured, Operation, Shape

SHAPE = Shape.of(10_000, days=30, interval=14_400, receivers_per_process=40)


def operation(key: str) -> Operation:
    return next(each for each in OPERATIONS if each.key == key)


def test_the_usual_shape_is_that_of_the_aims() -> None:
    assert (SHAPE.streams, SHAPE.pipelines, SHAPE.processes, SHAPE.agents) == (1_000, 100, 250, 20)
    assert (SHAPE.batches, SHAPE.allocations) == (180, 1_800_000)


def test_a_small_installation_has_a_pipeline() -> None:
    small = Shape.of(20, days=1, interval=3_600, receivers_per_process=40)
    assert (small.streams, small.pipelines, small.processes, small.agents) == (2, 1, 1, 1)


@pytest.mark.parametrize(("receivers", "streams", "pipelines"), [(10, 3, 1), (12, 4, 3)])
def test_receivers_and_streams_must_divide_evenly(receivers: int, streams: int, pipelines: int) -> None:
    with pytest.raises(ValueError, match="not even"):
        Shape(receivers, streams, pipelines, 1, 3_600, 40)


def test_a_history_of_one_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="two batches"):
        Shape.of(100, days=1, interval=80_000, receivers_per_process=40)


@pytest.mark.parametrize(
    ("key", "times"),
    [
        ("tick", 60),
        ("clean_up", 2),
        ("allocation", 100),  # a batch a minute of each of 100 pipelines
        ("add_block", 250 * 60),  # a block a second of each receiver, all of a process in one call
        ("contiguity", 100 / 60),  # each pipeline once an hour
        ("batch_stats", 0),  # `forebay status` includes it
    ],
)
def test_how_often_in_a_minute(key: str, times: float) -> None:
    assert operation(key).per_minute(SHAPE) == pytest.approx(times)


def test_a_minute_is_the_cost_of_one_run_times_the_runs() -> None:
    measured = Measured(SHAPE, {"tick": Cost(30, 10, 5), "clean_up": Cost(3_000, 600, 3), "batch_stats": Cost(9, 9, 9)})
    tick = measured.load(operation("tick"))
    assert tick is not None
    assert (tick.server_ms, tick.client_ms) == (1_800, 600)
    assert (tick.server_share, tick.client_share) == pytest.approx((0.03, 0.01))
    total = measured.total()
    assert (total.server_ms, total.client_ms) == (1_800 + 6_000, 600 + 1_200)
    assert measured.load(operation("metrics")) is None


@pytest.mark.parametrize(
    ("key", "cost", "met"),
    [
        ("tick", Cost(30, 20, 1), True),
        ("tick", Cost(30, 21, 1), False),  # server and client together
        ("heartbeat", Cost(100, 900, 1), True),  # the server alone
        ("heartbeat", Cost(101, 0, 1), False),
        ("batch_stats", Cost(1, 1, 1), None),  # has no aim
    ],
)
def test_an_aim_counts_its_part_of_the_cost(key: str, cost: Cost, met: bool | None) -> None:
    assert Measured(SHAPE, {key: cost}).met(operation(key)) is met


def test_what_was_not_measured_meets_nothing() -> None:
    assert Measured(SHAPE, {}).met(operation("tick")) is None
