"""`forebay readers`: list the named readers of streaming queries and what each holds back; remove one."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from tracker_store.batches import readers as store

APPLICATION = "forebay readers"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

app = typer.Typer(help="Named readers of streaming queries: list, remove.", invoke_without_command=True)


@app.callback()
def readers(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List readers: the blocks that wait for each, since when, and when its query last moved it.

    Clean-up keeps these blocks for as long as the reader exists. Remove a reader whose query is gone for good, or its
    blocks fill the disk. Times are UTC.

    For example:

        forebay readers list
        forebay readers list --json
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = store.list_readers(connection)
    if as_json:
        typer.echo(json.dumps({"readers": [_plain(row) for row in rows]}))
        return
    cells = [
        (
            row.reader,
            row.stream,
            f"{row.waiting_blocks:,}",
            f"{row.waiting_records:,}",
            f"{row.waiting_bytes:,}",
            _time(row.oldest_added_at),
            _time(row.moved_at),
        )
        for row in rows
    ]
    print_table(console, ("reader", "stream", "blocks", "records", "bytes", "oldest", "moved"), cells)


def _time(value: datetime | None) -> str:
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def _plain(row: store.ReaderLag) -> dict[str, object]:
    values = {name: getattr(row, name) for name in row.__slots__}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The reader, as its query names it.", autocompletion=names.readers)],
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Remove a reader, so that it holds no blocks back.

    If its query runs, the query ends with an error. Started again, the query continues from its checkpoint, unless the
    blocks after the checkpoint have been cleaned up.

    For example:

        forebay readers remove dashboard
        forebay readers remove dashboard --yes
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        if any(row.reader == name for row in store.list_readers(connection)):
            confirm(
                f"If its query runs, it ends, and blocks that it has not read may go. Remove {name}?",
                yes=yes,
                err=as_json,
            )
        store.remove_reader(connection, name)
    if as_json:
        typer.echo(json.dumps({"reader": name, "removed": True}))
    console.print(f"Reader {name} is removed: blocks that waited only for it may be cleaned up now.", markup=False)
