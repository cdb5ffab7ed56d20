"""Measure how fast Spark reads a batch's blocks, beside its own reading of the same lines from text files."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import psutil
import pyarrow.compute as pc

from benchmarks.ingest_least_source import read_least, write_arrow
from orchestration.declarations.settings import Settings
from orchestration.spark.reading.block_reader import PARTITION_BYTES
from orchestration.spark.session.session import spark_session
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.sources.fields.secret import Secret
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.received_block_tracker import AllocatedBlock, ReceivedBlockTracker
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.ingest_receiver import Receiver
    from benchmarks.server import Server

_TEXT_FILE_BYTES = 128 * 2**20
_WARM_UPS = 2


@dataclass
class Reads:
    """Each round's rows per second, and CPU seconds per million rows of the JVM and its Python workers."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def read(self, load: Callable[[], DataFrame], rows: int) -> None:
        """Plan, read all columns of all rows into Spark's `noop` sink, and record rate and CPU."""
        cpu, began = _spark_cpu(), time.perf_counter()
        load().write.format("noop").mode("overwrite").save()
        self.rates.append(rows / (time.perf_counter() - began))
        self.cpu.append((_spark_cpu() - cpu) / rows * 1e6)


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Count the rows that were read, and hold the figures of each way."""

    rows: int
    ours: Reads = field(default_factory=Reads)
    text: Reads = field(default_factory=Reads)
    least: Reads = field(default_factory=Reads)


def read_back(server: Server, receiver: Receiver, directory: Path, *, rounds: int) -> ReadBack:
    """Put all blocks of a receiver into one batch, write the same rows as text and as Arrow files, and read each."""
    batch_time, blocks = _allocate(server, receiver)
    text = directory / f"text of {receiver.stream}"
    rows = _write_text(_batches(receiver, blocks), text)
    task_rows = max(1, rows * PARTITION_BYTES // max(1, sum(block.handle.length for block in blocks)))
    arrow = write_arrow(_batches(receiver, blocks), directory / f"arrow of {receiver.stream}", task_rows)
    key = None if receiver.block_key is None else Secret(receiver.block_key)
    settings = Settings(home=directory, database_url=server.url, block_store=str(receiver.block_store), block_key=key)
    session = spark_session(settings, application="benchmark")
    try:
        session.sparkContext.setLogLevel("ERROR")
        options = {
            "pipeline": receiver.stream,
            "batch_time": batch_time.isoformat(),
            "stream": receiver.stream,
            "database_url": server.url,
            "block_store": str(receiver.block_store),
            "block_keys": receiver.block_key or "",
        }
        result = ReadBack(rows)
        for number in range(-_WARM_UPS, rounds):
            if number == 0:
                result = ReadBack(rows)
            result.ours.read(partial(_blocks, session, options), rows)
            result.text.read(partial(session.read.text, str(text)), rows)
            result.least.read(partial(read_least, session, arrow), rows)
        if (found := _blocks(session, options).count()) != rows:
            raise RuntimeError(f"Spark found {found} rows of {rows}")
        return result
    finally:
        session.stop()


def _blocks(session: SparkSession, options: dict[str, str]) -> DataFrame:
    return session.read.format("forebay").options(**options).load()


def _spark_cpu() -> float:
    """Return the CPU seconds of all processes of Spark; those of ended processes count for their parents."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if process.name().startswith(("java", "python")):
                total += sum(process.cpu_times()[:4])
    return total


def _allocate(server: Server, receiver: Receiver) -> tuple[datetime, Sequence[AllocatedBlock]]:
    with connect(server.engine) as connection:
        pipeline_id = apply_pipeline(
            connection,
            name=receiver.stream,
            declaration={"max_attempts": 3, "streams": [receiver.stream]},
            stream_ids=[receiver.stream_id],
            interval=timedelta(seconds=1),
        )
        tracker = ReceivedBlockTracker(connection, pipeline_id)
        [[now]] = server.execute(
            "UPDATE forebay.pipelines SET last_batch_time = last_batch_time - interval '1 hour' "  # noqa: S608  a number
            f"WHERE id = {pipeline_id:d} RETURNING date_trunc('second', clock_timestamp())"
        )
        assert isinstance(now, datetime)
        time.sleep(1)
        batch_time = now + timedelta(seconds=1)
        tracker.allocate_blocks_to_batch(batch_time)
        return batch_time, tracker.get_blocks_of_batch_and_stream(batch_time, receiver.stream_id)


def _batches(receiver: Receiver, blocks: Sequence[AllocatedBlock]) -> Iterator[pa.RecordBatch]:
    keys = BlockKeys([] if receiver.block_key is None else [Secret(receiver.block_key)])
    store = open_block_store(str(receiver.block_store), keys=keys)
    for block in blocks:
        handle = block.handle
        for batch in store.read_batches(block.path, handle.offset, handle.length, handle.crc32c):
            yield batch.replace_schema_metadata(None)


def _write_text(batches: Iterable[pa.RecordBatch], directory: Path) -> int:
    """Write the batches' lines to text files of about a segment's size; return how many lines there are."""
    directory.mkdir()
    rows = files = size = 0
    file = (directory / "0.txt").open("wb")
    for batch in batches:
        lines = pc.binary_join_element_wise(batch.column(0), "", "\n")
        text = memoryview(lines.buffers()[2])
        file.write(text)
        rows += batch.num_rows
        size += len(text)
        if size >= _TEXT_FILE_BYTES:
            file.close()
            files, size = files + 1, 0
            file = (directory / f"{files}.txt").open("wb")
    file.close()
    return rows
