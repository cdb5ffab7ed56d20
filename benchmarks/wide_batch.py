"""Measure what a batch of many receivers and many small blocks costs before and in its tasks.

Run as ``python -m benchmarks.wide_batch [--json] [--quick]``; docs/reference/benchmarks.md says what each figure
means. Blocks, driver log and Spark are real. The peer of a batch with N times the blocks is the smaller batch, times N.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Report, machine, time_figure
from benchmarks.server import running_server
from benchmarks.stored_batch import store_batch
from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batch_inputs import read_batch_inputs
from orchestration.settings import Settings
from orchestration.spark.allocation import encode_allocation, location_of
from orchestration.spark.block_reader import (
    ALLOCATION,
    BLOCK_COST_BYTES,
    BLOCK_KEYS,
    PARTITION_BYTES,
    partitions_of,
    spark_schema,
)
from orchestration.spark.data_source import FORMAT
from orchestration.spark.session import spark_session
from tracker_store.engine import connect
from tracker_store.pipelines import get_pipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.server import Server

_RECEIVERS = 1_000
_QUICK_RECEIVERS = 100
_BLOCKS_EACH = (10, 100)
_RECORDS_EACH = 10


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of one batch; `sent_bytes`: the pickled partitions; `passed_bytes`: the planner's option."""

    blocks: int
    stored_bytes: int
    looked_up_seconds: float
    planned_seconds: float
    tasks: int
    passed_bytes: int
    sent_bytes: int
    read_seconds: float


def _declare(name: str, directory: Path, receivers: int) -> tuple[Stream, Pipeline]:
    lines = Stream(name, SocketText(host="127.0.0.1", port=9999), receivers=receivers)
    pipeline = Pipeline(name, interval="1h")

    @pipeline.output(name=name, inputs=[lines], sink=ParquetSink(directory / name))
    def counted(lines: DataFrame) -> DataFrame:
        return lines

    return lines, pipeline


def _measure(server: Server, session: SparkSession, directory: Path, *, receivers: int, blocks_each: int) -> Outcome:
    name = f"wide{blocks_each}"
    stream, pipeline = _declare(name, directory, receivers)
    store = str(directory / f"{name}-blocks")
    with connect(server.engine) as connection:
        batch_time = store_batch(connection, store, pipeline, blocks_each=blocks_each, records_each=_RECORDS_EACH)
        server.execute("VACUUM ANALYZE")
        pipeline_id = get_pipeline(connection, name).pipeline_id
        began = time.perf_counter()
        inputs = read_batch_inputs(
            connection, pipeline, pipeline_id, batch_time, pipeline.outputs.values(), block_store=store
        )
        looked_up = time.perf_counter() - began
    locations = [location_of(block) for block in inputs.blocks_of(stream)]
    sent = sum(len(pickle.dumps(partition)) for partition in partitions_of(locations, expected=inputs.expected))
    began = time.perf_counter()
    allocation = encode_allocation(locations, inputs.expected)
    frame = (
        session.read.format(FORMAT)
        .schema(spark_schema(inputs.columns[name]))
        .option("pipeline", name)
        .option("batch_time", batch_time.isoformat())
        .option("stream", name)
        .option("block_store", store)
        .option(BLOCK_KEYS, "")
        .option(ALLOCATION, allocation)
        .load()
    )
    tasks = frame.rdd.getNumPartitions()
    planned = time.perf_counter() - began
    began = time.perf_counter()
    [row] = frame.selectExpr(
        "count(*) AS records", "sum(CAST(substring_index(value, ' ', 1) AS BIGINT)) AS sum"
    ).collect()
    read = time.perf_counter() - began
    records = receivers * blocks_each * _RECORDS_EACH
    if (row.records, row.sum) != (records, records * (records - 1) // 2):
        raise RuntimeError(f"the batch has {row.records} records with the sum {row.sum}, not {records} numbered ones")
    stored = sum(length for _, _, length, _, _ in locations)
    return Outcome(len(locations), stored, looked_up, planned, tasks, len(allocation), sent, read)


def _figures(few: Outcome, many: Outcome) -> list[Figure]:
    times = many.blocks / few.blocks
    peer = f"{few.blocks:,} blocks, times {times:g}"
    size = f"{many.blocks:,} blocks"

    def beside(what: str, ours: float, smaller: float, unit: str) -> Figure:
        return time_figure(f"{size}: {what}", ours, smaller * times, peer_name=peer, unit=unit)

    by_bytes = -(-many.stored_bytes // PARTITION_BYTES)
    return [
        beside("blocks from the driver log", many.looked_up_seconds, few.looked_up_seconds, "s"),
        beside("planned by Spark", many.planned_seconds, few.planned_seconds, "s"),
        beside("passed to the planner", many.passed_bytes, few.passed_bytes, "bytes"),
        beside("sent to the tasks", many.sent_bytes, few.sent_bytes, "bytes"),
        beside("read", many.read_seconds, few.read_seconds, "s"),
        Figure(f"{size}: tasks", many.tasks, by_bytes, "by stored bytes alone", None, None, "tasks"),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="a tenth of the receivers: to see that it works")
    given = parser.parse_args()
    receivers = _QUICK_RECEIVERS if given.quick else _RECEIVERS
    report = Report("wide_batch", machine(load=f"{os.getloadavg()[0]:.1f}"))
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as made, running_server(Path(made)) as server:
        directory = Path(made)
        settings = Settings(home=directory / "home", database_url=server.url, spark_master="local[2]")
        session = spark_session(settings, application="wide_batch")
        session.sparkContext.setLogLevel("ERROR")
        try:
            # The first one warms Spark up.
            _measure(server, session, directory, receivers=receivers, blocks_each=1)
            few, many = (
                _measure(server, session, directory, receivers=receivers, blocks_each=each) for each in _BLOCKS_EACH
            )
        finally:
            session.stop()
    report.add(*_figures(few, many))
    report.note(
        f"{receivers:,} receivers, blocks of {many.stored_bytes // many.blocks} bytes, {_RECORDS_EACH} records each; "
        f"a block counts {BLOCK_COST_BYTES:,} bytes besides its own, a task {PARTITION_BYTES:,}"
    )
    report.print(as_json=given.json)


if __name__ == "__main__":
    main()
