"""`forebay status`: pipelines, receivers, batches, lag, which tracker leads, and what can't be reached."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from forebay.cli.commands.pipelines import shown_state
from forebay.cli.instance.database import THIS_SERVER, database_url
from forebay.cli.services.running_module import code_state
from forebay.cli.services.supervisor_lock import lock_holder
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.many_rows import (
    MOST_ROWS,
    SHORT_ROWS,
    lag_urgency,
    needs_attention,
    pipeline_urgency,
    receiver_urgency,
    shortened,
    source_urgency,
    stream_sums,
    sums_urgency,
    watermark_urgency,
)
from forebay.cli.terminal.row_json import columns, pipeline_columns, to_json
from forebay.cli.terminal.tables import print_table
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from orchestration.policies.executor_allocation import ADVICE_BATCHES, scaling
from orchestration.status_page.problems import problems
from orchestration.status_page.reasons import causes
from orchestration.status_page.system_status import DRIVER_LOG, system_status
from orchestration.tracker.http.listen_address import ListenAddressError
from orchestration.tracker.http.status_address import serves_this_home, status_page
from receiver_runtime.block_store.roots import split_roots
from tracker_store.connection.log_address import NO_LOG
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from _typeshed import DataclassInstance

    from orchestration.block_checks.bounded_scans import Unreachable
    from orchestration.status_page.system_status import SystemStatus
    from tracker_store.reports.status import PipelineStatus, ReceiverStatus

# Seconds. The command answers within this time, whatever is wrong.
ANSWER_SECONDS = 5.0
_PRINTING_SECONDS = 0.4
_LEAST_SECONDS = 3.0  # time for queries that remains even if loading has used up the rest

_ALARM = "bold red"

PIPELINE_COLUMNS = {
    "pipeline": "pipeline",
    "state": "state",
    "intervals_behind": "behind",
    "waiting_records": "waiting",
    "batches": "batches",
    "last_completed_time": "completed",
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
SOURCE_COLUMNS = {
    "stream": "stream",
    "ordinal": "no.",
    "partitions": "partitions",
    "unread": "unread",
    "unread_unit": "",
    "source_lag": "oldest",
}
STREAM_COLUMNS = {
    "stream": "stream",
    "receivers": "receivers",
    "attention": "need attention",
    "states": "states",
    "records": "records",
    "queued_blocks": "queue",
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
WATERMARK_COLUMNS = {
    "pipeline": "pipeline",
    "output": "output",
    "watermark": "watermark",
    "watermark_lag": "behind",
    "late_total": "late records",
}
BATCH_COLUMNS = {
    "batch_time": "time",
    "state": "state",
    "attempt": "try",
    "records": "records",
    "scheduling_delay": "waited",
    "processing_time": "ran",
    "total_delay": "total",
}


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.1f} s"
    if isinstance(value, datetime):
        today = value.date() == datetime.now(UTC).date()
        # One word, so that a batch time can be given to another command as it is.
        return f"{value:%H:%M:%S}" if today else f"{value:%Y-%m-%dT%H:%M:%SZ}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _print_rows(console: Console, title: str, headings: dict[str, str], rows: Sequence[Mapping[str, object]]) -> None:
    cells = [[_cell(row[column]) for column in headings] for row in rows]
    print_table(console, list(headings.values()), cells, title=title)


def _seconds(within: float) -> float:
    """Return the seconds left to answer in. The time counts from the start of the process, and includes printing."""
    age = time.time() - psutil.Process().create_time()
    # An older process was not started for this command, or loading took so long that the limit is exceeded already.
    left = within - age if 0 <= age < within else within
    return max(min(_LEAST_SECONDS, within), left - _PRINTING_SECONDS)


def status(
    batches: Annotated[int, typer.Option(min=1, help="How many batches to show, newest first.")] = 10,
    within: Annotated[
        float,
        typer.Option(min=1.0, help="Answer within this many seconds; name the parts that have not answered by then."),
    ] = ANSWER_SECONDS,
    everything: Annotated[  # noqa: FBT002
        bool, typer.Option("--all", help="Every row of every table, also of those with more than 100.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Show problems, pipelines, receivers, what waits for each pipeline (lag), and the newest batches.

    Batches are shown with their delays. What is wrong comes first, worst first, each with the command that leads on.
    "behind" counts the intervals since the oldest batch time that is not complete, and "batches" the pipeline's batches
    that are not complete, by state.

    It answers within 5 s, whatever is wrong. If it can't reach something, it names that part and the reason, and exits
    with 1. In the JSON such a part is null, and `unreachable` names it.

    Of more than 100 receivers it shows the sums of each stream, and the 20 receivers that need attention most; of more
    than 100 other rows, the 20 most urgent ones. It says how many it leaves out. `--all` and `--json` show all.

    "queue" counts blocks that a receiver has cut and not stored yet, and "unread" what its source has beyond these.
    "waited" is the scheduling delay (processing start - batch time), "ran" the processing time, "total" their sum.
    Durations are in seconds, also in the JSON; times are UTC.

    For example:

        forebay status
        forebay status --json
    """
    settings = Settings()
    found = system_status(
        lambda: database_url(settings),
        seconds=_seconds(within),
        batches=batches,
        host=socket.gethostname(),
        roots=split_roots(settings.block_store_roots),
        code=lambda: code_state(settings),
    )
    found = replace(found, unreachable=[_without_secrets(one, settings) for one in found.unreachable])
    if as_json:
        typer.echo(to_json(_report(found)))
    elif (nothing := _no_installation(found)) is not None:
        # There is nothing to show, and nothing to repair.
        Console(highlight=False).print(nothing, markup=False, soft_wrap=True)
    else:
        console = Console(highlight=False)
        _show(console, found, everything=everything, without_the_log=_without_the_log(found, settings))
        _show_page(console, settings)
    if found.unreachable:
        raise typer.Exit(1)


