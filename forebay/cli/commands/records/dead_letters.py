"""`forebay dead-letters`: list the records that could not be processed, show what they are, and replay them."""

from __future__ import annotations

import json
from base64 import b64encode
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.commands.records.dead_letter_replay import replay
from forebay.cli.commands.records.stored_letters import (
    APPLICATION,
    SHOWN_BYTES,
    as_text,
    letter_reader,
    read_letters,
)
from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from tracker_store.blocks.dead_letters import newest_dead_letters, sum_dead_letters
from tracker_store.host.terminal_text import escaped
from tracker_store.receivers.receivers import receivers_named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.blocks.dead_letters import DeadLetterRow, DeadLetterSums


AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]

app = typer.Typer(help="Records that could not be processed: list, show, replay.", no_args_is_help=True)
app.command()(replay)


def _reasons(incomplete: str) -> list[str]:
    return [one.label for one in DeadLetterReason if one.label.startswith(incomplete)]


@app.command("list")
def list_letters(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[STREAM[/N]]",
            help="Only of this stream, or of this receiver (default: of all).",
            autocompletion=names.receivers,
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="Only with this reason, such as invalid_encoding.", autocompletion=_reasons)
    ] = None,
    newest: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="The newest N rows, in place of the sums.")
    ] = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """List dead letters: sums by receiver and reason, or with -n the newest rows.

    "records" are kept, and can be shown; "dropped" ones were counted only, because their sender's budget was used up. A
    row has the records of one read. Times are UTC. Rows are kept for FOREBAY_HISTORY_RETENTION.

    For example:

        forebay dead-letters list
        forebay dead-letters list orders/1 --reason invalid_encoding -n 20
    """
    console = Console(highlight=False, stderr=as_json)
    stream, ordinal = _receiver(name)
    with driver_log(console, application_name=APPLICATION) as connection:
        if newest is None:
            sums = sum_dead_letters(connection, stream=stream, ordinal=ordinal, reason=reason)
            rows = []
        else:
            rows = newest_dead_letters(connection, limit=newest, stream=stream, ordinal=ordinal, reason=reason)
            sums = []
        if name is not None and not (rows or sums):
            receivers_named(connection, name)  # raises if there is no such receiver at all
    if as_json:
        found: Sequence[DeadLetterSums | DeadLetterRow] = sums if newest is None else rows
        typer.echo(json.dumps({"dead_letters": [_plain(asdict(one)) for one in found]}))
    elif newest is None:
        _show_sums(console, sums)
    else:
        _show_rows(console, rows)


@app.command()
def show(
    dead_letter_id: Annotated[int, typer.Argument(metavar="ID", help="The row's id, as `list` shows it.")],
    letter: Annotated[int | None, typer.Option(min=1, help="Only the Nth record of the row, from 1.")] = None,
    everything: Annotated[  # noqa: FBT002
        bool, typer.Option("--all", help=f"All bytes of each record, not only the first {SHOWN_BYTES:,}.")
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    r"""Show the records of a row as text: bytes that are none, and control characters, are shown as escapes.

    Below a record of a typed stream is why it does not fit, and where, or that it fits by now, as the stream is
    declared. Below one that the parser of its source refuses is why. JSON has the bytes in base64.
    `forebay blocks dead-letter ID --to FILE` saves them as they were received.

    For example:

        forebay dead-letters show 17
        forebay dead-letters show 17 --letter 3 --json
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    row, letters = read_letters(console, dead_letter_id)
    if letter is not None and letter > len(letters):
        console.print(f"Dead letter {dead_letter_id} has {len(letters)} records, there is no {letter}.")
        raise typer.Exit(1)
    chosen = list(enumerate(letters, start=1)) if letter is None else [(letter, letters[letter - 1])]
    with driver_log(console, application_name=APPLICATION) as connection:
        reader = letter_reader(connection, row)
    found = [None] * len(chosen) if reader is None else reader.whys([data for _, data in chosen])
    is_typed = reader is not None and reader.records is not None
    if as_json:
        shown = [
            {
                "letter": number,
                "base64": b64encode(data).decode(),
                **({"fits": found[place] is None} if is_typed else {}),
                **({"why": found[place]} if is_typed or found[place] is not None else {}),
            }
            for place, (number, data) in enumerate(chosen)
        ]
        typer.echo(json.dumps({**_plain(asdict(row)), "records": shown}))
        return
    console.print(
        f"{row.stream}/{row.ordinal}, {row.reason}, {row.added_at:%Y-%m-%d %H:%M:%S} UTC: {len(letters):,} record(s), "
        f"{row.bytes:,} bytes",
        markup=False,
    )
    if row.replayed_at is not None:
        console.print(f"Replayed at {row.replayed_at:%Y-%m-%d %H:%M:%S} UTC, to {row.replayed_to}", markup=False)
    if row.left_records:
        console.print(f"Parsed again: {len(row.left_records):,} of the records did not fit, and are left here")
    for place, (number, data) in enumerate(chosen):
        text = data if reader is None else reader.shown(data)
        typer.echo(f"{number}: {as_text(text, most=None if everything else SHOWN_BYTES)}")
        if is_typed:
            typer.echo(f"   {_verdict(row, number, found[place])}")
        elif (why := found[place]) is not None:
            typer.echo(f"   {escaped(why)}")


def _verdict(row: DeadLetterRow, number: int, why: str | None) -> str:
    if row.left_records is not None and number not in row.left_records:
        return "it is in a block"
    return "it fits by now: forebay dead-letters replay stores it" if why is None else escaped(why)


def _receiver(name: str | None) -> tuple[str | None, int | None]:
    if name is None:
        return None, None
    stream, _, ordinal = name.partition("/")
    if ordinal and not ordinal.isdecimal():
        raise typer.BadParameter(f"{name!r}: give STREAM or STREAM/N, such as lines/1", param_hint="STREAM[/N]")
    return stream, int(ordinal) if ordinal else None


def _show_sums(console: Console, sums: Sequence[DeadLetterSums]) -> None:
    cells = [
        (
            f"{one.stream}/{one.ordinal}{' (removed)' if one.removed else ''}",
            one.reason,
            f"{one.letters:,}",
            f"{one.bytes:,}",
            f"{one.dropped:,}",
            f"{one.newest_at:%m-%d %H:%M}",
            str(one.newest_id),
        )
        for one in sums
    ]
    print_table(console, ("receiver", "reason", "records", "bytes", "dropped", "newest", "id"), cells)
    if sums:
        console.print("To see records: forebay dead-letters show ID")


def _show_rows(console: Console, rows: Sequence[DeadLetterRow]) -> None:
    cells = [
        (
            str(row.id),
            f"{row.stream}/{row.ordinal}",
            row.reason,
            f"{row.letters:,}",
            f"{row.bytes:,}",
            f"{row.added_at:%m-%d %H:%M:%S}",
        )
        for row in rows
    ]
    print_table(console, ("id", "receiver", "reason", "records", "bytes", "recorded"), cells)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}
