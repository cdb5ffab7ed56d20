"""The pipeline of `benchmarks.endurance`: 16 receivers of four kinds; each batch counts and adds up its numbers."""

from __future__ import annotations

import os
from functools import reduce
from typing import TYPE_CHECKING

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import FollowedFiles, Http, Kafka, SocketText

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_http = [
    Stream(f"http{number}", Http(listen=f"127.0.0.1:{port}"))
    for number, port in enumerate(os.environ["ENDURANCE_HTTP_PORTS"].split(","))
]
_sockets = [
    Stream(f"socket{number}", SocketText(host="127.0.0.1", port=int(port)))
    for number, port in enumerate(os.environ["ENDURANCE_SOCKET_PORTS"].split(","))
]
_files = [
    Stream(f"files{number}", FollowedFiles(path=f"{os.environ['ENDURANCE_FILES']}/{number}/numbers.log*"))
    for number in range(len(_http))
]
_kafka = Stream(
    "kafka",
    Kafka(bootstrap_servers=os.environ["ENDURANCE_KAFKA"], topics=("numbers",), group="endurance"),
    receivers=len(_http),
)

# "merge": a batch that takes longer than the interval must not leave a queue of runs behind.
pipeline = Pipeline(
    "endurance",
    interval=os.environ["ENDURANCE_INTERVAL"],
    retention="2m",
    catch_up="merge",
    backpressure_enabled=True,
)


@pipeline.output(inputs=[*_http, *_sockets, *_files, _kafka], sink=ParquetSink(os.environ["ENDURANCE_OUTPUT"]))
def sums(  # one parameter per input, by their order
    http0: DataFrame,
    http1: DataFrame,
    http2: DataFrame,
    http3: DataFrame,
    socket0: DataFrame,
    socket1: DataFrame,
    socket2: DataFrame,
    socket3: DataFrame,
    files0: DataFrame,
    files1: DataFrame,
    files2: DataFrame,
    files3: DataFrame,
    kafka: DataFrame,
) -> DataFrame:
    """Count the records of each source, and add up their numbers."""
    frames = [_numbers(frame, "body") for frame in (http0, http1, http2, http3)]
    frames += [
        _numbers(frame, "value")
        for frame in (socket0, socket1, socket2, socket3, files0, files1, files2, files3, kafka)
    ]
    together = reduce(lambda one, other: one.unionByName(other), frames)
    return (
        together.groupBy("source")
        .agg({"number": "sum", "*": "count"})
        .selectExpr("source", "`sum(number)` AS total", "`count(1)` AS records")
    )


def _numbers(frame: DataFrame, column: str) -> DataFrame:
    text = f"CAST({column} AS STRING)"
    return frame.selectExpr(
        f"substring_index({text}, ' ', 1) AS source", f"CAST(substring_index({text}, ' ', -1) AS BIGINT) AS number"
    )
