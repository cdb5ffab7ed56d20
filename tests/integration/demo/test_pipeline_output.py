"""Test the demo's output function in a real Spark session: exact totals, and no record dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.demo import comparison, flights, pipeline

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
