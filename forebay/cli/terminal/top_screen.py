"""Draw the screen of `forebay top` from two snapshots. Owns rates, the order of rows and how they fit the terminal.

It reads nothing and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forebay.cli.terminal.many_rows import needs_attention, pipeline_urgency, receiver_urgency, stream_sums
from forebay.cli.terminal.row_json import columns, pipeline_columns
from tracker_store.host.terminal_text import escaped
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import RenderableType

    from tracker_store.reports.status import BatchStats, PipelineStatus, ReceiverStatus, StreamLag

_ALARM = "bold red"
_SECTIONS = 4
_LINES_OF_A_SECTION = 3  # an empty line, the headings, and how many rows are left out
_HEADER_LINES = 2
_MINUTE, _HOUR = 60, 3600


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Hold what was read at one time: `at` by the monotonic clock in seconds, `now` by this host's clock."""

    at: float
    now: datetime
    receivers: Sequence[ReceiverStatus]
    lags: Sequence[StreamLag]
    pipelines: Sequence[PipelineStatus]
    batches: Sequence[BatchStats]


def rates(before: Snapshot | None, now: Snapshot) -> dict[int, float]:
    """Return the records per second of each receiver that both snapshots have, by receiver id."""
    if before is None or now.at <= before.at:
        return {}
    had = {row.receiver_id: row.records for row in before.receivers}
    return {
        row.receiver_id: (row.records - had[row.receiver_id]) / (now.at - before.at)
        for row in now.receivers
        # Totals fall when a receiver was forgotten and declared again.
        if row.receiver_id in had and row.records >= had[row.receiver_id]
    }


def draw(before: Snapshot | None, now: Snapshot, *, height: int, note: str = "", keys: bool = True) -> RenderableType:
    """Return the screen, at most `height` lines high. `note`: what is wrong; `keys`: whether q ends it."""
    rate_of = rates(before, now)
    streams = stream_sums(now.receivers, rate_of, now.lags)
    receivers = sorted(
        now.receivers,
        key=lambda row: (needs_attention(row), receiver_urgency(row), rate_of.get(row.receiver_id, 0.0)),
        reverse=True,
    )
    pipelines = sorted(now.pipelines, key=pipeline_urgency, reverse=True)
    room = _room(height, [len(streams), len(pipelines), len(now.batches), len(receivers)])
    rate = f"{sum(rate_of.values()):,.0f} records/s" if rate_of or before is not None else "-"
    header = f"{now.now:%Y-%m-%d %H:%M:%S} UTC  {rate}  {len(receivers):,} receivers"
    return Group(
        Text(header + ("  q: quit" if keys else ""), style="bold", no_wrap=True, overflow="ellipsis"),
        Text(escaped(note), style=_ALARM, no_wrap=True, overflow="ellipsis"),
        *_section(
            ["STREAMS", "run", "rec/s", "records", "queue", "dead", "lag"],
            [
                (
                    _ALARM if row.running < row.receivers else "",
                    [
                        row.stream,
                        f"{row.running}/{row.receivers}",
                        _number(row.records_per_second),
                        _number(row.records),
                        _number(row.queued_blocks),
                        _number(row.dead_letters),
                        _span(row.lag),
                    ],
                )
                for row in sorted(
                    streams,
                    key=lambda row: (row.running < row.receivers, row.records_per_second or 0),
                    reverse=True,
                )
            ],
            room[0],
        ),
        *_section(
            ["PIPELINES", "state", "interval", "waiting", "lag", "open", "done"],
            [
                (
                    _ALARM if row.halted_by is not None or row.is_stale else "",
                    [
                        row.pipeline,
                        "HALTED" if row.halted_by is not None else row.state,
                        row.calendar or _span(row.batch_interval),
                        _number(row.waiting_records),
                        _span(row.lag),
                        _number(row.unfinished_batches),
                        _ago(now, row.last_completed_at),
                    ],
                )
                for row in pipelines
            ],
            room[1],
        ),
        *_section(
            ["BATCHES", "time", "state", "records", "waited", "ran", "total"],
            [
                (
                    _ALARM if row.state in (BatchState.FAILED, BatchState.QUARANTINED, BatchState.BLOCKED) else "",
                    [
                        row.pipeline,
                        f"{row.batch_time:%H:%M:%S}",
                        row.state,
                        _number(row.records),
                        _span(row.scheduling_delay),
                        _span(row.processing_time),
                        _span(row.total_delay),
                    ],
                )
                for row in now.batches
            ],
            room[2],
        ),
        *_section(
            ["RECEIVERS", "state", "host", "rec/s", "queue", "block"],
            [
                (
                    _ALARM if needs_attention(row) else "",
                    [
                        f"{row.stream}/{row.ordinal}",
                        row.condition,
                        row.host or "-",
                        _number(rate_of.get(row.receiver_id)),
                        _number(row.queued_blocks),
                        _ago(now, row.last_block_at),
                    ],
                )
                for row in receivers
            ],
            room[3],
        ),
    )


def report(before: Snapshot | None, now: Snapshot) -> dict[str, Any]:
    """Return what the screen shows, of all rows, for JSON."""
    rate_of = rates(before, now)
    return {
        "at": now.now,
        "streams": [columns(row) for row in stream_sums(now.receivers, rate_of, now.lags)],
        "receivers": [
            {
                "receiver": f"{row.stream}/{row.ordinal}",
                "records_per_second": rate_of.get(row.receiver_id),
                **columns(row),
            }
            for row in now.receivers
        ],
        "pipelines": [pipeline_columns(row) for row in now.pipelines],
        "batches": [columns(row) for row in now.batches],
    }


def _room(height: int, wanted: Sequence[int]) -> list[int]:
    """Return how many rows each section gets: what a section does not need goes to the others, at least one each."""
    left = max(_SECTIONS, height - _HEADER_LINES - _SECTIONS * _LINES_OF_A_SECTION)
    room = [0] * len(wanted)
    open_sections = list(range(len(wanted)))
    while open_sections and left > 0:
        share = max(1, left // len(open_sections))
        for section in list(open_sections):
            given = min(share, wanted[section] - room[section], left)
            room[section] += given
            left -= given
            if room[section] >= wanted[section]:
                open_sections.remove(section)
    return room


def _section(headings: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], room: int) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, expand=True, header_style="bold cyan")
    for place, heading in enumerate(headings):
        if place == 0:
            table.add_column(heading, no_wrap=True, overflow="ellipsis", ratio=1, min_width=12)
        else:
            is_text = heading in ("state", "host", "time")
            # A host's name may be long; everything else is short by itself.
            width = 14 if heading == "host" else None
            table.add_column(
                heading,
                no_wrap=True,
                overflow="ellipsis",
                justify="left" if is_text else "right",
                max_width=width,
            )
    for style, cells in rows[:room]:
        table.add_row(*(Text(escaped(cell)) for cell in cells), style=style)
    left = len(rows) - room
    return [
        Text(""),
        table,
        Text(f"… and {left:,} more" if left > 0 else "", style="dim", end="\n" if left > 0 else ""),
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _span(value: timedelta | None) -> str:
    if value is None:
        return "-"
    seconds = value.total_seconds()
    if seconds < _MINUTE:
        return f"{seconds:.1f}s"
    return f"{seconds / _MINUTE:.1f}m" if seconds < _HOUR else f"{seconds / _HOUR:,.1f}h"


def _ago(now: Snapshot, at: datetime | None) -> str:
    # Clocks differ a little: what was just done is not in the future.
    return "-" if at is None else _span(max(timedelta(0), now.now - at))
