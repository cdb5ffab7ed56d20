"""Test the demo's output function in a real Spark session: exact totals, and no record dropped."""

from __future__ import annotations

import json
import subprocess
import sys

from forebay.demo import comparison, flights

# In its own process: there is one Spark session per process, and other tests have their own.
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from forebay.demo import flights, pipeline
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
block = next(flights.line_blocks(flights.read_flights(), rows_per_block=2000))
lines = bytes(block.data).decode().splitlines() + ["this is no flight", "{}"]
result = pipeline.departure_delays(spark.createDataFrame([(line,) for line in lines], "value STRING"))
print(json.dumps([row.asDict() for row in result.collect()]))
spark.stop()
"""


def test_totals_are_exact_and_an_invalid_line_is_counted() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        check=True,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        timeout=240,
    )
    rows = json.loads(result.stdout)
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
