"""`forebay channels`: list the channels of a stream, and up to which offset the records of each are stored."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from tracker_store.batches.pipelines import list_streams, unknown_stream
from tracker_store.blocks.channels import list_channels

APPLICATION = "forebay channels"


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
        if not rows and all(row.name != stream for row in list_streams(connection)):
            raise unknown_stream(connection, stream)
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
