"""Count flights from JSON lines on a socket, every 10 seconds, and add them up: the demo's pipeline.

One output has the figures of each batch, per carrier and origin; the other keeps a running total per carrier, which is
its state. It is written like a user's own pipeline. Importing it starts nothing, and needs no running service.

It reads these environment variables: `FOREBAY_DEMO_HOST` (127.0.0.1) and `FOREBAY_DEMO_PORT` (9999) name the
address that the lines come from, `FOREBAY_DEMO_OUTPUT` the directory that has one of Parquet files for each output
(`demo-output/flights_by_carrier` under `FOREBAY_HOME`).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, State, Stream
from forebay.sources import SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HOST = os.environ.get("FOREBAY_DEMO_HOST", "127.0.0.1")
PORT = int(os.environ.get("FOREBAY_DEMO_PORT", "9999"))
OUTPUT = os.environ.get("FOREBAY_DEMO_OUTPUT") or str(
    Path(os.environ.get("FOREBAY_HOME", ".forebay")) / "demo-output" / "flights_by_carrier"
)

# What is counted; Spark skips the other fields of a line, which takes half as long as to parse them.
FLIGHT = "carrier STRING, origin STRING, dep_delay BIGINT"

flights = Stream("flights", SocketText(host=HOST, port=PORT))
pipeline = Pipeline("flights_by_carrier", interval="10s")


def parsed(flights: DataFrame) -> DataFrame:
    """Return the columns of each line; all of them are null if it is not a flight."""
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  Spark's own name for it, in the run only

    return flights.select(F.from_json("value", FLIGHT).alias("flight")).select("flight.*")


def counted(flights: DataFrame, *by: str) -> DataFrame:
    """Return flights, departures with a known delay, and the delay's sum and mean in minutes, of each group.

    A line that is not a flight is counted too, under the carrier null.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  as above

    return (
        parsed(flights)
        .groupBy(*by)
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departures"),
            F.sum("dep_delay").alias("departure_delay_sum"),
            F.avg("dep_delay").alias("departure_delay_mean"),
        )
    )


@pipeline.output(inputs=[flights], sink=ParquetSink(f"{OUTPUT}/departure_delays"))
def departure_delays(flights: DataFrame) -> DataFrame:
    """Return the figures of a batch per carrier and origin.

    The sum is kept beside the mean so that batches can be added up exactly.
    """
    return counted(flights, "carrier", "origin")


def carriers(flights: DataFrame) -> DataFrame:
    """Return the keys whose totals a batch needs."""
    return parsed(flights).select("carrier")


@pipeline.output(
    inputs=[flights],
    state=State(
        key="carrier STRING", value="flights BIGINT, departures BIGINT, departure_delay_sum BIGINT", keys=carriers
    ),
    sink=ParquetSink(f"{OUTPUT}/running_totals"),
)
def running_totals(flights: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the totals since the first batch of each carrier that occurs in this one; they are the state too."""
    more, before = counted(flights, "carrier").alias("more"), state.alias("before")
    # Null is a key as any other: that of the lines that are no flights.
    both = more.join(before, more["carrier"].eqNullSafe(before["carrier"]), "left")
    totals = both.selectExpr(
        "more.carrier",
        *(
            f"coalesce(before.{name}, 0) + coalesce(more.{name}, 0) AS {name}"
            for name in ("flights", "departures", "departure_delay_sum")
        ),
    )
    return totals, totals
