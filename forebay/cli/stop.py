"""`forebay stop` and `forebay start`: pipelines end in order, and go on.

A stop is a wish in the driver log, which the leading tracker carries out; this command writes it and watches. It ends
no process: `forebay up` ends by itself when everything is stopped.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from forebay.cli.database import driver_log
from forebay.cli.services.supervisor import lock_holder
from orchestration.settings import Settings
from receiver_runtime.sources.units import parse_duration
from tracker_store import pipeline_states as store
from tracker_store.leadership import read_leadership
from tracker_store.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import sqlalchemy as sa

POLL_SECONDS = 0.25
DEFAULT_TIMEOUT = "10m"

Pipeline = Annotated[str | None, typer.Option(help="One pipeline; all of them unless given.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


def _seconds(value: str) -> float:
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if seconds < 0:
        message = f"{value!r} is negative: give a duration such as 90s or 10m, or 0s to not wait"
        raise typer.BadParameter(message)
    return seconds


def what_is_open(progress: store.StopProgress) -> str:
    """What a pipeline still waits for, in one line; what there is nothing of is left out."""
    said = []
    if progress.receivers:
        said.append(f"receivers: {', '.join(progress.receivers)}")
    if progress.waiting_records:
        said.append(f"waiting: {progress.waiting_records:,} records in {progress.waiting_blocks:,} blocks")
    if progress.batch_time is not None:
        batch = (
            f"batch {progress.batch_time:%Y-%m-%d %H:%M:%S}Z {progress.batch_state}, attempt {progress.batch_attempt}"
        )
        more = f", {progress.unfinished_batches - 1} more" if progress.unfinished_batches > 1 else ""
        why = f" ({progress.batch_reason})" if progress.batch_reason else ""
        said.append(batch + more + why)
    return "; ".join(said) or "the tracker's next look"


def stop(
    pipeline: Pipeline = None,
    timeout: Annotated[
        str, typer.Option(help="So long to wait: a duration such as 90s or 10m; 0s: only ask, and return.")
    ] = DEFAULT_TIMEOUT,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Stop pipelines in order: what was received comes out first, then they end.

    Receivers of streams that no other running pipeline reads stop reading, register what they hold, and end. What
    waits gets its last batch, at the next multiple of the interval. Without --pipeline the system ends after that:
    `forebay up` exits. The stop is durable, and goes on when this command ends; `forebay start` or `forebay up` lets
    the pipelines run again.
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    seconds = _seconds(timeout)
    settings = Settings()
    deadline = time.monotonic() + seconds
    # Before it is asked for: afterwards the system may end at any moment.
    supervised = pipeline is None and lock_holder(settings.home) is not None
    with driver_log(console, application_name="forebay stop") as connection:
        names = store.stop_pipelines(connection, name=pipeline)
        progress = _watch(connection, names, deadline, _telling(console))
        leads = read_leadership(connection).holder is not None
    stopped = all(row.state is PipelineState.STOPPED for row in progress)
    ended = stopped and (not supervised or _wait_for_end(settings.home, deadline))
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "ended": ended, "pipelines": [_plain(row) for row in progress]}))
    if not stopped:
        _say_what_is_open(console, progress, leads=leads)
        if not seconds:
            return
        console.print(
            f"Not stopped within {seconds:g} s. It goes on stopping: forebay stop waits again, forebay start takes "
            "it back.",
            style="bold red",
        )
        raise typer.Exit(1)
    for row in progress:
        if row.quarantined_batches:
            console.print(
                f"{row.pipeline}: {row.quarantined_batches} batch(es) are quarantined and did not come out.",
                style="bold red",
            )
    if supervised and not ended:
        console.print("Everything is stopped, but forebay up has not ended in time.", style="bold red")
        raise typer.Exit(1)
    if supervised:
        console.print("Everything is stopped, and forebay up has ended.")
    else:
        console.print("Stopped." if progress else "There is no pipeline to stop.")


def _say_what_is_open(console: Console, progress: Sequence[store.StopProgress], *, leads: bool) -> None:
    for row in progress:
        if row.state is PipelineState.STOPPING:
            console.print(f"{row.pipeline} is still stopping; open: {what_is_open(row)}", markup=False)
            if row.waiting_records and not row.receivers and not row.unfinished_batches:
                console.print(
                    f"Nobody makes a batch of what waits: does Dagster run, and does its module declare "
                    f"{row.pipeline}? If it is not wanted any more: forebay pipelines remove {row.pipeline}",
                    markup=False,
                )
    if not leads:
        console.print("No tracker leads, so nobody carries it out: start one with forebay up, or forebay agent.")


def _plain(progress: store.StopProgress) -> dict[str, object]:
    row = asdict(progress)
    for name in ("state_since", "batch_time"):
        row[name] = None if row[name] is None else row[name].isoformat()
    return row


def _watch(
    connection: sa.Connection, names: Sequence[str], deadline: float, tell: Callable[[store.StopProgress], None]
) -> list[store.StopProgress]:
    """Until all are STOPPED, or the deadline; the last that was seen."""
    while True:
        progress = store.stop_progress(connection, names)
        for row in progress:
            tell(row)
        # One that is started meanwhile is somebody's wish, too: it is not waited for.
        if all(row.state is not PipelineState.STOPPING for row in progress) or time.monotonic() >= deadline:
            return progress
        time.sleep(POLL_SECONDS)


def _telling(console: Console) -> Callable[[store.StopProgress], None]:
    """A line whenever what there is to say of a pipeline is new."""
    said: dict[str, str] = {}

    def tell(progress: store.StopProgress) -> None:
        now = (
            f"stopping; {what_is_open(progress)}"
            if progress.state is PipelineState.STOPPING
            else progress.state.lower()
        )
        if said.get(progress.pipeline) != now:
            said[progress.pipeline] = now
            console.print(f"{progress.pipeline}: {now}", markup=False)

    return tell


def _wait_for_end(home: Path, deadline: float) -> bool:
    while lock_holder(home) is not None:
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def start(pipeline: Pipeline = None, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Let pipelines that were stopped run again, and their receivers with them.

    One that is still stopping goes on at once. Nothing is lost in between: what its sources sent elsewhere, or kept,
    is theirs; what waits for a batch gets one.
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name="forebay start") as connection:
        started = store.start_pipelines(connection, names=None if pipeline is None else [pipeline])
    if as_json:
        typer.echo(json.dumps({"started": started}))
        return
    console.print(f"Started: {', '.join(started)}." if started else "Nothing to start: it runs.", markup=False)
