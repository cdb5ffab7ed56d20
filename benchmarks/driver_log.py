"""Measure the driver log against plain inserts, against itself with a long history, and against Spark's own tracker.

Run as ``python -m benchmarks.driver_log [--json] [--quick]``; docs/reference/benchmarks.md says what each figure means.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.filled_log import RECEIVERS, FilledLog
from benchmarks.report import Figure, Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from benchmarks.spark_tracker import SparkTracker, spark_context
from benchmarks.steady_blocks import steady_state
from benchmarks.writers import Job, Work, Writers, claiming, write, write_grouped
from tests.support.driver_log.log import make_log
from tracker_store.connection.engine import connect
from tracker_store.retention.cleanup import clean_up_receiver

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from benchmarks.server import Server

_PLAIN_AIMS = {1: 0.8, 8: 0.75, 32: 0.6}
_LINKED_AIMS = {1: 0.6, 8: 0.5, 32: 0.4}
_GROUPED_AIM = 40_000
_PROMPT_MS = 3.0
_LATE_MS = 10.0
# The aim: with a history no figure is worse than 1.2 times the one without.
_HISTORY_AIM = 1 / 1.2
_GROUP_RECEIVERS = 100
_GROUP_BLOCKS = 10
_CLEAN_UP_ROWS = 10_000
_PARTS = ("singles", "groups", "history", "steady", "original")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Set how much is measured. `seconds`: of one round; `minutes`: simulated; waiting, live, original_*: blocks."""

    seconds: float
    rounds: int
    writers: Sequence[int]
    waiting: Sequence[int]
    live: Sequence[int]
    minutes: int
    original_allocated: int
    original_recovered: int


_FULL = Sizes(1.0, 4, (1, 8, 32, 64), (10, 10_000, 1_000_000), (1_000_000, 10_000_000), 60, 100_000, 1_000_000)
_QUICK = Sizes(0.5, 2, (1, 8, 32), (10, 10_000), (100_000,), 12, 10_000, 50_000)


def _singles(server: Server, report: Report, sizes: Sizes, receiver_ids: Sequence[int]) -> None:
    report.section("Single blocks, each writer a process with a receiver of its own")
    peer = "plain insert, psycopg2"
    for writers in sizes.writers:
        rates: dict[Work, list[float]] = {work: [] for work in Work}
        pgbench = []
        for _ in range(sizes.rounds):
            pgbench.append(server.pgbench(writers, sizes.seconds))
            for work in Work:
                rates[work].append(write(server, work, receiver_ids[:writers], sizes.seconds))
        plain = rates[Work.PLAIN]
        for work, name, aim in (
            (Work.ADD, "add_block", _PLAIN_AIMS.get(writers)),
            (Work.STATEMENT, "add_block, bare statement", None),
            (Work.ADD_LINKED, "add_block with an offset link", _LINKED_AIMS.get(writers)),
        ):
            report.add(
                rate_figure(f"{name}, {writers} writers", rates[work], plain, peer_name=peer, unit="blocks/s", aim=aim)
            )
        report.add(
            rate_figure(f"plain insert, {writers} writers", plain, pgbench, peer_name="pgbench", unit="inserts/s")
        )


def _grouped(server: Server, report: Report, sizes: Sizes, receiver_ids: Sequence[int]) -> None:
    report.section("Groups in one statement, on one connection")
    limit = [float(_GROUPED_AIM)] * sizes.rounds
    for receivers, blocks in ((_GROUP_RECEIVERS, 1), (_GROUP_RECEIVERS, _GROUP_BLOCKS), (1, _GROUP_BLOCKS)):
        rates = [write_grouped(server, receiver_ids[:receivers], blocks, sizes.seconds) for _ in range(sizes.rounds)]
        aim = 1.0 if blocks == 1 else None
        name = f"add_block, grouped: {blocks} x {receivers} receivers"
        report.add(rate_figure(name, rates, limit, peer_name="aim", unit="blocks/s", aim=aim))


@dataclass(frozen=True, slots=True)
class _Additions:
    """Blocks per second of `add_block`, and the median ratio to the plain inserts of 8 writers in the same rounds."""

    singles: float
    groups: float
    singles_ratio: float
    groups_ratio: float


