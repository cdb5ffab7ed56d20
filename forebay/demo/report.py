"""Render the demo for a terminal, as plain lines and as JSON: no look-ups, no decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forebay.demo.progress import ProgressSnapshot, Timings, what_it_does

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.demo.comparison import Comparison, Row

SAME = "OK"
DIFFERENT = "DIFFERENT"


def progress_line(look: ProgressSnapshot) -> str:
    """Return one plain line for a log."""
    batches = ", ".join(f"{count} {state}" for state, count in look.batches_by_state().items()) or "none yet"
    return (
        f"{minutes(look.at)}  received {look.received:,} of {look.expected:,} records"
        f" in {look.blocks:,} blocks"
        f" | batches: {batches} | lag {look.lag:,} records | {what_it_does(look)}"
    )


def progress_view(look: ProgressSnapshot, ui_link: str) -> RenderableType:
    """Return the live view for a terminal."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(justify="right")
    grid.add_column()
    for name, count in (
        ("sent", look.replayed),
        ("received", look.received),
        ("in completed batches", look.completed_records),
    ):
        bar = ProgressBar(total=look.expected, completed=min(count, look.expected), width=40)
        grid.add_row(name, f"{count:,}", bar)
    grid.add_row("blocks", f"{look.blocks:,}", "")
    batches = ", ".join(f"{count} {state}" for state, count in look.batches_by_state().items()) or "none yet"
    grid.add_row("batches", f"{len(look.batches):,}", batches)
    grid.add_row("lag", f"{look.lag:,}", "records received and in no completed batch")
    return Group(
        Text(f"Dagster: {ui_link}", style="bold"),
        grid,
        Text(f"{minutes(look.at)}  {what_it_does(look)}", style="cyan"),
    )


def comparison_table(comparison: Comparison) -> Table:
    """Return a table: per carrier both outputs' totals beside the known answer, then each differing group."""
    agreeing = sum(row.same for row in comparison.groups)
    table = Table(
        title="Flights of 2013 from New York, and their mean departure delay in minutes",
        caption=f"{agreeing} of {len(comparison.groups)} groups by carrier and origin agree exactly",
    )
    table.add_column("carrier", no_wrap=True)
    for name in ("flights", "running total", "known", "mean delay", "known"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in comparison.carriers:
        _add_row(table, row)
    table.add_section()
    _add_row(table, comparison.total)
    different = [row for row in comparison.groups if not row.same]
    if different:
        table.add_section()
        for row in different:
            _add_row(table, row)
    return table


def _add_row(table: Table, row: Row) -> None:
    if row.same:
        verdict = Text(SAME, style="green")
    else:
        verdict = Text(f"{DIFFERENT}: {', '.join(row.differences)}", style="bold red")
    table.add_row(
        row.name,
        f"{row.published.flights:,}",
        "" if row.running is None else f"{row.running.flights:,}",
        f"{row.expected.flights:,}",
        _mean(row.published.delay_mean),
        _mean(row.expected.delay_mean),
        verdict,
    )


def timings_table(timings: Timings) -> Table:
    """Return the run's figures, one per row."""
    table = Table(show_header=False, box=None)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("first batch completed after", _seconds(timings.first_batch_completed))
    table.add_row("all batches completed after", _seconds(timings.finished))
    rate = timings.records_per_second
    table.add_row("records taken by the receiver", f"{rate:,.0f}/s" if rate is not None else "-")
    table.add_row("batches with records", f"{timings.batches:,}")
    table.add_row("median scheduling delay", _seconds(timings.median_scheduling_delay))
    table.add_row("median processing time", _seconds(timings.median_processing_time))
    return table


def verdict(comparison: Comparison) -> str:
    """Return the demo's last sentence."""
    if comparison.same:
        known = comparison.total.expected.flights
        return f"{SAME}: all totals agree exactly with the known answer ({known:,} flights)."
    return "\n".join([f"{DIFFERENT}: the totals are not the known answer.", *comparison.problems])


def as_json(comparison: Comparison, timings: Timings) -> Mapping[str, Any]:
    """Return the result as one JSON object; times in seconds, delays in minutes."""
    return {
        "same": comparison.same,
        "flights": comparison.total.published.flights,
        "known_flights": comparison.total.expected.flights,
        "groups": len(comparison.groups),
        "problems": list(comparison.problems),
        "carriers": [
            {
                "carrier": row.name,
                "flights": row.published.flights,
                "running_total": None if row.running is None else row.running.flights,
                "known_flights": row.expected.flights,
                "departures": row.published.departures,
                "known_departures": row.expected.departures,
                "departure_delay_mean": row.published.delay_mean,
                "known_departure_delay_mean": row.expected.delay_mean,
                "same": row.same,
            }
            for row in comparison.carriers
        ],
        "timings": {
            "first_batch_completed": timings.first_batch_completed,
            "finished": timings.finished,
            "records_per_second": timings.records_per_second,
            "batches": timings.batches,
            "median_scheduling_delay": timings.median_scheduling_delay,
            "median_processing_time": timings.median_processing_time,
        },
    }


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def minutes(seconds: float) -> str:
    """Return a time since the start as MM:SS."""
    return f"{int(seconds) // 60:02}:{int(seconds) % 60:02}"
