"""Measure how each operation's CPU grows with receivers and with history, and what a whole installation spends.

Run as ``python -m benchmarks.scale [--json] [--quick]``; with ``--write docs/explanation`` it writes the figures,
tables and pictures of docs/explanation/scale.md. It counts only CPU, of the server's sessions and of this process:
on a loaded machine, wall times say nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress

from benchmarks.filled_installation import fill
from benchmarks.report import machine
from benchmarks.scale_model import OPERATIONS, Cost, Measured, Shape
from benchmarks.scale_operations import measure, server_cpu
from benchmarks.scale_page import COLUMNS, Figures, as_json, number, render, terminal_table, write
from benchmarks.server import running_server
from tracker_store.engine import create_engine

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_WIDTH = 160
_RECEIVERS = (100, 1_000, 10_000)
_QUICK_RECEIVERS = (100, 1_000)
_DAYS = 30.0
_QUICK_DAYS = 1.0
# 30 days of a batch per 4 hours are 1.8 million allocations of 10,000 receivers.
_INTERVAL = 14_400
_QUICK_INTERVAL = 3_600
# The history grows in an installation of 100 receivers, each with a stream and a pipeline of its own.
_HISTORY_RECEIVERS = 100
_HISTORY_INTERVALS = (14_400, 3_600, 600)
_QUICK_HISTORY_INTERVALS = (3_600, 600)
_RECEIVERS_PER_PROCESS = 40


def measured_installation(shape: Shape, keys: Collection[str], directory: Path | None, console: Console) -> Measured:
    """Fill a new server with an installation of this shape, and measure these operations in it."""
    console.print(f"[bold]{shape}[/bold]")
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-scale-", dir=directory) as name,
        running_server(Path(name)) as server,
    ):
        # Nothing is measured by the clock, and a loaded machine may need minutes for a statement.
        server.engine = create_engine(server.url, application_name="benchmark", statement_timeout="0")
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("filling", total=1.0)
            installation = fill(
                server, shape, lambda step, part: progress.update(task, description=step, completed=part)
            )
        size = server.execute("SELECT pg_size_pretty(pg_database_size(current_database()))")[0][0]
        console.print(f"  filled in {time.monotonic() - began:.0f} s: {size}")

        def told(operation: str, cost: Cost) -> None:
            console.print(f"  {operation}: server {number(cost.server_ms)} ms, client {number(cost.client_ms)} ms")

        costs = measure(installation, server_cpu(installation, server.postmaster()), keys, told)
    return Measured(shape, costs)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command's options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="a day of history, at most 1,000 receivers: two minutes")
    parser.add_argument("--receivers", type=int, nargs="+", help="numbers of receivers (default: 100 1000 10000)")
    parser.add_argument("--days", type=float, help="days of history (default: 30)")
    parser.add_argument("--interval", type=int, help="seconds between two batches of the history (default: 14400)")
    parser.add_argument(
        "--history-intervals",
        type=int,
        nargs="*",
        help="the same, for 100 receivers with growing histories (default: 14400 3600 600)",
    )
    parser.add_argument(
        "--receivers-per-process", type=int, default=_RECEIVERS_PER_PROCESS, help="how receivers share processes"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[operation.key for operation in OPERATIONS],
        help="measure this operation alone; may be repeated",
    )
    parser.add_argument("--directory", type=Path, help="where the servers' data goes (default: the temporary folder)")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write scale.md's tables and pictures into DIR")
    parser.add_argument("--column", choices=COLUMNS, default=COLUMNS[-1], help="which column of the page is measured")
    parser.add_argument(
        "--render", type=Path, metavar="DIR", help="measure nothing: make DIR's tables and pictures from its figures"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write; return 0."""
    options = parsed(arguments)
    if options.render is not None:
        render(options.render)
        return 0
    console = Console(width=_WIDTH, highlight=False)
    days = options.days or (_QUICK_DAYS if options.quick else _DAYS)
    interval = options.interval or (_QUICK_INTERVAL if options.quick else _INTERVAL)
    intervals = options.history_intervals
    if intervals is None:
        intervals = _QUICK_HISTORY_INTERVALS if options.quick else _HISTORY_INTERVALS
    grouped = options.receivers_per_process
    shapes = [
        Shape.of(receivers, days=days, interval=interval, receivers_per_process=grouped)
        for receivers in options.receivers or (_QUICK_RECEIVERS if options.quick else _RECEIVERS)
    ]
    histories = [
        Shape(_HISTORY_RECEIVERS, _HISTORY_RECEIVERS, _HISTORY_RECEIVERS, days, each, grouped) for each in intervals
    ]
    keys = set(options.only or [operation.key for operation in OPERATIONS])
    figures = Figures(machine(), (), ())
    for shape in (*shapes, *histories):
        measured = measured_installation(shape, keys, options.directory, console)
        console.print(terminal_table(measured))
        if shape in shapes:
            figures = dataclasses.replace(figures, receivers=(*figures.receivers, measured))
        else:
            figures = dataclasses.replace(figures, history=(*figures.history, measured))
        # After each: an interrupted run has then written something.
        if options.write is not None:
            write(options.write, options.column, figures)
            console.print(f"* written: {options.write}/scale.md, column {options.column}")
    if options.json:
        print(as_json(figures))  # noqa: T201  the last line, whole, whatever the console's width
    return 0


if __name__ == "__main__":
    sys.exit(main())
