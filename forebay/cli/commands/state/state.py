"""`forebay state`: show what outputs keep for their keys, export it, and go on with a replay of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path  # noqa: TC003  Typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.commands.batches.batch_times import PipelineName, named_batch
from forebay.cli.commands.state.state_replay import rebuild, resume, undo
from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError, clear_errors
from forebay.cli.terminal.tables import print_table
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.roots import root_names
from tracker_store.batches import state_versions
from tracker_store.batches.outputs import commit_of_output
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_versions import VersionKey
from tracker_store.blocks.block_stores import attached_identities
from tracker_store.reports.state_status import list_states
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    import sqlalchemy as sa

    from orchestration.state.stored_state import StoredState
    from tracker_store.reports.state_status import StateStatus

APPLICATION = "forebay state"

app = typer.Typer(help="State of outputs: list, show, export, resume, undo.", invoke_without_command=True)
app.command()(resume)
app.command()(rebuild)
app.command()(undo)

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
OutputName = Annotated[
    str, typer.Argument(metavar="OUTPUT", help="The output with the state.", autocompletion=names.outputs)
]
At = Annotated[
    str,
    typer.Option("--at", help="As the batch of this time left it; default: as it is.", autocompletion=names.batches),
]


@app.callback()
def states(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List the state of each output that has one: up to which batch, how many keys, how much is stored.

    Times are UTC.

    For example:

        forebay state list
        forebay state list --json
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = list_states(connection)
    if as_json:
        listed = [{name: _plain(value) for name, value in asdict(row).items()} for row in rows]
        typer.echo(json.dumps({"states": listed}))
        return
    if not rows:
        console.print("No output has a state yet.")
        return
    cells: list[tuple[str, ...]] = [
        (
            row.pipeline,
            row.output,
            f"{row.batch_time:%Y-%m-%d %H:%M:%S}",
            "-" if row.keys is None else f"{row.keys:,}",
            f"{row.stored_bytes:,}",
            f"{row.versions:,}",
            "-" if row.next_expiry is None else f"{row.next_expiry:%Y-%m-%d %H:%M:%S}",
            "-" if row.replay is None else f"{row.replay} {row.replay_state}{_without_process(row)}",
        )
        for row in rows
    ]
    columns: tuple[str, ...] = ("pipeline", "output", "batch", "keys", "bytes", "versions", "next expiry", "replay")
    if any(row.late_total is not None for row in rows):
        # Only where an output is by event time: a terminal of 80 columns has no room for two more.
        columns += ("watermark", "late records")
        cells = [(*cell, *_event_time(row)) for cell, row in zip(cells, rows, strict=True)]
    print_table(console, columns, cells)


def _event_time(row: StateStatus) -> tuple[str, str]:
    return (
        "-" if row.watermark is None else f"{row.watermark:%Y-%m-%d %H:%M:%S}",
        "-" if row.late_total is None else f"{row.late_total:,}",
    )


@app.command()
def show(
    pipeline: PipelineName,
    output: OutputName,
    key: Annotated[list[str], typer.Argument(metavar="KEY", help="The key: one value for each of its columns.")],
    at: At = "",
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Show the value of one key, and which batch changed it last.

    The exit code is 1 if the key has none.

    For example:

        forebay state show visits totals ann
        forebay state show visits totals ann --at 12:00:00
    """
    console = Console(highlight=False, stderr=as_json)
    with clear_errors(console):
        with driver_log(console, application_name=APPLICATION) as connection:
            stored = _stored(connection, pipeline, output, at)
        try:
            found = stored.row_of(key)
        except ValueError as error:
            raise CommandError(str(error)) from error
    time = stored.batch_time.isoformat()
    if as_json:
        value = None if found is None else {name: _plain(value) for name, value in found.row.items()}
        changed = None if found is None else {"batch_time": found.changed_at.isoformat(), "attempt": found.changed_by}
        typer.echo(json.dumps({"batch_time": time, "value": value, "changed": changed}, default=str))
    elif found is None:
        console.print(f"After batch {time} the key has no value.", markup=False)
    else:
        print_table(console, ("column", "value"), [(name, str(_plain(value))) for name, value in found.row.items()])
        last = found.changed_at.isoformat()
        console.print(
            f"After batch {time}. Batch {last}, attempt {found.changed_by}, changed the key last.", markup=False
        )
    raise typer.Exit(0 if found is not None else 1)


