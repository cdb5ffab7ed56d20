"""`forebay blocks`: compare the block store with the driver log, repair it, adopt a root, print what is stored."""

from __future__ import annotations

import json
import socket
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path  # noqa: TC003  read by typer
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from forebay.cli.commands.records.record_lines import record_line
from forebay.cli.commands.records.stored_letters import read_letters
from forebay.cli.instance.database import driver_log
from forebay.cli.instance.names import receivers
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from orchestration.batches.attached_store import open_attached_store
from orchestration.block_checks.block_verification import BlockReport, repair_blocks, verify_blocks
from orchestration.declarations.settings import Settings
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import root_names
from receiver_runtime.block_store.stores.identity import identity_of, make_identity
from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of
from tracker_store.blocks.block_stores import list_block_stores
from tracker_store.blocks.newest_blocks import blocks_after
from tracker_store.blocks.stored_blocks import count_stored_blocks, find_stored_block
from tracker_store.host.terminal_text import escaped
from tracker_store.receivers.receivers import receivers_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import sqlalchemy as sa

    from receiver_runtime.block_store.stores.interface import BlockStore, Replica

APPLICATION = "forebay blocks"

app = typer.Typer(
    help="Stored blocks: list, verify, repair, print records, dead letters; adopt a block store.", no_args_is_help=True
)

_SHOWN = 20
_MOST_LISTED = 10_000
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@contextmanager
def _log_and_store(console: Console) -> Iterator[tuple[sa.Connection, BlockStore]]:
    """Open the driver log and its block store; `driver_log` reports a store that is not mounted."""
    with driver_log(console, application_name=APPLICATION) as connection:
        yield connection, open_attached_store(connection, Settings().block_store_roots)


def _verify(connection: sa.Connection, store: BlockStore, console: Console) -> BlockReport:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Reading blocks", total=count_stored_blocks(connection))
        keys = BlockKeys(Settings().block_key_references)
        return verify_blocks(connection, store, keys=keys, on_block=lambda: progress.advance(task))


def _show(console: Console, report: BlockReport) -> None:
    states = f", and {report.state_frames:,} frames of outputs' states" if report.state_frames else ""
    console.print(f"{report.blocks:,} blocks read, {report.bytes:,} bytes{states}")
    for title, names in (
        ("registered blocks that can't be read", [f"{lost.path}: {lost.problem}" for lost in report.lost]),
        (
            "frames of states that can't be read",
            [f"{lost.pipeline}.{lost.output}, {lost.path}: {lost.problem}" for lost in report.lost_states],
        ),
        ("files that no row names", report.orphans),
        ("segments whose file is missing", report.missing),
    ):
        if names:
            console.print(f"{len(names):,} {title}:", style="bold red")
            for name in names[:_SHOWN]:
                console.print(f"  {name}", markup=False)
            if len(names) > _SHOWN:
                console.print(f"  … and {len(names) - _SHOWN:,} more (--json shows all)")
    for key_id, blocks in sorted(report.keys.items()):
        console.print(f"{blocks:,} of them are encrypted with the key {key_id}")
        if key_id in report.keys_missing:
            console.print(f"  {report.keys_missing[key_id]}", style="bold red", markup=False)
    for replica in report.replicas:
        if replica.unreachable:
            console.print(
                f"replica {replica.name} can't be reached: {replica.unreachable}", style="bold red", markup=False
            )
        elif replica.lacking:
            blocks, segments = sum(replica.lacking.values()), len(replica.lacking)
            console.print(
                f"replica {replica.name} lacks {blocks:,} blocks in {segments:,} segments that another has",
                style="bold red",
                markup=False,
            )
        else:
            console.print(f"replica {replica.name} has everything that the others have", markup=False)


def _as_json(report: BlockReport) -> dict[str, object]:
    return {
        "intact": report.intact,
        "blocks": report.blocks,
        "bytes": report.bytes,
        "lost": [
            {"receiver_id": lost.receiver_id, "sequence": lost.sequence, "path": lost.path, "problem": lost.problem}
            for lost in report.lost
        ],
        "state_frames": report.state_frames,
        "lost_states": [
            {
                "pipeline": lost.pipeline,
                "output": lost.output,
                "batch_time": lost.batch_time.isoformat(),
                "path": lost.path,
                "problem": lost.problem,
            }
            for lost in report.lost_states
        ],
        "orphans": report.orphans,
        "missing": report.missing,
        "keys": report.keys,
        "keys_missing": report.keys_missing,
        "replicas": [
            {"name": replica.name, "lacking": replica.lacking, "unreachable": replica.unreachable}
            for replica in report.replicas
        ],
    }


