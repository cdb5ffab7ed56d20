"""From a batch's result to its output committed, beside the plain writer of the same rows.

Run as ``python -m benchmarks.sinks [--json] [--quick] [--rows N] [--only NAME,…]``; docs/reference/benchmarks.md says
what each figure means. One local Spark session holds the rows in its cache, so that neither side computes them. Both
sides write in turn; each write of ours is another batch.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Report, machine
from benchmarks.sinks_targets import COPY, NAMES, POSTGRES, targets
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import OutputAttempt, Sink
from orchestration.spark.session.session import spark_session

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from benchmarks.sinks_targets import Target
    from orchestration.declarations.sink import Step

_ROWS = 100_000
_ROUNDS = 11
_QUICK_ROUNDS = 3
# The first rounds are not counted: they make the table, start Python workers, and warm the JVM up.
_FIRST = 3
_FACTOR, _MILLISECONDS = 1.3, 100.0
_COPY_AIM = 0.8
_LINE = "concat('GET /', md5(string(id)), '?', md5(string(-id)), ' HTTP/1.1 200 ', 100000 + id % 900000)"


@dataclass
class _Steps:
    """Take the time of each step of a write."""

    began: float
    taken: dict[str, float]

    def reached(self, step: Step) -> None:
        now = time.perf_counter()
        self.taken[str(step)] = now - self.began
        self.began = now


def _ours(target: Target, frame: DataFrame, number: int) -> tuple[float, dict[str, float]]:
    """Write a batch; return the seconds, and those of its steps."""
    began = time.perf_counter()
    if not isinstance(target.ours, Sink):
        target.ours(number)
        return time.perf_counter() - began, {}
    sink = target.ours
    batch_time = datetime(2026, 1, 1, tzinfo=UTC) + number * timedelta(seconds=10)
    attempt = OutputAttempt("shop", 1, "events", batch_time, 1, "run", {1: "run"})
    began = time.perf_counter()
    steps = _Steps(began, {})
    sink.reached = steps.reached  # type: ignore[method-assign]  # as tests do
    written = sink.write(frame, attempt)
    if sink.publishes:
        steps.taken["written"] = time.perf_counter() - began
        sink.publish(written.location, batch_time=batch_time)
    return time.perf_counter() - began, steps.taken


def _plain(target: Target, number: int) -> float:
    began = time.perf_counter()
    target.plain(number)
    return time.perf_counter() - began


def _measure(report: Report, target: Target, frame: DataFrame, rounds: int) -> None:
    report.section(target.name)
    ours: list[float] = []
    plain: list[float] = []
    steps: list[dict[str, float]] = []
    for number in range(rounds + _FIRST):
        # In turn, because the first of a round finds other caches than the second; ours makes the table.
        for is_ours in (True, False) if number % 2 == 0 else (False, True):
            if is_ours:
                seconds, taken = _ours(target, frame, number)
                ours.append(seconds)
                steps.append(taken)
            else:
                plain.append(_plain(target, number))
    _add(report, target, [1000 * one for one in ours[_FIRST:]], [1000 * one for one in plain[_FIRST:]])
    names = list(dict.fromkeys(name for taken in steps for name in taken))
    shown = ", ".join(
        f"{name} {1000 * statistics.median(taken.get(name, 0.0) for taken in steps[_FIRST:]):.0f}" for name in names
    )
    if shown:
        report.note(f"{target.name}, steps in ms: {shown}")


def _add(report: Report, target: Target, ours: Sequence[float], plain: Sequence[float]) -> None:
    """Add the figures of a target, from milliseconds."""
    mine, other = statistics.median(ours), statistics.median(plain)
    ratio = statistics.median(b / a for a, b in zip(ours, plain, strict=True))
    is_copy = target.name in (POSTGRES, COPY)
    report.add(Figure(target.name, mine, other, target.peer_name, ratio, _COPY_AIM if is_copy else None, "ms"))
    if not is_copy:
        most = [_FACTOR * one + _MILLISECONDS for one in plain]
        of_most = statistics.median(b / a for a, b in zip(ours, most, strict=True))
        name = f"{_FACTOR} x it + {_MILLISECONDS:.0f} ms"
        report.add(Figure(target.name, mine, statistics.median(most), name, of_most, 1.0, "ms"))
    report.note(f"{target.name}: {mine / other:.2f} times the plain writer's, {mine - other:+.0f} ms")


def _frame(session: SparkSession, rows: int) -> DataFrame:
    """Return rows of about 130 bytes, held in Spark's cache."""
    frame = session.range(rows).selectExpr(
        "id",
        "timestamp_micros(1767225600000000 + id * 100) AS at",
        "concat('key-', id % 1000) AS key",
        "id * 0.37D AS value",
        f"{_LINE} AS line",
    )
    frame.cache().count()
    return frame


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sinks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one object as the last line")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_ROUNDS} rounds")
    parser.add_argument("--rows", type=int, default=_ROWS, help="how many rows a batch has")
    parser.add_argument("--only", help="some targets alone, by a part of their names: Parquet,Delta,REST,S3,…")
    parser.add_argument("--directory", type=Path, help="where to write; the disk's syncs matter")
    options = parser.parse_args(arguments)
    parts = options.only.split(",") if options.only else [""]
    wanted = [name for name in NAMES if any(part in name for part in parts)]
    rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    report = Report("sinks", machine(rows=options.rows, rounds=rounds))
    with tempfile.TemporaryDirectory(prefix="forebay-sinks-", dir=options.directory) as place, ExitStack() as servers:
        directory = Path(place)
        # The embedded server runs as another user, which must be able to enter the directory.
        directory.chmod(0o755)
        session = spark_session(Settings(home=directory / "home", spark_master="local[*]"), application="benchmark")
        frame = _frame(session, options.rows)
        for target in targets(frame, directory, wanted, servers, report):
            _measure(report, target, frame, rounds)
        session.stop()
    report.print(as_json=options.json)


if __name__ == "__main__":
    main()