def _additions(server: Server, sizes: Sizes, receiver_ids: Sequence[int]) -> _Additions:
    plain, singles, groups = [], [], []
    for _ in range(sizes.rounds):
        plain.append(write(server, Work.PLAIN, receiver_ids[:8], sizes.seconds))
        singles.append(write(server, Work.ADD, receiver_ids[:8], sizes.seconds))
        groups.append(write_grouped(server, receiver_ids, 1, sizes.seconds))
    return _Additions(
        statistics.median(singles),
        statistics.median(groups),
        statistics.median(mine / other for mine, other in zip(singles, plain, strict=True)),
        statistics.median(mine / other for mine, other in zip(groups, plain, strict=True)),
    )


def _allocation(server: Server, report: Report, sizes: Sizes, log: FilledLog) -> None:
    """Measure allocations and additions as the history grows: the blocks that wait are always the newest ones."""
    report.section(f"Allocation for {RECEIVERS} receivers, and additions, with a history of live blocks")
    rounds = sizes.rounds * 3
    without: dict[tuple[int, bool], float] = {}
    for waiting in sizes.waiting:
        log.clear()
        log.extend(waiting)
        for late in (False, True):
            without[waiting, late] = log.allocation_ms(waiting, late=late, rounds=rounds)
            report.add(_allocation_figure(waiting, 0, without[waiting, late], None, late=late))
    log.clear()
    first = _additions(server, sizes, log.receiver_ids)
    log.clear()
    for live in sizes.live:
        log.extend(live + sizes.waiting[-1] - log.blocks_each * RECEIVERS)
        for waiting in sizes.waiting:
            for late in (False, True):
                took = log.allocation_ms(waiting, late=late, rounds=rounds)
                report.add(_allocation_figure(waiting, live, took, without[waiting, late], late=late))
        peer = "itself, 0 live; ratio: each to plain"
        now = _additions(server, sizes, log.receiver_ids)
        ratio = now.singles_ratio / first.singles_ratio
        name = f"add_block, 8 writers, {live:,} live"
        report.add(Figure(name, now.singles, first.singles, peer, ratio, _HISTORY_AIM, "blocks/s"))
        ratio = now.groups_ratio / first.groups_ratio
        name = f"add_block, grouped: 1 x {RECEIVERS} receivers, {live:,} live"
        report.add(Figure(name, now.groups, first.groups, peer, ratio, _HISTORY_AIM, "blocks/s"))
        log.cut_back()


def _allocation_figure(waiting: int, live: int, ours: float, without: float | None, *, late: bool) -> Figure:
    name = f"allocation, {'late' if late else 'prompt'}, {waiting:,} waiting, {live:,} live"
    if without is not None:
        return time_figure(name, ours, without, peer_name="itself, 0 live", unit="ms", aim=_HISTORY_AIM)
    limit = _LATE_MS if late else _PROMPT_MS
    return time_figure(name, ours, limit, peer_name="aim", unit="ms", aim=1.0)


def _clean_up(server: Server, report: Report, sizes: Sizes, log: FilledLog) -> None:
    writers = max(sizes.writers)
    report.section(f"Clean-up while {writers} writers add")
    log.let_wait(0)
    threshold = datetime.now(UTC)
    alone = write(server, Work.ADD, log.receiver_ids[:writers], sizes.seconds * 2)
    with claiming(server, log.receiver_ids[:writers]) as claims:
        jobs = [Job(Work.ADD, [claimed]) for claimed in claims]
    rows = 0
    with Writers(server, jobs) as running, connect(server.engine) as connection:
        began = time.perf_counter()
        left = list(log.receiver_ids)
        while left and time.perf_counter() - began < sizes.seconds * 8:
            receiver_id = left.pop(0)
            cleaned = clean_up_receiver(
                connection, receiver_id=receiver_id, threshold=threshold, max_rows=_CLEAN_UP_ROWS
            )
            rows += cleaned.blocks
            if cleaned.more:
                left.append(receiver_id)
        seconds = time.perf_counter() - began
        meanwhile = running.stop()
    report.add(
        Figure(
            f"clean-up, {writers} writers meanwhile",
            rows / seconds,
            meanwhile,
            "their additions",
            rows / seconds / meanwhile,
            1.0,
            "rows/s",
        ),
        rate_figure(
            f"add_block, {writers} writers, during clean-up",
            [meanwhile],
            [alone],
            peer_name="without clean-up",
            unit="blocks/s",
        ),
    )


