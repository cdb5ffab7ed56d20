"""Count flights per carrier and origin, every 10 seconds, from JSON lines on a socket: the demo's pipeline.

It is written like a user's own pipeline. Importing it starts nothing, and needs no running service.

It reads these environment variables: `FOREBAY_DEMO_HOST` (127.0.0.1) and `FOREBAY_DEMO_PORT` (9999) name the
address that the lines come from, `FOREBAY_DEMO_OUTPUT` the directory of the Parquet files (`demo-output` under
`FOREBAY_HOME`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOST = os.environ.get("FOREBAY_DEMO_HOST", "127.0.0.1")
PORT = int(os.environ.get("FOREBAY_DEMO_PORT", "9999"))
OUTPUT = os.environ.get("FOREBAY_DEMO_OUTPUT") or str(
    Path(os.environ.get("FOREBAY_HOME", ".forebay")) / "demo-output" / "flights_by_carrier"
)

FLIGHT = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay BIGINT,
    arr_time INT, sched_arr_time INT, arr_delay BIGINT, carrier STRING, flight INT, tailnum STRING,
    origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""

flights = Stream("flights", SocketText(host=HOST, port=PORT))
pipeline = Pipeline("flights_by_carrier", interval="10s")


@pipeline.output(inputs=[flights], sink=ParquetSink(OUTPUT))
def departure_delays(flights: DataFrame) -> DataFrame:
    """Return flights, departures with a known delay, and the delay's sum and mean in minutes, per carrier and origin.

    The sum is kept beside the mean so that batches can be added up exactly. A line that is not a flight is
    counted too, under the carrier null.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own name for it, in the run only

    flight = flights.select(F.from_json("value", FLIGHT).alias("flight")).select("flight.*")
    return flight.groupBy("carrier", "origin").agg(
        F.count("*").alias("flights"),
        F.count("dep_delay").alias("departures"),
        F.sum("dep_delay").alias("departure_delay_sum"),
        F.avg("dep_delay").alias("departure_delay_mean"),
    )
