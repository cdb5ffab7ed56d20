"""Measure one large batch on a Spark standalone cluster of two workers, beside a bare Spark job on the same records.

Run as ``python -m benchmarks.large_batch [--records 100000000] [--json]``; docs/reference/benchmarks.md says what each
figure means. Blocks, driver log, the batch's run and the cluster are real; all of it shares this machine. Exits with 1
if a record is missing or doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.large_batch_job import BUCKET, NAME, declare
from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from benchmarks.stored_batch import SCHEMA, numbered_lines, store_batch
from orchestration.settings import Settings
from tests.support.spark.cluster import running_cluster
from tracker_store.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tests.support.spark.cluster import StandaloneCluster

_ROOT = Path(__file__).parents[1]
_RECORDS = 100_000_000
_RECEIVERS = 10
_RECORDS_PER_BLOCK = 10_000
_ROW_GROUP = 1_000_000
_SAMPLE_SECONDS = 0.2
_LIMIT_SECONDS = 3_600.0
_BYTES_PER_RECORD = 60  # of disk, for blocks, Parquet files and shuffles, with room to spare
_CONFIGURATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "900m",
    "spark.cores.max": "2",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long a job's work took, without the start of Spark; peaks of resident memory in MiB."""

    seconds: float
    driver_mib: float
    executors_mib: float


class Memory:
    """The peak of the resident memory of a tree of processes; pages that they share count in each."""

    def __init__(self, roots: list[psutil.Process], *, without_roots: bool = False) -> None:
        self._roots = roots
        self._without_roots = without_roots
        self.peak_mib = 0.0

    def sample(self) -> None:
        """Look once."""
        total = 0
        for root in self._roots:
            try:
                tree = root.children(recursive=True) + ([] if self._without_roots else [root])
            except psutil.NoSuchProcess:
                continue
            for process in tree:
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:
                    continue
        self.peak_mib = max(self.peak_mib, total / 2**20)


