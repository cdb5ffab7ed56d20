"""The pipelines under test: numbered records from four kinds of source into Parquet, windows, running totals, tables.

A record is ``SOURCE NUMBER.``: the full stop is missing from a record that a broken connection has cut.
"""

from __future__ import annotations

import os
from functools import reduce
from typing import TYPE_CHECKING

from forebay import EnvVar, EventWindow, ParquetSink, Pipeline, PostgresSink, State, Stream
from forebay.sources import FollowedFiles, Http, Kafka, SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from receiver_runtime.sources.source import Source

_REPLICAS = int(os.environ["CHAOS_REPLICAS"])
_WINDOW = "15s"
_RECORD = r"^([a-z]+) ([0-9]+)\.$"
_NUMBER = "try_cast(regexp_extract(CAST(body AS STRING), '^http ([0-9]+)[.]$', 1) AS BIGINT)"
# In seconds since 1970; up to 200 s behind the newest records, more than the lateness (tests.chaos.oracle).
_EVENT_TIME = f"timestamp_seconds({_NUMBER} - {_NUMBER} * 37 % 11 * 20)"


def _stream(name: str, source: Source) -> Stream:
    # Start new segments often, so that a missing or read-only disk is noticed when one is opened.
    return Stream(name, source, min_replicas=_REPLICAS, segment_interval="10s")


http = _stream("http", Http(listen=f"127.0.0.1:{os.environ['CHAOS_HTTP_PORT']}"))
kafka = _stream("kafka", Kafka(bootstrap_servers=os.environ["CHAOS_KAFKA"], topics=("numbers",), group="chaos"))
files = _stream("files", FollowedFiles(path=os.environ["CHAOS_FILES"] + "/numbers.log*", shared=True))
socket = _stream("socket", SocketText(host="127.0.0.1", port=int(os.environ["CHAOS_SOCKET_PORT"])))

# "merge": on a loaded machine, the runs missed in an outage must not queue up. Clean-up follows soon.
numbered = Pipeline("numbered", interval="3s", retention="2m", catch_up="merge")
# Faults also hit its target; the batch must not fail for good because of that.
delivered = Pipeline("delivered", interval="6s", retention="2m", catch_up="merge", max_attempts=20)


def _records(frame: DataFrame, column: str) -> DataFrame:
    text = f"CAST({column} AS STRING)"
    return frame.where(f"{text} RLIKE '{_RECORD}'").selectExpr(
        f"regexp_extract({text}, '{_RECORD}', 1) AS source",
        f"CAST(regexp_extract({text}, '{_RECORD}', 2) AS BIGINT) AS number",
    )


def _union(*frames: DataFrame) -> DataFrame:
    return reduce(lambda one, other: one.unionByName(other), frames)


@numbered.output(inputs=[http, kafka, files, socket], sink=ParquetSink(os.environ["CHAOS_OUTPUT"] + "/seen"))
def seen(http: DataFrame, kafka: DataFrame, files: DataFrame, socket: DataFrame) -> DataFrame:
    """Return each record that came in."""
    return _union(_records(http, "body"), *(_records(frame, "value") for frame in (kafka, files, socket)))


@numbered.output(
    inputs=[http.window(_WINDOW), kafka.window(_WINDOW)], sink=ParquetSink(os.environ["CHAOS_OUTPUT"] + "/window")
)
def window(http: DataFrame, kafka: DataFrame) -> DataFrame:
    """Return the count and sum of the records in the last 15 s of batches, by source."""
    records = _union(_records(http, "body"), _records(kafka, "value"))
    return (
        records.groupBy("source")
        .agg({"number": "sum", "*": "count"})
        .selectExpr("source", "`sum(number)` AS total", "`count(1)` AS records")
    )


def _sums(http: DataFrame, kafka: DataFrame) -> DataFrame:
    records = _union(_records(http, "body"), _records(kafka, "value"))
    return (
        records.groupBy("source")
        .agg({"number": "sum", "*": "count"})
        .selectExpr("source", "`sum(number)` AS more", "`count(1)` AS more_records")
    )


@numbered.output(
    inputs=[http, kafka],
    state=State("source STRING", "total BIGINT, records BIGINT", keys=_sums, buckets=4),
    sink=ParquetSink(os.environ["CHAOS_OUTPUT"] + "/totals"),
)
def totals(http: DataFrame, kafka: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the count and sum of all records up to this batch, of the sources that it has records of."""
    changed = (
        _sums(http, kafka)
        .join(state, "source", "left")
        .selectExpr("source", "coalesce(total, 0) + more AS total", "coalesce(records, 0) + more_records AS records")
    )
    return changed, changed


@delivered.output(inputs=[http, kafka], sink=PostgresSink(EnvVar("CHAOS_TARGET"), "delivered"))
def table(http: DataFrame, kafka: DataFrame) -> DataFrame:
    """Write records to a table in another Postgres."""
    return _union(_records(http, "body"), _records(kafka, "value"))


@delivered.output(
    inputs=[http.by_event_time(_EVENT_TIME, lateness="60s")],
    window=EventWindow("100s"),
    sink=PostgresSink(EnvVar("CHAOS_TARGET"), "event_windows", mode="merge", key=["window_start"]),
)
def event_windows(http: DataFrame) -> DataFrame:
    """Write the count and sum of the records of each window by event time to a table, which replaces its row."""
    numbers = http.selectExpr("window_start", f"{_NUMBER} AS number")
    return (
        numbers.groupBy("window_start")
        .agg({"number": "sum", "*": "count"})
        .selectExpr("window_start", "`sum(number)` AS total", "`count(1)` AS records")
    )