@app.command()
def export(
    pipeline: PipelineName,
    output: OutputName,
    to: Annotated[Path, typer.Option("--to", help="A new Parquet file.")],
    at: At = "",
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Write the whole state to a Parquet file: a row for each key.

    Its columns `_changed_at` and `_changed_by` say which batch and attempt changed the key last.

    For example:

        forebay state export visits totals --to totals.parquet
    """
    console = Console(highlight=False, stderr=True)
    with clear_errors(console):
        if to.exists():
            message = f"{to} exists: give the name of a new file"
            raise CommandError(message)
        with driver_log(console, application_name=APPLICATION) as connection:
            stored = _stored(connection, pipeline, output, at)
        try:
            rows = _write(stored, to)
        except OSError as error:
            message = f"{to} can't be written: {error}"
            raise CommandError(message) from error
    time = stored.batch_time.isoformat()
    if as_json:
        typer.echo(json.dumps({"file": str(to), "keys": rows, "batch_time": time}))
    else:
        console.print(f"{to}: {rows:,} keys, after batch {time}", markup=False)


def _without_process(row: StateStatus) -> str:
    return "" if row.replay_runs or row.replay_state == StateReplayState.STOPPED else ", no process"


def _write(stored: StoredState, to: Path) -> int:
    """Write all keys to a file, which appears when it is whole; return how many. Raises OSError."""
    import pyarrow.parquet as pq  # noqa: PLC0415  slow to load

    part, rows = to.with_name(f"{to.name}.part"), 0
    try:
        with pq.ParquetWriter(part, stored.given_schema()) as writer:
            for table in stored.tables():
                writer.write_table(table)
                rows += table.num_rows
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)
    return rows


def _stored(connection: sa.Connection, pipeline: str, output: str, at: str) -> StoredState:
    """Return the state as of a batch, or as it is. Raises CommandError."""
    from orchestration.state.state_frame import StateFrame  # noqa: PLC0415  the same
    from orchestration.state.state_schema import StateSchema  # noqa: PLC0415  Arrow, which is slow to load
    from orchestration.state.state_segments import StatePlace  # noqa: PLC0415  the same
    from orchestration.state.stored_state import StoredState  # noqa: PLC0415  the same

    pipeline_id = get_pipeline(connection, pipeline).pipeline_id
    key = _key(connection, pipeline, pipeline_id, output, at)
    found = state_versions.version(
        connection, pipeline_id=pipeline_id, output=output, batch_time=key.batch_time, attempt=key.attempt
    )
    if found is None:
        message = f"the state of output {output} after batch {key.batch_time.isoformat()} is not stored any more"
        raise CommandError(message)
    settings = Settings()
    chain = state_versions.chain(connection, pipeline_id=pipeline_id, output=output, version=key)
    place = StatePlace(
        settings.block_store_roots,
        ",".join(map(str, settings.block_key_references)),
        attached_identities(connection, root_names(settings.block_store_roots)),
    )
    frames = [[StateFrame.of_row(row) for row in rows] for rows in chain]
    return StoredState(StateSchema.of_row(found.schema), frames, place, key.batch_time)


def _key(connection: sa.Connection, pipeline: str, pipeline_id: int, output: str, at: str) -> VersionKey:
    if at:
        time = named_batch(connection, pipeline_id, at, pipeline=pipeline).batch_time
        commit = commit_of_output(connection, pipeline_id, output, time)
        if commit is None or commit.state_attempt is None:
            message = f"batch {time.isoformat()} has made no version of the state of output {output}"
            raise CommandError(message)
        return VersionKey(time, commit.state_attempt)
    if (found := state_versions.head_version(connection, pipeline_id, output)) is not None:
        return found
    message = f"output {output} of pipeline {pipeline} has no state: `forebay state` lists those that have one"
    raise CommandError(message)


def _plain(value: Any) -> Any:  # noqa: ANN401  any column's type
    return value.isoformat() if isinstance(value, datetime) else value
