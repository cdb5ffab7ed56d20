"""`forebay streams`: list the streams and what reads them; remove one that nothing reads."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from receiver_runtime.sources.fields.units import duration_text
from receiver_runtime.sources.records.ddl import type_name
from tracker_store.batches import streams as store
from tracker_store.batches.pipelines import unknown_stream

APPLICATION = "forebay streams"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

app = typer.Typer(help="Streams: list, remove.", invoke_without_command=True)


@app.callback()
def streams(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List streams: source, active receivers, what reads each, the records that it stores, and for how long.

    Below are the columns of typed streams. "stored" counts records that clean-up has not deleted, "dead letters" those
    that could not be stored, such as records that do not fit the columns. A stream that nothing reads keeps its records
    for its retention. In the JSON that is in seconds.

    For example:

        forebay streams list
        forebay streams list --json
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = store.stream_overview(connection)
    if as_json:
        listed = [_plain(row) for row in rows]
        typer.echo(json.dumps({"streams": listed}))
        return
    cells = [
        (
            row.stream,
            row.source,
            f"{row.active_receivers} of {row.receivers}",
            "\n".join([*row.pipelines, *(f"{name} (reader)" for name in row.readers)]) or "nothing",
            f"{row.stored_records:,}",
            f"{row.dead_letters:,}",
            duration_text(row.retention.total_seconds()),
        )
        for row in rows
    ]
    print_table(console, ("stream", "source", "active", "read by", "stored", "dead letters", "kept for"), cells)
    for row in rows:
        if row.columns:
            parsed = ", ".join(
                f"{name} {type_name(kind)}{' NOT NULL' if name in row.required else ''}" for name, kind in row.columns
            )
            console.print(f"{row.stream}: {parsed}", markup=False, soft_wrap=True)


def _plain(row: store.StreamOverview) -> dict[str, object]:
    values = {**asdict(row), "retention": row.retention.total_seconds()}
    required = values.pop("required")
    values["columns"] = [
        {"name": name, "type": type_name(kind), "nullable": name not in required} for name, kind in row.columns
    ]
    return values


@app.command()
def remove(
    name: Annotated[
        str,
        typer.Argument(
            metavar="STREAM", help="The stream's name, as `forebay streams` shows it.", autocompletion=names.streams
        ),
    ],
    with_records: Annotated[  # noqa: FBT002
        bool, typer.Option("--with-records", help="Also if it has records that no pipeline has read.")
    ] = False,
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Remove a stream: its receivers end, and its blocks are deleted when its retention is over.

    A stream that a pipeline or a named reader reads is refused: remove these first. So is one with records that no
    pipeline has read, unless --with-records is given. If you apply the stream again, it is a new one: it knows no
    positions of its source, so it begins where the source's declaration says.

    For example:

        forebay streams remove orders
        forebay streams remove orders --with-records --yes
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = next((row for row in store.stream_overview(connection) if row.stream == name), None)
        if found is None:
            raise unknown_stream(connection, name)
        if not (yes or found.pipelines or found.readers):
            console.print(
                f"{name}: {found.receivers} receiver(s) end, and {found.stored_records:,} stored records are deleted "
                f"when they are {duration_text(found.retention.total_seconds())} old.",
                markup=False,
            )
            confirm(f"Remove {name}?", yes=yes, err=as_json)
        receivers = store.remove_stream(connection, name, with_waiting=with_records)
    if as_json:
        typer.echo(json.dumps({"stream": name, "removed": True, "receivers": receivers}))
    console.print(f"{name} is removed, with {receivers} receiver(s).", markup=False)