@app.command("list")
def list_blocks(
    name: Annotated[
        str, typer.Argument(metavar="STREAM[/N]", help="Of this stream, or of this receiver.", autocompletion=receivers)
    ],
    newest: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=_MOST_LISTED, help="The newest N blocks.")
    ] = _SHOWN,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """List the newest blocks of a stream, oldest first: their receiver, number, records and size.

    JSON has their file too. `forebay blocks records` prints the records of one. A marker, with which each epoch of a
    receiver begins, is no block. Times are UTC, by the database's clock.

    For example:

        forebay blocks list orders
        forebay blocks list orders/1 -n 100 --json
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        places = {place.receiver_id: place for place in receivers_named(connection, name)}
        found = blocks_after(connection, dict.fromkeys(places, 0), each=newest, limit=newest, newest=True)
    listed = [
        (f"{places[block.receiver_id].stream_name}/{block.ordinal}", block, block.handle, block.path)
        for block in found
        if block.handle is not None and block.path is not None
    ]
    if as_json:
        rows = [
            {
                "receiver": receiver,
                "sequence": block.sequence,
                "added_at": block.added_at.isoformat(),
                "records": block.records,
                "segment": path,
                "offset": handle.offset,
                "length": handle.length,
            }
            for receiver, block, handle, path in listed
        ]
        typer.echo(json.dumps({"blocks": rows}))
        return
    cells = [
        (
            receiver,
            str(block.sequence),
            f"{block.added_at:%Y-%m-%d %H:%M:%S}",
            f"{block.records:,}",
            f"{handle.length:,}",
        )
        for receiver, block, handle, _ in listed
    ]
    print_table(console, ("receiver", "no.", "added", "records", "bytes"), cells)


@app.command()
def verify(as_json: AsJson = False) -> None:  # noqa: FBT002
    """Read every registered block and compare its checksum; find files that no row names. Changes nothing.

    Counts encrypted blocks by the key that encrypted them. The exit code is 1 if a block can't be read, or its key is
    missing here, if a segment's file is missing, a file has no row, or a replica lacks a block.

    For example:

        forebay blocks verify
        forebay blocks verify --json
    """
    console = Console(highlight=False, stderr=as_json)
    with _log_and_store(console) as (connection, store):
        report = _verify(connection, store, console)
    if as_json:
        typer.echo(json.dumps(_as_json(report)))
    else:
        _show(console, report)
        if report.intact:
            console.print("Every registered block is there and whole.", style="green")
    raise typer.Exit(0 if report.intact else 1)


@app.command()
def repair(as_json: AsJson = False) -> None:  # noqa: FBT002
    """Verify, then copy to replicas what they lack, move files that no row names aside, forget empty segments.

    Deletes no data. A registered block that no replica has can't be repaired: it is named, and its batch fails until
    the file is put back from a copy. The exit code is 1 while there is such a block, or a replica that could not be
    repaired.

    For example:

        forebay blocks repair
    """
    console = Console(highlight=False, stderr=as_json)
    with _log_and_store(console) as (connection, store):
        report = _verify(connection, store, console)
        done = repair_blocks(connection, store, report)
    if as_json:
        found = _as_json(report)
        did = {"moved": done.moved, "forgotten": done.forgotten, "copied": done.copied, "not_copied": done.not_copied}
        typer.echo(json.dumps({"found": found, **did}))
    else:
        _show(console, report)
        for path, aside in done.moved:
            console.print(f"moved aside: {path} -> {aside}", markup=False)
        for path in done.forgotten:
            console.print(f"forgotten: {path}", markup=False)
        for replica, path in done.copied:
            console.print(f"copied to {replica}: {path}", markup=False)
        for replica, path, why in done.not_copied:
            console.print(f"not copied to {replica}: {path}: {why}", style="bold red", markup=False)
    unreachable = any(replica.unreachable for replica in report.replicas)
    raise typer.Exit(1 if report.lost or report.lost_states or done.not_copied or unreachable else 0)


@app.command()
def adopt(
    root: Annotated[str, typer.Argument(help="One root, as FOREBAY_BLOCK_STORE names it.")],
    host: Annotated[
        str | None, typer.Option(help="The host that has the root, by its name in the driver log (default: this one).")
    ] = None,
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Declare that an empty directory, or prefix, is a block store itself, and not a mount point without its store.

    A root that the driver log knows continues as the same store, without its blocks: receivers that wait for it
    continue by themselves, and if it is a replica, `forebay blocks repair` fills it. Any other root becomes a new
    store, which the next agent that starts with it attaches. A root that is a store already is not changed.

    For example:

        forebay blocks adopt /mnt/blocks
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    names = root_names(root)
    if len(names) != 1:
        raise typer.BadParameter("give one root", param_hint="ROOT")
    [name] = names
    here = host or socket.gethostname()
    with driver_log(console, application_name=APPLICATION) as connection:
        by_host = {
            seen.host: identities for seen in list_block_stores(connection) if (identities := seen.identities_of(name))
        }
    try:
        [store] = replicas_of(open_block_store(root))
        identity, is_new = _adopt(store, by_host, here, yes=yes, ask_on_stderr=as_json)
    except (BlockStoreError, OSError) as error:
        console.print(str(error), style="bold red", markup=False)
        raise typer.Exit(1) from error
    if as_json:
        typer.echo(json.dumps({"root": store.name, "store": identity, "adopted": is_new}))
    console.print(f"{store.name} is the store {identity} {'now' if is_new else 'already'}.", markup=False)


def _adopt(
    store: Replica, by_host: Mapping[str, frozenset[str]], here: str, *, yes: bool, ask_on_stderr: bool
) -> tuple[str, bool]:
    """Adopt a root; return the id of its store, and whether this made it one. `by_host`: ids of stores by this name.

    Raises BlockStoreError.
    """
    found = identity_of(store)
    expected = sorted(by_host.get(here, ()))
    if found is not None:
        if not expected or found in expected:
            return found, False
        message = (
            f"{store.name} is another store, {found}, and {expected[0]} is expected there. If this one is right, stop "
            f"the agent of host {here}, `forebay agents forget {here}`, and start it again."
        )
        raise BlockStoreError(message)
    if not expected and by_host:
        hosts = ", ".join(sorted(by_host))
        message = (
            f"Host {here!r} has never had {store.name}, and host {hosts} has a store by this name: mount that, or name "
            "the host of this one by --host."
        )
        raise BlockStoreError(message)
    what = f"the store {expected[0]}, without its blocks" if expected else "a new store"
    confirm(f"{store.name} becomes {what}. Is everything mounted that should be?", yes=yes, err=ask_on_stderr)
    return make_identity(store, expected[0] if expected else None), True


@app.command()
def records(
    receiver: Annotated[
        str, typer.Argument(metavar="STREAM/N", help="The receiver that stored the block.", autocompletion=receivers)
    ],
    sequence: Annotated[int, typer.Argument(help="The block's number in the receiver's sequence.")],
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="At most this many records (default: all).")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Write to this file: Parquet if it ends in .parquet, else a line per record.")
    ] = None,
) -> None:
    """Print the records of one block, one JSON object per line.

    Binary values are printed as text, or as {"base64": …} if they are none.

    For example:

        forebay blocks records orders/1 4711 --limit 10
        forebay blocks records orders/1 4711 --to block.parquet
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    stream, _, ordinal = receiver.rpartition("/")
    if not stream or not ordinal.isdecimal():
        message = f"{receiver!r}: give the receiver as STREAM/N, such as lines/1 (`forebay receivers` lists them)"
        raise typer.BadParameter(message)
    with driver_log(console, application_name=APPLICATION) as connection:
        block = find_stored_block(connection, stream=stream, ordinal=int(ordinal), sequence=sequence)
        if block is None:
            receivers_named(connection, receiver)  # raises if there is no such receiver at all
        settings = Settings()
        keys = BlockKeys(settings.block_key_references)
        store = open_attached_store(connection, settings.block_store_roots, keys=keys)
    if block is None:
        console.print(f"Receiver {receiver} has no block {sequence}: it was cleaned up, or is an epoch's marker.")
        raise typer.Exit(1)
    handle = block.handle
    try:
        batches = list(store.read_batches(block.path, handle.offset, handle.length, handle.crc32c))
    except (BlockStoreError, OSError) as error:
        console.print(str(error), style="bold red", markup=False)
        raise typer.Exit(1) from error
    if to is not None and to.suffix == ".parquet":
        import pyarrow as pa  # noqa: PLC0415  only for Parquet
        import pyarrow.parquet as pq  # noqa: PLC0415  only for Parquet

        table = pa.Table.from_batches(batches)
        pq.write_table(table if limit is None else table.slice(0, limit), to)
        console.print(f"{to} is written.", markup=False)
        return
    lines = (record_line(row) for batch in batches for row in batch.to_pylist())
    if to is None:
        for line in islice(lines, limit):
            # JSON escapes only a part of the control characters; an escape is JSON again.
            typer.echo(escaped(line))
        return
    with to.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in islice(lines, limit))
    console.print(f"{to} is written.", markup=False)


