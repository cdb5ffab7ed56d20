"""`forebay status`: streams, receivers, batches and lag, from the views for people."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from forebay.cli.database import database_url
from forebay.cli.failures import clear_errors
from forebay.cli.pipelines import plain, shown_state, warnings
from orchestration.settings import Settings
from orchestration.spark.executor_allocation import SCALING_INTERVAL, scaling
from tracker_store import status as store
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogUnavailableError, OutcomeUnknownError
from tracker_store.scaling import scaling_decisions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


PIPELINE_COLUMNS = {
    "pipeline": "pipeline",
    "state": "state",
    "state_since": "since",
    "waiting_records": "waiting",
    "unfinished_batches": "batches open",
    "last_completed_time": "last completed",
}
RECEIVER_COLUMNS = {
    "stream": "stream",
    "ordinal": "no.",
    "state": "state",
    "host": "host",
    "records": "records",
    "queued_blocks": "queue",
    "last_block_at": "last block",
    "dead_letters": "dead letters",
}
LAG_COLUMNS = {
    "pipeline": "pipeline",
    "stream": "stream",
    "waiting_blocks": "blocks",
    "waiting_records": "records",
    "waiting_bytes": "bytes",
    "lag": "oldest",
}
BATCH_COLUMNS = {
    "batch_time": "time",
    "state": "state",
    "attempt": "try",
    "records": "records",
    "scheduling_delay": "waited",
    "processing_time": "ran",
    "total_delay": "total",
    "reason": "reason",
}


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.1f} s"
    if isinstance(value, datetime):
        today = value.date() == datetime.now(UTC).date()
        return f"{value:%H:%M:%S}" if today else f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    return value


def _table(title: str, columns: dict[str, str], rows: Sequence[Mapping[str, object]]) -> Table:
    """Every column whole but `reason`, which takes the lines that it needs."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for column, heading in columns.items():
        if column == "reason":
            table.add_column(heading, overflow="fold", min_width=12)
        else:
            table.add_column(heading, no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row[column]) for column in columns))
    if not rows:
        table.add_row("none", *("" for _ in list(columns)[1:]))
    return table


@contextmanager
def _what_goes_on(console: Console) -> Iterator[None]:
    """What an operator needs to know beside the error: whether something is being lost."""
    try:
        yield
    except (DriverLogUnavailableError, OutcomeUnknownError):
        console.print("The state can't be shown: the driver log can't be reached.", style="bold red")
        console.print(
            "Receivers keep what they hold, stop reading from their sources, and go on by themselves when it is back."
        )
        raise


def status(
    batches: Annotated[int, typer.Option(min=1, help="How many batches to show, newest first.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Show pipelines, receivers, what waits for each pipeline (lag), and the newest batches with their delays.

    "queue" counts blocks that a receiver has cut and not stored yet.
    "waited" is the scheduling delay (processing start - batch time), "ran" the processing time, "total" their sum.
    Durations are in seconds, also in the JSON; times are UTC.
    """
    console = Console(highlight=False, stderr=as_json)
    with clear_errors(console), _what_goes_on(console):
        engine = create_engine(database_url(Settings()), application_name="forebay status", pool_size=1)
        with connect(engine) as connection:
            receivers = [asdict(row) for row in store.receiver_status(connection)]
            lag = [asdict(row) for row in store.stream_lag(connection)]
            pipelines = store.pipeline_status(connection)
            decisions = {row.pipeline: row for row in scaling_decisions(connection)}
            newest = [asdict(row) for row in store.batch_stats(connection, limit=batches)]
            times = store.processing_times(connection, seconds=SCALING_INTERVAL.total_seconds())
        engine.dispose()
    scalings = [
        {"pipeline": row.pipeline, **asdict(decision)}
        for row in times
        if (decision := scaling(row.times, row.interval)) is not None
    ]
    if as_json:
        report = {
            "pipelines": [plain(row) for row in pipelines],
            "receivers": receivers,
            "lag": lag,
            "batches": newest,
            "scaling": scalings,
            "decisions": [asdict(row) for row in decisions.values()],
        }
        typer.echo(
            json.dumps(
                {name: [{k: _plain(v) for k, v in row.items()} for row in rows] for name, rows in report.items()}
            )
        )
        return
    console.print(
        _table("Pipelines", PIPELINE_COLUMNS, [{**asdict(row), "state": shown_state(row)} for row in pipelines])
    )
    console.print(_table("Receivers", RECEIVER_COLUMNS, receivers))
    # Not in the table: beside its columns there is no room in a terminal of 80.
    for row in receivers:
        if row["reason"]:
            console.print(f"{row['stream']}/{row['ordinal']}: {row['reason']}", markup=False, soft_wrap=True)
    console.print(_table("Lag: what no batch has yet", LAG_COLUMNS, lag))
    for pipeline in sorted({str(row["pipeline"]) for row in newest}) or ["none yet"]:
        rows = [row for row in newest if row["pipeline"] == pipeline]
        console.print(_table(f"Batches of {pipeline}, newest first", BATCH_COLUMNS, rows))
    for line in warnings(pipelines):
        console.print(line, style="bold red", markup=False, soft_wrap=True)
    for decided in decisions.values():
        console.print(f"{decided.pipeline}: {decided.reason}.", markup=False, soft_wrap=True)
    for row in scalings:
        if row["executors"] > 0 and row["pipeline"] not in decisions:
            console.print(
                f"Batches of {row['pipeline']} take {row['ratio']:.0%} of their interval (mean of {row['batches']}): "
                f"lengthen the interval, or give Spark more: {row['executors']} executors, by Spark Streaming's rule."
            )
