"""Test the demo's output functions in a real Spark session: exact totals, and no record dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.demo import comparison, flights, pipeline
from forebay.testing import run_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_totals_are_exact_and_an_invalid_line_is_counted(session: SparkSession) -> None:
    block = next(flights.line_blocks(flights.read_flights(), rows_per_block=2000))
    lines = [*bytes(block.data).decode().splitlines(), "this is no flight", "{}"]
    result = pipeline.departure_delays(session.createDataFrame([(line,) for line in lines], "value STRING"))
    rows = [row.asDict() for row in result.collect()]
    assert sorted(rows[0]) == sorted(comparison.COLUMNS)

    unreadable = [row for row in rows if row["carrier"] is None]
    assert [(row["origin"], row["flights"], row["departures"]) for row in unreadable] == [(None, 2, 0)]

    expected = comparison.expected_totals(flights.read_flights().slice(0, 2000))
    readable = {(row["carrier"], row["origin"]): row for row in rows if row["carrier"] is not None}
    assert readable.keys() == expected.keys()
    for key, totals in expected.items():
        row = readable[key]
        assert (row["flights"], row["departures"]) == (totals.flights, totals.departures)
        assert (row["departure_delay_sum"] or 0) == totals.delay_sum
        if totals.delay_mean is None:
            assert row["departure_delay_mean"] is None
        else:
            assert abs(row["departure_delay_mean"] - totals.delay_mean) <= comparison.MEAN_TOLERANCE


@pytest.mark.spark
def test_running_totals_go_on_from_the_batch_before(session: SparkSession) -> None:
    table = flights.read_flights()
    blocks = flights.line_blocks(table, rows_per_block=1000)
    batches = [bytes(next(blocks).data).decode().splitlines() for _ in range(2)]
    states = None
    for lines in batches:
        found = run_batch(
            pipeline.pipeline,
            {pipeline.flights: [*lines, "this is no flight"]},
            outputs=["running_totals"],
            states=states,
            session=session,
        )
        states = found.states
    rows = {row["carrier"]: row for row in found["running_totals"].to_pylist()}
    assert rows.pop(None) == {"carrier": None, "flights": 2, "departures": 0, "departure_delay_sum": 0}
    whole = table.slice(0, 2000).group_by("carrier").aggregate([([], "count_all"), ("dep_delay", "sum")]).to_pylist()
    assert {name: (row["flights"], row["departure_delay_sum"]) for name, row in rows.items()} == {
        row["carrier"]: (row["count_all"], row["dep_delay_sum"]) for row in whole
    }