@app.command()
def dead_letter(
    dead_letter_id: Annotated[int, typer.Argument(metavar="ID", help="The id of its row in forebay.dead_letters.")],
    to: Annotated[Path | None, typer.Option(help="Write to this file (default: standard output).")] = None,
    letter: Annotated[int | None, typer.Option(min=1, help="Only this one of a group, from 1.")] = None,
) -> None:
    """Print dead letters: raw bytes as they were received, of a record, of a part of it, or of a group of records.

    Of a group, each record is a line; --letter N prints the bytes of the Nth, and nothing else. On a terminal, control
    characters are shown as escapes.

    For example:

        forebay blocks dead-letter 17
        forebay blocks dead-letter 17 --letter 3 --to letter
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    _, letters = read_letters(console, dead_letter_id)
    if letter is not None and letter > len(letters):
        console.print(f"Dead letter {dead_letter_id} has {len(letters)} records, there is no {letter}.")
        raise typer.Exit(1)
    if letter is not None:
        content = letters[letter - 1]
    else:
        content = letters[0] if len(letters) == 1 else b"".join(one + b"\n" for one in letters)
    if to is None:
        typer.echo(_for_output(content), nl=False)
    else:
        to.write_bytes(content)
        console.print(f"{to} is written.", markup=False)


def _for_output(content: bytes) -> bytes | str:
    """Return the bytes, or for a terminal text without control characters, which it would obey."""
    if not sys.stdout.isatty():
        return content
    return escaped(content.decode(errors="backslashreplace"))
