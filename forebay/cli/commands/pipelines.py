"""`forebay pipelines`: list the pipelines and their state; remove one that is not run any more."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.row_json import pipeline_columns, to_json
from forebay.cli.terminal.tables import print_table
from orchestration.batches.batch_schedule import halted
from orchestration.status_page.problems import stale_line
from tracker_store.batches.pipelines import records_in_batches, remove_pipeline, still_runs
from tracker_store.reports.status import pipeline_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.reports.status import PipelineStatus

APPLICATION = "forebay pipelines"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Name = Annotated[
    str, typer.Argument(help="The pipeline's name, as `forebay pipelines` shows it.", autocompletion=names.pipelines)
]

app = typer.Typer(help="Pipelines: list, remove.", invoke_without_command=True)


@app.callback()
def pipelines(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List pipelines: state, interval, waiting records, batches, and the newest completed batch.

    "decided to" is the cursor in time: every batch time up to there has its batch. "oldest" is the age of the oldest
    block that waits. Times are UTC; in the JSON durations are in seconds.

    For example:

        forebay pipelines list
        forebay pipelines list --json
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = pipeline_status(connection)
    if as_json:
        typer.echo(to_json({"pipelines": [pipeline_columns(row) for row in rows]}))
        return
    cells = [
        (
            row.pipeline,
            shown_state(row),
            row.calendar or f"{row.batch_interval.total_seconds():g} s",
            f"{row.last_batch_time:%Y-%m-%d %H:%M:%S}",
            f"{row.waiting_records:,} records",
            "-" if row.lag is None else f"{row.lag.total_seconds():.0f} s",
            f"{row.running_batches} of {row.unfinished_batches}" if row.unfinished_batches else "-",
            "-" if row.last_completed_time is None else f"{row.last_completed_time:%Y-%m-%d %H:%M:%S}",
        )
        for row in rows
    ]
    print_table(
        console,
        ("pipeline", "state", "interval", "decided to", "waiting", "oldest", "running", "last completed"),
        cells,
    )
    for line in warnings(rows):
        console.print(line, style="bold red", markup=False, soft_wrap=True)


def warnings(rows: Sequence[PipelineStatus]) -> list[str]:
    """Return a line for each pipeline that makes no progress: why, and what to do."""
    lines = []
    for row in rows:
        if row.halted_by is not None:
            lines.append(f"{row.pipeline} is {halted(row.pipeline, row.halted_by)}")
        elif row.is_stale:
            lines.append(stale_line(row))
    return lines


def shown_state(row: PipelineStatus) -> str:
    """Return the pipeline's state, or HALTED if it is RUNNING but a batch has halted it."""
    return "HALTED" if row.halted_by is not None and row.state == "RUNNING" else row.state


@app.command()
def remove(
    name: Name,
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Remove a pipeline: from then on it holds no block back, and clean-up continues.

    Records that wait for it are not processed, and blocks that its quarantined batches kept are deleted. Its outputs
    stay, and other pipelines are not affected. A pipeline that runs is refused: `forebay stop --pipeline NAME` first.
    Receivers that stopped with it stay stopped until a pipeline that reads them runs. Take it out of the module first:
    if you apply it again, it is a new pipeline, which begins with the blocks that are there then, and the next apply or
    start asks whether their results may come out again.

    For example:

        forebay pipelines remove words
        forebay pipelines remove words --yes
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = next((row for row in pipeline_status(connection) if row.pipeline == name), None)
        if found is not None and found.state == "RUNNING":
            raise still_runs(name)
        if found is not None and not yes:
            batches = found.unfinished_batches + found.quarantined_batches
            console.print(
                f"{name} ({found.state}): {found.waiting_records:,} records wait for a batch, and "
                f"{records_in_batches(connection, name):,} are in {batches} batch(es) that are not complete. They will "
                "not come out.",
                markup=False,
            )
            confirm(f"Remove {name}?", yes=yes, err=as_json)
        in_batches = records_in_batches(connection, name)
        removed = remove_pipeline(connection, name)
    if as_json:
        answer = {"pipeline": name, "removed": True, **asdict(removed), "records_in_batches": in_batches}
        typer.echo(json.dumps(answer))
    console.print(
        f"{name} is removed; {removed.waiting_records:,} records had waited for a batch, and {in_batches:,} were in "
        f"batches that do not come out: {removed.unfinished_batches} not complete, {removed.kept_batches} quarantined.",
        markup=False,
    )
