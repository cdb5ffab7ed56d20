"""`forebay batches`: list and show batches; replay, bisect and discard those that failed."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.commands.batches.batch_bisect import bisect
from forebay.cli.commands.batches.batch_replay import replay
from forebay.cli.commands.batches.batch_times import LATEST, TIME_HELP, PipelineName, bound_time, named_batch
from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.allocated_blocks import block_as_json
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from orchestration.batches.batch_schedule import halted
from orchestration.status_page.reasons import causes, is_cut
from tracker_store.batches import batches as store
from tracker_store.batches.batch_outputs import OutputState, outputs_of_batch, partial_commit
from tracker_store.batches.input_metadata import input_metadata
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline, list_pipelines
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracker_store.batches.batches import BatchRow
    from tracker_store.batches.input_metadata import InputMetadata
    from tracker_store.batches.received_block_tracker import AllocatedBlock

APPLICATION = "forebay batches"
_MOST_SHOWN = 20

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
BatchTime = Annotated[str, typer.Argument(metavar="TIME", help=f"{TIME_HELP}.", autocompletion=names.batches)]

app = typer.Typer(help="Batches: list, show, replay, bisect, discard.", invoke_without_command=True)
app.command()(replay)
app.command()(bisect)


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def _as_json(row: object, **more: object) -> dict[str, object]:
    return {key: _plain(value) for key, value in {**more, **asdict(row)}.items()}  # type: ignore[call-overload]


OfPipeline = Annotated[
    str | None, typer.Option(help="Only this pipeline's batches (default: all).", autocompletion=names.pipelines)
]
InState = Annotated[
    list[BatchState] | None,
    typer.Option(
        metavar="STATE", help=f"Only batches in this state: {', '.join(BatchState)}; may be given several times."
    ),
]
From = Annotated[str, typer.Option("--from", help="From this batch time on.")]
To = Annotated[str, typer.Option("--to", help="Up to this batch time.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest N of each pipeline.")]


@app.callback()
def batches(
    context: typer.Context,
    pipeline: OfPipeline = None,
    state: InState = None,
    from_time: From = "",
    to_time: To = "",
    limit: Limit = 20,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """List batches: state, attempts, records, and why one failed or waits.

    The reason is the most informative failure of all attempts. A BLOCKED batch waits for its block store, or for the
    key of a block, which uses up no attempts. A QUARANTINED batch has used up its attempts; its blocks are kept for
    `forebay batches replay`. If some of its outputs are committed, the reason says that it is partially committed.
    Times are UTC.

    For example:

        forebay batches list words --state QUARANTINED
        forebay batches list --from 12:00:00
        forebay batches list --from 2026-01-31T12:00:00Z --limit 100 --json
    """
    if context.invoked_subcommand is None:
        _list(pipeline, state, from_time, to_time, limit, as_json=as_json)


@app.command("list", help=batches.__doc__)
def list_of_pipeline(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[PIPELINE]", help="The same as --pipeline.", autocompletion=names.pipelines),
    ] = None,
    pipeline: OfPipeline = None,
    state: InState = None,
    from_time: From = "",
    to_time: To = "",
    limit: Limit = 20,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """List batches as the group does, and take the pipeline's name as ``show`` does."""
    if name is not None and pipeline not in (None, name):
        message = f"names {name!r} and {pipeline!r}: give one"
        raise typer.BadParameter(message, param_hint="PIPELINE")
    _list(name or pipeline, state, from_time, to_time, limit, as_json=as_json)


def _list(
    pipeline: str | None, state: list[BatchState] | None, from_time: str, to_time: str, limit: int, *, as_json: bool
) -> None:
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = [get_pipeline(connection, pipeline)] if pipeline else list_pipelines(connection)
        found = [
            (
                row,
                store.list_batches(
                    connection,
                    row.pipeline_id,
                    first=bound_time(from_time),
                    last=bound_time(to_time),
                    states=state or (),
                    limit=limit,
                ),
            )
            for row in rows
        ]
    if as_json:
        listed = [_as_json(batch, pipeline=row.name) for row, of_pipeline in found for batch in of_pipeline]
        halted_by = {row.name: row.halted_by.isoformat() for row, _ in found if row.halted_by is not None}
        typer.echo(json.dumps({"batches": listed, "halted": halted_by}))
        return
    for row, of_pipeline in found:
        _print_batches(console, f"Batches of {row.name}, newest first", of_pipeline, listed_of=row.name)
        if row.halted_by is not None:
            console.print(
                f"{row.name} is {halted(row.name, row.halted_by)}",
                style="bold red",
                markup=False,
                soft_wrap=True,
            )
    if not found:
        console.print("No pipeline is applied: forebay apply.")


