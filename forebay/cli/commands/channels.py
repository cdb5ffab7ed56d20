"""`forebay channels`: list the channels of a stream, and up to which offset the records of each are stored."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError
from forebay.cli.terminal.tables import print_table
from tracker_store.batches.pipelines import list_streams, unknown_stream
from tracker_store.blocks.channels import list_channels

if TYPE_CHECKING:
    import sqlalchemy as sa

APPLICATION = "forebay channels"
_WITH_CHANNELS = "http"  # the kind of source whose senders may number their records


def channels(
    stream: Annotated[str, typer.Argument(help="The stream.", autocompletion=names.streams)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """List the channels of a stream: senders' named sequences of records, each of which is stored once.

    A channel's offset is that of its next record: all before it are in blocks, or dead letters. Times are UTC.

    For example:

        forebay channels orders
        forebay channels orders --json
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = list_channels(connection, stream)
        if not rows:
            _refuse_without_channels(connection, stream)
    if as_json:
        listed = [asdict(row) | {"moved_at": row.moved_at.isoformat()} for row in rows]
        typer.echo(json.dumps({"stream": stream, "channels": listed}))
        return
    cells = [
        (
            row.sender or "-",
            row.channel,
            f"{row.position:,}",
            f"{row.moved_at:%Y-%m-%d %H:%M:%S}",
            "-" if row.receiver is None else str(row.receiver),
        )
        for row in rows
    ]
    print_table(console, ("sender", "channel", "offset", "moved", "receiver"), cells)


def _refuse_without_channels(connection: sa.Connection, stream: str) -> None:
    """Raise UnknownNameError, or CommandError for a stream whose source takes no channels."""
    declared = {row.name: row.declaration for row in list_streams(connection)}
    if stream not in declared:
        raise unknown_stream(connection, stream)
    kind = declared[stream]["source"]["kind"]
    if kind != _WITH_CHANNELS:
        message = f"stream {stream}: {kind} takes no channels: senders have them who push to an Http source"
        raise CommandError(message)