def _steady(server: Server, report: Report, sizes: Sizes) -> None:
    rate = 320
    report.section(f"{sizes.minutes} minutes at {rate} blocks/s, compressed, 5 minutes of retention")
    result = steady_state(server, minutes=sizes.minutes, blocks_per_second=rate)
    mib = 2**20
    report.add(
        time_figure(
            "size at steady state, the largest after the first sixth",
            result.largest / mib,
            result.first / mib,
            peer_name="after the first sixth",
            unit="MiB",
            aim=_HISTORY_AIM,
        ),
        time_figure(
            "size at steady state, bloat",
            result.largest / mib,
            result.compact / mib,
            peer_name="rewritten",
            unit="MiB",
        ),
    )
    report.note(
        f"steady state: {result.blocks:,} blocks added and {result.live:,} left at the end, in {result.seconds:.0f} s; "
        "vacuum as autovacuum's thresholds would have it, looked at once a simulated minute"
    )


def _original(server: Server, report: Report, sizes: Sizes, log: FilledLog, directory: Path) -> None:
    report.section("The original: Spark's ReceivedBlockTracker, its log in a local folder (flushed, not synced)")
    log.clear()
    log.extend(sizes.original_recovered)
    allocation = log.allocation_ms(sizes.original_allocated, late=False, rounds=sizes.rounds)
    start = log.first_allocation_seconds(sizes.original_recovered)
    log.clear()
    grouped = write_grouped(server, log.receiver_ids, 10, sizes.seconds)
    singles = {n: write(server, Work.ADD, log.receiver_ids[:n], sizes.seconds) for n in sizes.writers}
    with spark_context(directory) as context:
        for batching in (True, False):
            kind = "batched log" if batching else "unbatched log"
            tracker = SparkTracker(
                context, directory / f"log-{batching}", streams=RECEIVERS, batching=batching, recover=False
            )
            tracker.add(5_000, threads=1)
            for threads in sizes.writers:
                rate = tracker.add(20_000, threads=threads)
                report.add(
                    rate_figure(
                        f"add_block, {threads} writers",
                        [singles[threads]],
                        [rate],
                        peer_name=f"original, {kind}",
                        unit="blocks/s",
                    )
                )
                if threads == sizes.writers[-1]:
                    report.add(
                        rate_figure(
                            f"add_block, grouped: 10 x {RECEIVERS}",
                            [grouped],
                            [rate],
                            peer_name=f"original, {kind}, {threads} thr.",
                            unit="blocks/s",
                        )
                    )
            tracker.allocate(1_000)
            tracker.add(sizes.original_allocated, threads=8)
            took = tracker.allocate(2_000)
            name = f"allocation, {sizes.original_allocated:,} waiting"
            report.add(time_figure(name, allocation, took, peer_name=f"original, {kind}", unit="ms"))
            tracker.stop()
        path = directory / "log-recovered"
        tracker = SparkTracker(context, path, streams=RECEIVERS, batching=True, recover=False)
        tracker.add(sizes.original_recovered, threads=8)
        tracker.stop()
        began = time.perf_counter()
        tracker = SparkTracker(context, path, streams=RECEIVERS, batching=True, recover=True)
        tracker.allocate(3_000)
        took = time.perf_counter() - began
        tracker.stop()
    name = f"restart to the first allocation, {sizes.original_recovered:,} additions"
    report.add(time_figure(name, start, took, peer_name="original", unit="s"))


def measure(report: Report, server: Server, sizes: Sizes, directory: Path, *, parts: Collection[str]) -> None:
    """Measure the requested parts, one after the other."""
    with connect(server.engine) as connection:
        receiver_ids = sorted(make_log(connection, receivers=_GROUP_RECEIVERS).receiver_ids)
    if "singles" in parts:
        _singles(server, report, sizes, receiver_ids)
    if "groups" in parts:
        _grouped(server, report, sizes, receiver_ids)
    server.execute("TRUNCATE forebay.block_offsets")
    server.execute("TRUNCATE public.plain")
    log = FilledLog(server)
    if "history" in parts:
        _allocation(server, report, sizes, log)
        _clean_up(server, report, sizes, log)
    if "steady" in parts:
        _steady(server, report, sizes)
    if "original" in parts:
        _original(server, report, sizes, log, directory)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.driver_log", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="small sizes: takes 1 minute, not 12, and meets no aim")
    parser.add_argument("--only", choices=_PARTS, action="append", help="measure this part alone; may be repeated")
    parser.add_argument("--directory", type=Path, help="where the server's data goes (default: the temporary folder)")
    arguments = parser.parse_args()
    began = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-", dir=arguments.directory) as name,
        running_server(Path(name)) as server,
    ):
        report = Report("driver_log", machine(postgres=server.version()))
        measure(report, server, _QUICK if arguments.quick else _FULL, Path(name), parts=arguments.only or _PARTS)
    report.note(f"the whole took {time.perf_counter() - began:.0f} s")
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()
