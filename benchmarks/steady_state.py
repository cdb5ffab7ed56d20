"""Measure the tables that clean-up deletes from all the time, at a steady rate for an hour that is compressed in time.

Run as ``python -m benchmarks.steady_state [--json] [--quick]``; docs/reference/benchmarks.md says what each figure
means. 10,000 idempotency keys and 5,000 links of source positions a second go in, as fast as the server takes them, and
come out again by the tracker's own clean-up, with autovacuum on a clock that is compressed as well.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import Progress
from rich.table import Table

from benchmarks.report import Figure, Report, machine, time_figure
from benchmarks.server import running_server
from benchmarks.steady_state_load import steady_state
from benchmarks.steady_state_model import (
    NAP_SECONDS,
    TABLES,
    Feed,
    Load,
    cleaning_microseconds,
    growth,
    largest,
    shares,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.steady_state_load import Run
    from benchmarks.steady_state_model import Pace, Sample, TableState

_MINUTES = 60
_QUICK_MINUTES = 3
_QUICK_PART = 20
# Simulated seconds that keys and events are kept.
_KEY_WINDOW = 300
_HISTORY = 600
_QUICK_WINDOW = 60
_KEYS_PER_BLOCK = 100
_LINKS_PER_BLOCK = 10
# Each table with the feed that its additions are measured by. The blocks of all feeds go into `blocks`.
_FEEDS = {"blocks": "blocks", "block_offsets": "links", "record_keys": "keys"}
# The size may not grow between two thirds of the time by more than this.
_GROWTH_AIM = 1 / 1.2
# Clean-up with its vacuum should cost no more CPU than the additions.
_CLEANING_AIM = 1.0
_MIB = 2**20
_GIB = 2**30
# The tables, their copies while they are rewritten, and the write-ahead log.
_DISK = 10 * _GIB
_MOST_DATA = 4 * _GIB
_SHOWN_SAMPLES = 10
_SETTING = re.compile(r"(?P<table>[a-z_]+)\.(?P<name>[a-z_]+)=(?P<value>[a-z0-9.]+)")


def load_of(options: argparse.Namespace) -> Load:
    """Return the load of the command's options."""
    part = _QUICK_PART if options.quick else 1
    return Load(
        options.minutes or (_QUICK_MINUTES if options.quick else _MINUTES),
        Feed.of("keys", options.keys // part, per_block=_KEYS_PER_BLOCK, what="keys"),
        Feed.of("links", options.links // part, per_block=_LINKS_PER_BLOCK, what="links"),
        Feed.of("blocks", options.blocks // part, per_block=1, what="blocks"),
        key_window=options.key_window or (_QUICK_WINDOW if options.quick else _KEY_WINDOW),
        block_retention=options.retention,
        nap=options.nap,
        history=options.history or (_QUICK_WINDOW if options.quick else _HISTORY),
    )


def growth_table(samples: Sequence[Sample]) -> Table:
    """Return the tables' rows and sizes at some points of the time."""
    table = Table(
        "minute",
        *TABLES,
        title="live + dead rows in thousands: heap + indexes in MiB (vacuums so far)",
        title_justify="left",
    )
    step = max(1, len(samples) // _SHOWN_SAMPLES)
    for sample in [*samples[step - 1 : -1 : step], samples[-1]]:
        table.add_row(str(sample.minute), *(_cell(sample.tables[name]) for name in TABLES))
    return table


def _cell(state: TableState) -> str:
    rows = f"{state.live / 1000:,.0f} + {state.dead / 1000:,.0f}"
    return f"{rows}: {state.heap / _MIB:,.0f} + {state.indexes / _MIB:,.0f} ({state.vacuums})"


def add_figures(report: Report, run: Run, load: Load, rewritten: dict[str, TableState]) -> None:
    """Add what was measured to the report."""
    last = run.samples[-1].tables
    report.section("Rows: clean-up keeps up")
    left, expected = run.rows_left(), load.expected_rows()
    for name in _FEEDS:
        peer = "expected at most"
        report.add(time_figure(f"{name}: rows left", left[name], expected[name], peer_name=peer, unit="rows", aim=1.0))
    report.section("Sizes: bounded, and bloat")
    for name in TABLES:
        state = last[name]
        before = largest(run.samples, name, first=1 / 3, last=2 / 3)
        now = largest(run.samples, name, first=2 / 3, last=1)
        report.add(
            Figure(
                f"{name}: largest size, last third",
                now / _MIB,
                before / _MIB,
                "the third before",
                1 / growth(run.samples, name) if now else None,
                _GROWTH_AIM,
                "MiB",
            ),
            time_figure(
                f"{name}: heap", state.heap / _MIB, rewritten[name].heap / _MIB, peer_name="rewritten", unit="MiB"
            ),
            time_figure(
                f"{name}: indexes",
                state.indexes / _MIB,
                rewritten[name].indexes / _MIB,
                peer_name="rewritten",
                unit="MiB",
            ),
        )
    report.section("Write-ahead log")
    for name, feed in _FEEDS.items():
        added, cleaned = run.added[feed], run.cleaned[name]
        report.add(
            time_figure(f"{name}: WAL of an addition, a row", added.wal_bytes_each, None, peer_name="", unit="bytes"),
            time_figure(
                f"{name}: WAL of clean-up, a row",
                cleaned.wal_bytes_each,
                added.wal_bytes_each,
                peer_name="its addition",
                unit="bytes",
            ),
        )
        if run.blocks[feed] != added.rows:
            each = added.wal_bytes / run.blocks[feed]
            report.add(time_figure(f"{feed}: WAL of a block with its {feed}", each, None, peer_name="", unit="bytes"))
    counted = sum(spent.wal_bytes for spent in (*run.added.values(), *run.cleaned.values()))
    report.add(
        time_figure(
            "autovacuum and batches: WAL", (run.wal - counted) / _MIB, run.wal / _MIB, peer_name="all", unit="MiB"
        )
    )
    report.section("CPU of the server")
    # Autovacuum's CPU by table, in proportion to the time of its vacuums and analyzes in each.
    vacuum = shares({name: last[name].vacuum_ms + last[name].analyze_ms for name in TABLES}, run.vacuum_cpu)
    for name, feed in _FEEDS.items():
        added, cleaned = run.added[feed], run.cleaned[name]
        whole = cleaning_microseconds(cleaned, vacuum[name])
        report.add(
            time_figure(
                f"{name}: CPU of an addition, a row", added.cpu_microseconds_each, None, peer_name="", unit="us"
            ),
            time_figure(
                f"{name}: CPU of clean-up alone, a row",
                cleaned.cpu_microseconds_each,
                added.cpu_microseconds_each,
                peer_name="its addition",
                unit="us",
            ),
            time_figure(
                f"{name}: CPU of clean-up and vacuum, a row",
                whole,
                added.cpu_microseconds_each,
                peer_name="its addition",
                unit="us",
                aim=_CLEANING_AIM,
            ),
        )
    report.add(
        time_figure(
            "all: CPU of clean-up and vacuum",
            sum(spent.cpu_seconds for spent in run.cleaned.values()) + run.vacuum_cpu,
            sum(spent.cpu_seconds for spent in run.added.values()),
            peer_name="all additions",
            unit="s",
            aim=_CLEANING_AIM,
        )
    )


def _notes(report: Report, run: Run, load: Load) -> None:
    last = run.samples[-1].tables
    for name in TABLES:
        state = last[name]
        report.note(
            f"{name}: {state.vacuums} autovacuums in {state.vacuum_ms / 1000:,.1f} s, {state.analyzes} autoanalyzes in "
            f"{state.analyze_ms / 1000:,.1f} s"
        )
    report.note(
        f"added: {', '.join(f'{spent.rows:,} {feed}' for feed, spent in run.added.items())}; blocks of all: "
        f"{sum(run.blocks.values()):,}; cleaned: "
        f"{', '.join(f'{spent.rows:,} of {table}' for table, spent in run.cleaned.items())}"
    )
    simulated = load.minutes * 60
    report.note(
        f"{load.minutes} minutes in {run.seconds:,.0f} s (compressed {simulated / run.seconds:.1f} times); "
        f"write-ahead log {run.wal / _GIB:.1f} GiB, {run.wal / simulated / _MIB:.1f} MiB per simulated second"
    )


def changed_settings(texts: Sequence[str]) -> list[str]:
    """Return a statement for each TABLE.PARAMETER=VALUE. Raises ValueError."""
    statements = []
    for text in texts:
        found = _SETTING.fullmatch(text)
        if found is None:
            message = f"{text!r} is no TABLE.PARAMETER=VALUE"
            raise ValueError(message)
        statements.append(f"ALTER TABLE forebay.{found['table']} SET ({found['name']} = {found['value']})")
    return statements


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steady_state", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument(
        "--quick", action="store_true", help="3 minutes at a twentieth of the rates: to see that it works"
    )
    parser.add_argument("--minutes", type=int, help="simulated minutes (default: 60)")
    parser.add_argument("--keys", type=int, default=10_000, help="idempotency keys a second (default: 10000)")
    parser.add_argument("--links", type=int, default=5_000, help="links of positions a second (default: 5000)")
    parser.add_argument("--blocks", type=int, default=1_000, help="blocks a second that have neither (default: 1000)")
    parser.add_argument("--key-window", type=int, help="seconds that a key is kept (default: 300)")
    parser.add_argument("--retention", type=int, default=60, help="seconds that a block is kept (default: 60)")
    parser.add_argument("--history", type=int, help="seconds that an event is kept (default: 600)")
    parser.add_argument(
        "--nap",
        type=float,
        default=NAP_SECONDS,
        help="seconds between two looks of autovacuum (default: 60); fewer show what thresholds do in a long window",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="TABLE.PARAMETER=VALUE",
        help="another storage parameter, such as record_keys.autovacuum_vacuum_scale_factor=0.05; may be repeated",
    )
    parser.add_argument("--directory", type=Path, help="where the server's data goes (default: the temporary folder)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print; return 0, or 2 if there is no room for it."""
    options = parsed(arguments)
    statements = changed_settings(options.set)
    load = load_of(options)
    with tempfile.TemporaryDirectory(prefix="forebay-steady-", dir=options.directory) as name:
        free = shutil.disk_usage(name).free
        if free < _DISK and not options.quick:
            print(f"{name} has {free / _GIB:.1f} GiB: 10 GiB are needed, see --directory", file=sys.stderr)  # noqa: T201
            return 2
        with running_server(Path(name)) as server:
            report = Report("steady_state", machine(postgres=server.version()))
            for statement in statements:
                server.execute(statement)
            with steady_state(server, load) as state, Progress(console=report.console, transient=True) as progress:
                task = progress.add_task("simulating", total=load.minutes)

                def told(sample: Sample, pace: Pace) -> None:
                    if sum(table.size for table in sample.tables.values()) > _MOST_DATA:
                        message = f"the tables have more than {_MOST_DATA / _GIB:.0f} GiB: choose a shorter window"
                        raise RuntimeError(message)
                    progress.update(task, completed=sample.minute)
                    sizes = ", ".join(f"{table} {_cell(sample.tables[table])}" for table in TABLES)
                    progress.console.print(f"  minute {sample.minute}, {pace.compression:.1f} times: {sizes}")

                run = state.run(told)
                rewritten = state.rewritten()
    report.console.print(growth_table(run.samples))
    add_figures(report, run, load, rewritten)
    _notes(report, run, load)
    report.print(as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