def _no_installation(found: SystemStatus) -> str | None:
    """Return what to do where no driver log was named and this home has none; None: there is one."""
    prefix = f"{DatabaseUrlMissingError.__name__}: "
    reasons = [part.reason for part in found.unreachable if part.part == DRIVER_LOG and part.reason.startswith(prefix)]
    return reasons[0].removeprefix(prefix) if reasons else None


def _show_page(console: Console, settings: Settings) -> None:
    """Print where the status page is: without its token, because people copy what this command prints."""
    with suppress(ListenAddressError):  # another command reports it; this one answers whatever is wrong
        if serves_this_home(settings) and (page := status_page(settings)) is not None:
            console.print(f"Status page: {page}", markup=False, soft_wrap=True)


def _scalings(found: SystemStatus) -> list[dict[str, Any]] | None:
    if found.processing_times is None:
        return None
    return [
        {"pipeline": row.pipeline, **asdict(decision)}
        for row in found.processing_times
        if (decision := scaling(row.times, row.interval)) is not None
    ]


def _rows(rows: Sequence[DataclassInstance] | None) -> list[dict[str, Any]] | None:
    return None if rows is None else [columns(row) for row in rows]


def _without_secrets(part: Unreachable, settings: Settings) -> Unreachable:
    """Return a part whose reason, which may be a library's error, has no secret of a configured address."""
    reason = part.reason
    for address in settings.addresses:
        reason = address.scrub(reason)
    return replace(part, reason=reason)


def _report(found: SystemStatus) -> dict[str, object]:
    """Return the JSON object; a part that did not answer is null."""
    parts = {
        "agents": _rows(found.agents),
        "pipelines": None if found.pipelines is None else [pipeline_columns(row) for row in found.pipelines],
        "receivers": _rows(found.receivers),
        "lag": _rows(found.lag),
        "batches": _rows(found.batches),
        "scaling": _scalings(found),
        "decisions": _rows(found.decisions),
        "states": _rows(found.states),
        "unreachable": _rows(found.unreachable),
        "problems": _rows(problems(found)),
    }
    return {"leader": None if found.leader is None else asdict(found.leader), **parts}


