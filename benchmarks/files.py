"""Measure how fast one large file is followed to registered blocks, beside peers that read it and keep nothing.

Run as ``python -m benchmarks.files [--json] [--quick]``. The peers are a Python loop over its lines, and ``wc -l``.
Both read from the page cache, as the receiver does.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from receiver_runtime.sources.files import FollowedFiles
from tests.conformance.source_rig import SourceRig

if TYPE_CHECKING:
    from collections.abc import Callable

_LINE_BYTES = 100
_AT_ONCE = 100_000
_DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    lines: int


_FULL = Sizes(rounds=5, lines=5_000_000)
_QUICK = Sizes(rounds=1, lines=1_000_000)


def fill(path: Path, lines: int) -> None:
    """Write numbered lines of 100 bytes, the newline included."""
    with path.open("wb") as file:
        for first in range(0, lines, _AT_ONCE):
            file.write(b"".join(b"%0*d\n" % (_LINE_BYTES - 1, n) for n in range(first, min(lines, first + _AT_ONCE))))


def timed(lines: int, work: Callable[[], int]) -> float:
    """Return the lines per second of `work`, which counts the lines."""
    began = time.perf_counter()
    if (counted := work()) != lines:
        raise RuntimeError(f"{counted} of {lines} lines were read")
    return lines / (time.perf_counter() - began)


def loop(path: Path) -> int:
    """Count the lines, each decoded to Python's text."""
    with path.open(encoding="utf-8") as file:
        return sum(1 for _ in file)


def word_count(path: Path) -> int:
    """Count the lines by ``wc -l``."""
    said = subprocess.run(["wc", "-l", path], capture_output=True, check=True, text=True)  # noqa: S603, S607  a peer
    return int(said.stdout.split()[0])


def follow(path: Path, url: str, directory: Path, lines: int, number: int) -> tuple[float, float]:
    """Return lines per second from the connection to the last registered block, and CPU seconds per million lines."""
    source = FollowedFiles(path=str(path))
    rig = SourceRig.make(url, directory / f"round-{number}", source, stream=f"round{number}", block_interval="200ms")
    try:
        process = psutil.Process(rig.start().pid)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while rig.registered() < lines:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{rig.registered()} of {lines} lines are registered:\n{rig.logs()}")
            time.sleep(0.05)
        times = process.cpu_times()
        [(rate,)] = rig.execute(
            "SELECT max(total_records) / extract(epoch FROM max(b.added_at) - "
            "  (SELECT min(e.at) FROM forebay.receiver_events e WHERE e.receiver_id = :id AND e.kind = 'CONNECTED')) "
            "FROM forebay.blocks b WHERE b.receiver_id = :id AND b.records > 0",
            id=rig.receiver_ids[0],
        )
        return float(rate), (times.user + times.system) / lines * 1e6
    finally:
        rig.close()


def measure(report: Report, url: str, sizes: Sizes, directory: Path) -> None:
    """Measure all of them in turn."""
    report.section(f"one file of {sizes.lines:,} lines of {_LINE_BYTES} bytes")
    path = directory / "one.log"
    fill(path, sizes.lines)
    loops: list[float] = []
    counts: list[float] = []
    ours: list[tuple[float, float]] = []
    for number in range(sizes.rounds):
        counts.append(timed(sizes.lines, lambda: word_count(path)))
        loops.append(timed(sizes.lines, lambda: loop(path)))
        ours.append(follow(path, url, directory, sizes.lines, number))
    rates = [rate for rate, _ in ours]
    report.add(
        rate_figure("file to registered blocks", rates, loops, peer_name="Python's lines", unit="lines/s"),
        rate_figure("file to registered blocks", rates, counts, peer_name="wc -l", unit="lines/s"),
        time_figure(
            "CPU per million lines, start included",
            sorted(cpu for _, cpu in ours)[len(ours) // 2],
            None,
            peer_name="",
            unit="CPU s",
        ),
    )


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as name,
        running_server(Path(name)) as server,
    ):
        report = Report("files", machine(postgres=server.version()))
        measure(report, server.url, _QUICK if arguments.quick else _FULL, Path(name))
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
