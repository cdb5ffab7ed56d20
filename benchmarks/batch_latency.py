"""From a batch's boundary to its output committed, and from a record to its result; both beside Spark Streaming.

Run as ``python -m benchmarks.batch_latency [--json] [--quick] [--batches N]``; docs/reference/benchmarks.md says what
each figure means. Everything is real: `forebay up` as its users run it, once with a batch driver and once without (each
batch then starts a process and a JVM), and pyspark's own `socketTextStream` with its write-ahead log. They run one
after the other, each with the machine to itself. All of them get the same lines at the same pace and do the same with
them.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import islice
from typing import TYPE_CHECKING, cast

from benchmarks import record_latency
from benchmarks.batch_latency_source import RECORDS_PER_SECOND, keyed_chunks, source
from benchmarks.batch_latency_systems import START_SECONDS, forebay_up, place, rows, spark_streaming, until
from benchmarks.report import Report, machine, time_figure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_INTERVAL_SECONDS = 10
_RECORDS_PER_BATCH = RECORDS_PER_SECOND * _INTERVAL_SECONDS
_BATCHES = 30
_QUICK_BATCHES = 5
# The first batches of each are not counted: the processes are not warm yet.
_FIRST = 3
_MEDIAN_AIM = 1.0
_P95_AIM = 2.0
_LATENCIES = """
    SELECT extract(epoch FROM c.committed_at - c.batch_time)::float8
    FROM forebay.output_commits c JOIN forebay.batches b USING (pipeline_id, batch_time)
    WHERE b.records > 0 ORDER BY c.batch_time
"""


def _forebay(directory: Path, batches: int, *, drivers: int) -> list[float]:
    """Return the seconds from boundary to commit of this many batches, in `forebay up` with this many drivers."""
    wanted = batches + _FIRST
    with (
        source(keyed_chunks()) as port,
        forebay_up(directory, port, interval=_INTERVAL_SECONDS, drivers=drivers) as engine,
    ):
        until(lambda: len(rows(engine, _LATENCIES)) >= wanted, "its batches", batches * 60.0 + START_SECONDS)
        return [cast("float", row[0]) for row in rows(engine, _LATENCIES)[_FIRST:wanted]]


def _spark(directory: Path, batches: int) -> list[float]:
    """Return the same for Spark Streaming: the seconds from boundary until the output is written."""
    with (
        source(keyed_chunks()) as port,
        spark_streaming(directory, port, interval=_INTERVAL_SECONDS) as written,
    ):
        return [at - batch_time for batch_time, at in islice(written, _FIRST, batches + _FIRST)]


def _p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def _measure_boundaries(report: Report, batches: int) -> None:
    found: dict[str, list[float]] = {}
    measures: dict[str, Callable[[Path], list[float]]] = {
        "warm": lambda directory: _forebay(directory, batches, drivers=1),
        "Spark Streaming": lambda directory: _spark(directory, batches),
        "cold": lambda directory: _forebay(directory, max(3, batches // 5), drivers=0),
    }
    for name, measure in measures.items():
        report.section(name)
        with place() as directory:
            found[name] = measure(directory)
        report.note(
            f"{name}: median {statistics.median(found[name]):.2f} s, p95 {_p95(found[name]):.2f} s, "
            f"longest {max(found[name]):.2f} s of {len(found[name])} batches"
        )
    for title, of, aim in (("median", statistics.median, _MEDIAN_AIM), ("p95", _p95, _P95_AIM)):
        ours = of(found["warm"])
        report.add(
            time_figure(f"boundary to commit, {title}", ours, aim, peer_name="the aim", unit="s", aim=1.0),
            time_figure(
                f"boundary to commit, {title}",
                ours,
                of(found["Spark Streaming"]),
                peer_name="Spark Streaming, boundary to written",
                unit="s",
            ),
            time_figure(
                f"boundary to commit, {title}", ours, of(found["cold"]), peer_name="without a driver", unit="s"
            ),
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_BATCHES} batches of each")
    parser.add_argument("--batches", type=int, default=_BATCHES, help="how many batches of each are counted")
    parser.add_argument(
        "--part", choices=("boundary", "record"), help="only from boundary to commit, or from record to result"
    )
    arguments = parser.parse_args()
    batches = _QUICK_BATCHES if arguments.quick else arguments.batches
    report = Report(
        "batch_latency",
        machine(interval_seconds=_INTERVAL_SECONDS, records_per_batch=_RECORDS_PER_BATCH, batches=batches),
    )
    if arguments.part != "record":
        _measure_boundaries(report, batches)
    if arguments.part != "boundary":
        for interval in record_latency.INTERVALS:
            record_latency.measure(report, interval, batches)
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