def _without_the_log(found: SystemStatus, settings: Settings) -> str:
    """Return what it means that the driver log can't be reached; "" if it can, or there is none."""
    reasons = [missing.reason for missing in found.unreachable if missing.part == DRIVER_LOG]
    if not reasons or reasons[0].startswith(NO_LOG):
        return ""
    said, check = "The state can't be shown without the driver log", ": check FOREBAY_DATABASE_URL and the server"
    if reasons[0].startswith(THIS_SERVER):
        # It runs as long as `forebay up` does, and so do the receivers: none goes on by itself.
        if lock_holder(settings.home) is None:
            return f"{said}, and `forebay up` does not run in this home."
        check = ""
    return (
        f"{said}{check}. Receivers keep what they hold, stop reading from their sources, and go on by themselves when "
        "it is back."
    )


def _show(console: Console, found: SystemStatus, *, everything: bool, without_the_log: str = "") -> None:
    _show_problems(console, found, everything=everything)
    if without_the_log:
        console.print(without_the_log, markup=False, soft_wrap=True)
    if found.pipelines is not None:
        pipelines = shortened(found.pipelines, pipeline_urgency, everything=everything)
        rows = [_pipeline_cells(row) for row in pipelines.rows]
        _print_rows(console, "Pipelines", PIPELINE_COLUMNS, rows)
        _show_left_out(console, pipelines.left_out, "pipelines", "pipeline_status")
    if found.receivers is not None:
        _show_receivers(console, found.receivers, everything=everything)
        _show_sources(console, found.receivers, everything=everything)
    if found.lag is not None:
        lag = shortened(found.lag, lag_urgency, everything=everything)
        _print_rows(console, "Lag: what no batch has yet", LAG_COLUMNS, _rows(lag.rows) or [])
        _show_left_out(console, lag.left_out, "rows", "stream_lag")
    _show_watermarks(console, found, everything=everything)
    if found.batches is not None:
        for pipeline in sorted({row.pipeline for row in found.batches}) or ["none yet"]:
            rows = [columns(row) for row in found.batches if row.pipeline == pipeline]
            _print_rows(console, f"Batches of {pipeline}, newest first", BATCH_COLUMNS, rows)
            # Not in the table, which would leave it a few characters. A batch without records shows it by its size.
            told = [row for row in rows if row["records"] or row["state"] != BatchState.COMPLETED]
            for cause in causes(told, lambda row: str(row["reason"])):
                times = f"{_cell(cause.row['batch_time'])}{cause.and_more}"
                console.print(f"{times}: {cause.line}", markup=False, soft_wrap=True)
    _show_scaling(console, found)
    _show_leader(console, found)


def _show_problems(console: Console, found: SystemStatus, *, everything: bool) -> None:
    listed = problems(found)
    shown = listed if everything else listed[:SHORT_ROWS]
    if shown:
        console.print(f"Problems: {len(listed):,}", style=_ALARM)
    for problem in shown:
        console.print(f"  {problem.line}", style=_ALARM, markup=False, soft_wrap=True)
    if len(listed) > len(shown):
        console.print(f"  {len(listed) - len(shown):,} more: forebay status --all, or --json.", style=_ALARM)


def _pipeline_cells(row: PipelineStatus) -> dict[str, Any]:
    counts = {
        "running": row.running_batches,
        "failed": row.failed_batches,
        "blocked": row.blocked_batches,
        "allocated": row.unfinished_batches - row.running_batches - row.failed_batches - row.blocked_batches,
        "quarantined": row.quarantined_batches,
    }
    # No space within a count: a narrow terminal wraps between two of them.
    batches = ", ".join(f"{number:,}\N{NO-BREAK SPACE}{state}" for state, number in counts.items() if number)
    return {
        **columns(row),
        "state": shown_state(row),
        "batches": batches or "-",
        "intervals_behind": row.intervals_behind,
    }