def _run(job: str, argument: str, cluster: StandaloneCluster, environment: Mapping[str, str], log: Path) -> Outcome:
    """Run one job of `large_batch_job` in its own process, and look at its memory and that of the executors."""
    with log.open("wb") as errors:
        process = subprocess.Popen(  # noqa: S603  a module of ours
            [sys.executable, "-m", "benchmarks.large_batch_job", job, argument],
            cwd=_ROOT,
            env={**os.environ, **environment, "PYTHONPATH": str(_ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    driver = Memory([psutil.Process(process.pid)])
    # The workers' children are the executors; the workers themselves do no work of a batch.
    executors = Memory([psutil.Process(worker.pid) for worker in cluster.workers], without_roots=True)
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            driver.sample()
            executors.sample()

    watcher = threading.Thread(target=watch, name="memory", daemon=True)
    watcher.start()
    try:
        output, _ = process.communicate(timeout=_LIMIT_SECONDS)
    finally:
        process.kill()
        ended.set()
        watcher.join()
    if process.returncode != 0:
        raise RuntimeError(f"the job {job} failed:\n{log.read_text(encoding='utf-8')[-4000:]}")
    return Outcome(json.loads(output.splitlines()[-1])["seconds"], driver.peak_mib, executors.peak_mib)


def _write_parquet(directory: Path, records: int) -> None:
    """Write the same records as Parquet: a file for each receiver, with the blocks' compression."""
    directory.mkdir()
    each = records // _RECEIVERS
    for number in range(_RECEIVERS):
        with pq.ParquetWriter(directory / f"{number}.parquet", SCHEMA, compression="lz4") as writer:
            for first in range(number * each, (number + 1) * each, _ROW_GROUP):
                lines = numbered_lines(first, min(_ROW_GROUP, (number + 1) * each - first))
                writer.write_table(pa.table([lines], schema=SCHEMA))


def _wrong(output: Path, records: int) -> Iterator[str]:
    """Yield what is missing or doubled in an output: each bucket has its count, sum and exclusive or of its numbers."""
    rows = ds.dataset(output, format="parquet", ignore_prefixes=["_", "."]).to_table().to_pylist()
    found = {row["bucket"]: (row["records"], row["total"], row["mixed"]) for row in rows}
    if len(rows) != len(found):
        yield f"{len(rows) - len(found)} buckets came out twice"
    for bucket in range(-(-records // BUCKET)):
        first, end = bucket * BUCKET, min(records, (bucket + 1) * BUCKET)
        expected = (end - first, (first + end - 1) * (end - first) // 2, _mixed(end) ^ _mixed(first))
        if found.pop(bucket, None) != expected:
            yield f"numbers {first:,} to {end - 1:,} are not there once each"
    if found:
        yield f"numbers that were never stored, in the buckets {sorted(found)}"


def _mixed(end: int) -> int:
    """Return the exclusive or of all numbers below `end`."""
    last = end - 1
    return 0 if end <= 0 else (last, 1, last + 1, 0)[last % 4]


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--records", type=int, default=_RECORDS, help="a multiple of 100,000")
    given = parser.parse_args()
    records: int = given.records
    blocks_each = records // (_RECEIVERS * _RECORDS_PER_BLOCK)
    if blocks_each * _RECEIVERS * _RECORDS_PER_BLOCK != records:
        parser.error("--records must be a multiple of 100,000")
    if shutil.disk_usage(tempfile.gettempdir()).free < records * _BYTES_PER_RECORD:
        parser.error(f"{tempfile.gettempdir()} needs {records * _BYTES_PER_RECORD / 1e9:.0f} GB of free space")
    report = Report("large_batch", machine(load=f"{os.getloadavg()[0]:.1f}"))
    with tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as made, running_server(Path(made)) as server:
        directory = Path(made)
        settings = Settings(home=directory / "home", database_url=server.url)
        pipeline = declare(directory / "output", _RECEIVERS)
        report.section(f"{records:,} records")
        began = time.perf_counter()
        with connect(server.engine) as connection:
            batch_time = store_batch(
                connection,
                settings.block_store_roots,
                pipeline,
                blocks_each=blocks_each,
                records_each=_RECORDS_PER_BLOCK,
            )
        stored = time.perf_counter() - began
        parquet = directory / "parquet"
        _write_parquet(parquet, records)
        blocks = settings.home / "blocks"
        (directory / "cluster").mkdir()
        with running_cluster(directory / "cluster", memory="1g") as cluster:
            environment = {
                "FOREBAY_HOME": str(settings.home),
                "FOREBAY_DATABASE_URL": server.url,
                "FOREBAY_SPARK_MASTER": cluster.url,
                "FOREBAY_SPARK_CONFIGURATION": json.dumps(_CONFIGURATION),
                "LARGE_BATCH_RECEIVERS": str(_RECEIVERS),
                "LARGE_BATCH_OUTPUT": str(directory / "output"),
                "LARGE_BATCH_PARQUET": str(parquet),
                "LARGE_BATCH_BARE_OUTPUT": str(directory / "bare"),
            }
            ours = _run(NAME, batch_time.isoformat(), cluster, environment, directory / "ours.log")
            bare = _run("bare", "", cluster, environment, directory / "bare.log")
        wrong = [*_wrong(directory / "output", records)]
        also_wrong = [*_wrong(directory / "bare", records)]
        peer = "bare Spark, Parquet"
        report.add(
            rate_figure(
                "a batch", [records / ours.seconds], [records / bare.seconds], peer_name=peer, unit="records/s"
            ),
            time_figure("a batch", ours.seconds, bare.seconds, peer_name=peer, unit="s"),
            time_figure("memory of the driver", ours.driver_mib, bare.driver_mib, peer_name=peer, unit="MiB"),
            time_figure("memory of both executors", ours.executors_mib, bare.executors_mib, peer_name=peer, unit="MiB"),
        )
        report.note(
            f"{records // _RECORDS_PER_BLOCK:,} blocks of {_RECEIVERS} receivers, {_size(blocks) / 2**20:,.0f} MiB, "
            f"stored in {stored:.0f} s; Parquet {_size(parquet) / 2**20:,.0f} MiB"
        )
    report.note("each record came out once" if not wrong else f"WRONG: {'; '.join(wrong[:5])}")
    report.print(as_json=given.json)
    if wrong or also_wrong:
        sys.exit(f"the output is wrong: {'; '.join([*wrong, *also_wrong][:5])}")


if __name__ == "__main__":
    main()
