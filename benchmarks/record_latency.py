"""From a record sent to a reader that sees its result: the part of `benchmarks.batch_latency` about single records.

Each line begins with the moment at which it was sent, and the pipeline counts lines by that. A reader looks at the
output's directory all the time and notes when each batch's result is there. So each line's time is known from outside,
whatever happens between, and in the same way for both systems.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq

from benchmarks.batch_latency_source import source, stamped_chunk
from benchmarks.batch_latency_systems import START_SECONDS, forebay_up, place, rows, spark_streaming, until
from benchmarks.report import time_figure

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from benchmarks.report import Report

INTERVALS = (1, 2, 5)
# Against Spark Streaming at the same interval: as soon at 1 s, and 0.7 of its time at 5 s.
_AIMS = {1: 1.0, 5: 1 / 0.7}
# Results of the first seconds are not counted: the processes are not warm yet.
_WARM_SECONDS = 15
_LEAST_FIRST = 3
_LOOK_SECONDS = 0.02
_FOREBAY_RESULTS = "date=*/hour=*/batch_time=*"
_SPARK_RESULTS = "batch_time=*/_SUCCESS"
_READY = "SELECT FROM forebay.batch_drivers WHERE state = 'READY'"
_STEPS = """
    SELECT extract(epoch FROM b.batch_time)::float8, extract(epoch FROM b.allocated_at)::float8,
           extract(epoch FROM a.started_at)::float8, extract(epoch FROM c.committed_at)::float8
    FROM forebay.batches b
    JOIN forebay.batch_attempts a USING (pipeline_id, batch_time, attempt)
    JOIN forebay.output_commits c USING (pipeline_id, batch_time)
    WHERE b.records > 0
"""


@dataclass
class _Reader:
    """Note what a reader of the output has seen: each batch's directory, and when; in seconds since the epoch."""

    output: Path
    pattern: str
    seen: dict[Path, float] = field(default_factory=dict)

    def look(self) -> None:
        """Note what is there now and was not before."""
        for found in self.output.glob(self.pattern):
            directory = found if found.is_dir() else found.parent
            self.seen.setdefault(directory, time.time())

    def results(self, first: int, batches: int) -> list[tuple[Path, float]]:
        """Return the batches that are counted, with the time at which each was seen."""
        ordered = sorted(self.seen.items(), key=lambda result: result[1])
        return ordered[first : first + batches]


@dataclass(frozen=True)
class _Step:
    """Hold a batch's times, in seconds since the epoch."""

    boundary: float
    allocated: float
    started: float
    committed: float


def measure(report: Report, interval: int, batches: int) -> None:
    """Measure both systems at this interval, one after the other, and add the figures."""
    report.section(f"from record to result, at an interval of {interval} s")
    ours, parts = _forebay(interval, batches)
    peer = _spark(interval, batches)
    for title, share in (("median", 0.5), ("p95", 0.95)):
        report.add(
            time_figure(
                f"record to result at {interval} s, {title}",
                _quantile(ours, share),
                _quantile(peer, share),
                peer_name="Spark Streaming",
                unit="s",
                aim=_AIMS.get(interval),
            )
        )
    report.note(
        f"at {interval} s, medians of the parts: " + ", ".join(f"{name} {value:.2f} s" for name, value in parts)
    )


def _forebay(interval: int, batches: int) -> tuple[dict[float, int], list[tuple[str, float]]]:
    begins = threading.Event()
    with place() as directory, source(stamped_chunk, begins) as port:
        reader = _Reader(directory / "output", _FOREBAY_RESULTS)
        with forebay_up(directory, port, interval=interval, drivers=1) as engine, _looking(reader):
            # As with Spark Streaming, whose receiver starts when Spark can run a batch: what comes earlier would queue,
            # and be measured as the time of the start.
            until(lambda: bool(rows(engine, _READY)), "a batch driver is ready")
            begins.set()
            wanted = _first(interval) + batches
            until(lambda: len(reader.seen) >= wanted, "its batches", batches * 60.0 + START_SECONDS)
            steps = _steps(engine)
        results = reader.results(_first(interval), batches)
        return _latencies(results), _parts(results, steps)


def _spark(interval: int, batches: int) -> dict[float, int]:
    with place() as directory, source(stamped_chunk) as port:
        reader = _Reader(directory / "output", _SPARK_RESULTS)
        with spark_streaming(directory, port, interval=interval) as written, _looking(reader):
            # Two more: a batch with nothing in it is written too, and a look may still be missing.
            for _ in islice(written, _first(interval) + batches + 2):
                pass
        return _latencies(reader.results(_first(interval), batches))


def _first(interval: int) -> int:
    return max(_LEAST_FIRST, -(-_WARM_SECONDS // interval))


@contextmanager
def _looking(reader: _Reader) -> Iterator[None]:
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(_LOOK_SECONDS):
            reader.look()

    thread = threading.Thread(target=look, name="reader", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _latencies(results: list[tuple[Path, float]]) -> dict[float, int]:
    """Return how many lines waited how long for their result, by seconds."""
    found: dict[float, int] = defaultdict(int)
    for directory, seen in results:
        for sent, count in _counts(directory):
            found[seen - sent] += count
    if not found:
        raise RuntimeError("no result has a line: nothing was measured")
    return found


def _counts(directory: Path) -> Iterator[tuple[float, int]]:
    for file in directory.glob("*.parquet"):
        table = pq.ParquetFile(file).read()
        for key, count in zip(table["key"].to_pylist(), table["count"].to_pylist(), strict=True):
            yield float(key), int(count)


def _steps(engine: sa.Engine) -> list[_Step]:
    return [_Step(*cast("tuple[float, float, float, float]", tuple(row))) for row in rows(engine, _STEPS)]


def _parts(results: list[tuple[Path, float]], steps: list[_Step]) -> list[tuple[str, float]]:
    """Return the medians of a batch's parts, from its boundary on. Spark's job ends with the newest of its files."""
    parts: dict[str, list[float]] = defaultdict(list)
    for directory, seen in results:
        files = list(directory.glob("*.parquet"))
        written = max(file.stat().st_mtime for file in files)
        # The batch whose attempt wrote this file.
        times = next((step for step in steps if step.started <= written <= step.committed), None)
        if times is None:
            continue
        parts["boundary to allocation"].append(times.allocated - times.boundary)
        parts["allocation to attempt"].append(times.started - times.allocated)
        parts["attempt to the last file (planning and Spark's job)"].append(written - times.started)
        parts["last file to commit"].append(times.committed - written)
        parts["commit to seen"].append(seen - times.committed)
    return [(name, statistics.median(values)) for name, values in parts.items()]


def _quantile(latencies: dict[float, int], share: float) -> float:
    wanted, reached = share * sum(latencies.values()), 0
    for seconds in sorted(latencies):
        reached += latencies[seconds]
        if reached >= wanted:
            return seconds
    raise AssertionError("unreachable: the counts reach their sum")