def _show_receivers(console: Console, receivers: Sequence[ReceiverStatus], *, everything: bool) -> None:
    shown = receivers
    if everything or len(receivers) <= MOST_ROWS:
        _print_rows(console, "Receivers", RECEIVER_COLUMNS, _rows(receivers) or [])
    else:
        streams = shortened(stream_sums(receivers), sums_urgency, everything=False)
        _print_rows(console, "Receivers: sums of each stream", STREAM_COLUMNS, _rows(streams.rows) or [])
        _show_left_out(console, streams.left_out, "streams", "receiver_status")
        urgent = sorted(filter(needs_attention, receivers), key=receiver_urgency, reverse=True)
        shown = urgent[:SHORT_ROWS]
        title = f"Receivers that need attention: {len(urgent):,} of {len(receivers):,}"
        _print_rows(console, title, RECEIVER_COLUMNS, _rows(shown) or [])
        _show_left_out(console, len(receivers) - len(shown), "receivers", "receiver_status")
    # Not in the table: a terminal of 80 columns has no room for one more column.
    for cause in causes(shown, lambda row: row.reason):
        name = f"{cause.row.stream}/{cause.row.ordinal}{cause.and_more}"
        console.print(f"{name}: {cause.line}", markup=False, soft_wrap=True)


def _show_sources(console: Console, receivers: Sequence[ReceiverStatus], *, everything: bool) -> None:
    """Show what the sources have that is not read, of the receivers whose source says so."""
    reported = [row for row in receivers if row.unread is not None]
    if reported:
        sources = shortened(reported, source_urgency, everything=everything)
        _print_rows(console, "Sources: what no receiver has read yet", SOURCE_COLUMNS, _rows(sources.rows) or [])
        _show_left_out(console, sources.left_out, "receivers", "receiver_status")


def _show_watermarks(console: Console, found: SystemStatus, *, everything: bool) -> None:
    """Show how far event time is, of the outputs that go by it."""
    by_event_time = [row for row in found.states or [] if row.is_by_event_time]
    if by_event_time:
        states = shortened(by_event_time, watermark_urgency, everything=everything)
        rows = [{**columns(row), "watermark_lag": row.watermark_lag} for row in states.rows]
        _print_rows(console, "Event time: the watermark of each output", WATERMARK_COLUMNS, rows)
        _show_left_out(console, states.left_out, "outputs", "state_status")


def _show_left_out(console: Console, count: int, what: str, view: str) -> None:
    if count:
        console.print(
            f"{count:,} {what} are not shown: see forebay status --all, --json, or the view forebay.{view}.",
            soft_wrap=True,
        )


def _show_scaling(console: Console, found: SystemStatus) -> None:
    decided = found.decisions or []
    for decision in decided:
        if decision.applied or decision.newest_batches >= ADVICE_BATCHES:
            console.print(f"{decision.pipeline}: {decision.reason}.", markup=False, soft_wrap=True)
    for row in _scalings(found) or []:
        is_advice = row["executors"] > 0 and row["batches"] >= ADVICE_BATCHES
        if is_advice and row["pipeline"] not in {decision.pipeline for decision in decided}:
            console.print(
                f"Batches of {row['pipeline']} take {row['ratio']:.0%} of their interval (mean of {row['batches']}): "
                f"lengthen the interval, or give Spark more: {row['executors']} executors, by Spark Streaming's rule."
            )


def _show_leader(console: Console, found: SystemStatus) -> None:
    leader = found.leader
    if leader is not None and leader.moves:
        console.print(f"Leader: {leader.holder} (term {leader.term}).", markup=False, soft_wrap=True)