def _print_batches(console: Console, title: str, rows: list[BatchRow], *, listed_of: str = "") -> None:
    """Print the batches, and below them, where a line has room for it, each reason once.

    `listed_of`: the pipeline, for the command that shows the whole of a reason that is cut here; "" says none.
    """
    cells = [
        (
            f"{row.batch_time:%Y-%m-%dT%H:%M:%SZ}",
            row.state.value,
            str(row.attempt),
            f"{row.records:,}",
            str(row.blocks),
        )
        for row in rows
    ]
    print_table(console, ("time", "state", "try", "records", "blocks"), cells, title=title)
    # A batch without records says so by its figures.
    told = [row for row in rows if row.records or row.state is not BatchState.COMPLETED]
    for cause in causes(told, lambda row: row.reason):
        row, again = cause.row, ""
        if row.retry_at is not None and row.state in (BatchState.FAILED, BatchState.BLOCKED):
            again = f" (again after {row.retry_at:%H:%M:%S})"
        times = f"{row.batch_time:%Y-%m-%dT%H:%M:%SZ}{cause.and_more}"
        console.print(f"{times}: {cause.line}{again}", markup=False, soft_wrap=True)
        if listed_of and is_cut(row.reason):
            whole = f"forebay batches show {listed_of} {row.batch_time:%Y-%m-%dT%H:%M:%SZ}"
            console.print(f"  The whole reason: `{whole}`", markup=False, soft_wrap=True)


def statements(pipeline_id: int, time: datetime) -> dict[str, str]:
    """Return the SQL statements that show a batch in full detail."""
    of_batch = f"WHERE pipeline_id = {pipeline_id} AND batch_time = '{time.isoformat()}'"
    return {
        "blocks": f"SELECT * FROM forebay.batch_blocks {of_batch};",  # noqa: S608  shown to people
        "attempts": f"SELECT * FROM forebay.batch_attempts {of_batch} ORDER BY attempt;",  # noqa: S608
        "outputs": f"SELECT * FROM forebay.output_commits {of_batch};",  # noqa: S608
        "inputs": f"SELECT * FROM forebay.batch_input_metadata {of_batch};",  # noqa: S608
        "failures": f"SELECT * FROM forebay.output_failures {of_batch} ORDER BY attempt, output;",  # noqa: S608
    }


@app.command()
def show(
    pipeline: PipelineName,
    batch_time: Annotated[
        str,
        typer.Argument(
            metavar="TIME",
            help=f"{TIME_HELP}, or {LATEST}: the newest batch with records.",
            autocompletion=names.batches,
        ),
    ],
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show one batch: its outputs, its attempts, the SQL for each, the positions of its sources, and its blocks.

    A topic's or a file's positions stay when the blocks are cleaned up. The position after "to" is in another batch.
    Outputs without a result are shown with their newest error.

    For example:

        forebay batches show words latest
        forebay batches show words 12:00:00
        forebay batches show words 2026-01-31T12:00:00Z
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        pipeline_id = get_pipeline(connection, pipeline).pipeline_id
        row = named_batch(connection, pipeline_id, batch_time, pipeline=pipeline, latest_of=())
        receivers = {place.receiver_id: f"{place.stream_name}/{place.ordinal}" for place in placements(connection)}
        blocks = ReceivedBlockTracker(connection, pipeline_id).get_blocks_of_batch(row.batch_time)
        attempts = store.attempts_of_batch(connection, pipeline_id, row.batch_time)
        commits = commits_of_batch(connection, pipeline_id, row.batch_time)
        inputs = input_metadata(connection, pipeline_id, row.batch_time, limit=None if as_json else _MOST_SHOWN)
        due = outputs_of_batch(connection, get_pipeline(connection, pipeline), row.batch_time)
    # A batch that is complete has all that it should have: an output without a result was declared later.
    missing = (
        [] if row.state is BatchState.COMPLETED else [out for out in due if out.state is not OutputState.COMMITTED]
    )
    partial = partial_commit(due) if missing else ""
    sql = statements(pipeline_id, row.batch_time)
    if as_json:
        facts: dict[str, Any] = {
            "batch": _as_json(row, pipeline=pipeline),
            "outputs": [_as_json(commit) for commit in commits],
            "outputs_without_result": [_as_json(output) for output in missing],
            "partially_committed": bool(partial),
            "attempts": [_as_json(attempt) for attempt in attempts],
            "sql": sql,
            "inputs": asdict(inputs) | {"ranges": [asdict(read) for read in inputs.ranges]},
            "blocks": [block_as_json(block, receivers) for block in blocks],
        }
        typer.echo(json.dumps(facts))
        return
    _print_batches(console, f"Batch of {pipeline}", [row])
    if is_cut(row.reason):
        console.print("The whole reason:")
        console.print(indent(row.reason, "  "), markup=False)
    console.print("Outputs:" if commits else "Outputs: none is committed")
    for commit in commits:
        rows = "rows not counted" if commit.rows is None else f"{commit.rows:,} rows"
        code = "" if commit.code_version is None else f" by code {commit.code_version}"
        console.print(f"  {commit.output}: of attempt {commit.attempt}{code}, {rows}, {commit.location}", markup=False)
    for output in missing:
        why = f" in attempt {output.failed_attempt}: {output.error.partition(chr(10))[0]}" if output.error else ""
        console.print(f"  {output.output}: {output.state}{why}", markup=False)
    if partial:
        console.print(f"This batch is {partial}.", style="bold", markup=False)
        if row.state is BatchState.QUARANTINED:
            command = f"forebay batches replay {pipeline} {row.batch_time:%Y-%m-%dT%H:%M:%SZ} --failed-outputs-only"
            console.print(f"This runs only those without a result: {command}", markup=False)
    console.print("Attempts:" if attempts else "Attempts: none")
    for attempt in attempts:
        said = f": {attempt.error.partition(chr(10))[0]}" if attempt.error else ""
        console.print(
            f"  {attempt.attempt} ({attempt.kind}): {attempt.state} since {attempt.started_at:%Y-%m-%d %H:%M:%S}, "
            f"run {attempt.run_id or 'unknown'}{said}",
            markup=False,
        )
    console.print("SQL:")
    for statement in sql.values():
        console.print(f"  {statement}", markup=False)
    _print_inputs(console, inputs)
    _print_blocks(console, row, blocks, receivers)


def _print_blocks(
    console: Console, row: BatchRow, blocks: Sequence[AllocatedBlock], receivers: Mapping[int, str]
) -> None:
    others = row.blocks - len(blocks)
    console.print(
        f"{len(blocks)} block(s) can be read, {sum(block.records for block in blocks):,} records"
        + (f"; {others} have no records (a receiver began with each), or are cleaned up:" if others > 0 else ":")
    )
    for block in blocks[:_MOST_SHOWN]:
        name = receivers.get(block.receiver_id, f"receiver {block.receiver_id}")
        console.print(
            f"  {name} {block.sequence}: {block.records:,} records, {block.path}, offset {block.handle.offset}, "
            f"{block.handle.length} bytes",
            markup=False,
        )
    if len(blocks) > _MOST_SHOWN:
        console.print(f"  … and {len(blocks) - _MOST_SHOWN} more (--json shows all)")


def _print_inputs(console: Console, inputs: InputMetadata) -> None:
    if not inputs.known:
        console.print("Read from its sources: not recorded, and its blocks are gone")
        return
    console.print("Read from its sources:")
    for read in inputs.ranges:
        generation = f" (generation {read.generation})" if read.generation else ""
        lost = f", {read.lost:,} of them lost by the source" if read.lost else ""
        console.print(
            f"  {read.stream}: {read.source} {read.partition}{generation}: {read.from_offset} to {read.to_offset - 1}, "
            f"{read.to_offset - read.from_offset:,} positions{lost}",
            markup=False,
        )
    if inputs.total > len(inputs.ranges):
        console.print(f"  … and {inputs.total - len(inputs.ranges)} more (--json shows all)")
    for stream in inputs.no_positions:
        console.print(f"  {stream}: no positions", markup=False)


@app.command()
def discard(
    pipeline: PipelineName,
    batch_time: BatchTime,
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Give up a quarantined or blocked batch: its blocks are released for clean-up, its records are never processed.

    A pipeline that it has halted continues, and so do the batches behind it. This can't be undone.

    For example:

        forebay batches discard words 2026-01-31T12:00:00Z
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        pipeline_id = get_pipeline(connection, pipeline).pipeline_id
        row = named_batch(connection, pipeline_id, batch_time, pipeline=pipeline)
        if row.state not in (BatchState.QUARANTINED, BatchState.BLOCKED):
            raise DriverLogError(
                f"batch {row.batch_time.isoformat()} of {pipeline!r} is {row.state}", store.NOT_DISCARDABLE
            )
        confirm(
            f"Batch {row.batch_time.isoformat()} of {pipeline} has {row.records:,} records, which will never come out. "
            "Discard it?",
            yes=yes,
            err=as_json,
        )
        kept = store.discard_batch(connection, pipeline_id=pipeline_id, batch_time=row.batch_time)
    if as_json:
        discarded = {"batch_time": row.batch_time.isoformat(), "state": BatchState.DISCARDED, "records": row.records}
        typer.echo(json.dumps({"pipeline": pipeline, **discarded, "kept_sequences": kept}))
    console.print(f"Discarded: {row.records:,} records{'; clean-up deletes what was kept for it' if kept else ''}.")
