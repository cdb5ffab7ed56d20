r"""`forebay dead-letters replay`: have dead letters parsed again, send them to their source's parser, or save them.

The receiver of a typed stream parses what did not fit again, when it starts (``letter_replay``). Else, only a source of
text that listens can be sent to: all else about a record (its path, key, topic, headers) is not in its dead letter. A
row is marked before its bytes leave, so a row that was sent, or may have been, is not sent a second time unless that is
asked for. It never stores a record itself, and corrects nothing.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forebay.cli.commands.records.letters_parsed_again import LettersToParse, RefusedRows, parse_again
from forebay.cli.commands.records.stored_letters import (
    APPLICATION,
    SHOWN_BYTES,
    as_text,
    find_letters,
    letter_reader,
)
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import LETTER_BYTES
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.loopback import is_written_as_loopback
from receiver_runtime.sources.fields.tcp import address_of, parse_listen
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source
from tracker_store.blocks.dead_letters import mark_replayed, restore_replayed
from tracker_store.receivers.receivers import NoSuchReceiverError, get_receiver, process_of_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import sqlalchemy as sa

    from receiver_runtime.sources.source import Source
    from tracker_store.blocks.dead_letters import DeadLetterRow

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0  # how long the receiver may take to read: back-pressure can hold it
_STDOUT = "-"
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  a receiver's, not ours
#: Reasons with which a whole record was put aside.
_WHOLE = frozenset(
    reason.label
    for reason in (
        DeadLetterReason.DOES_NOT_FIT,
        DeadLetterReason.INVALID_ENCODING,
        DeadLetterReason.INVALID_TEXT,
        DeadLetterReason.UNPARSABLE,
    )
)


@dataclass(frozen=True, slots=True)
class _Letters:
    """Hold a row, records of it by their numbers, and the bytes that follow each where it is sent or written."""

    row: DeadLetterRow
    records: Mapping[int, bytes]
    terminator: bytes

    @property
    def data(self) -> bytes:
        return b"".join(record + self.terminator for record in self.records.values())


def replay(
    dead_letter_ids: Annotated[list[int], typer.Argument(metavar="ID...", help="The rows' ids, as `list -n` shows.")],
    to: Annotated[
        str, typer.Option(metavar="FILE", help="Write the records to this new file, or with - to standard output.")
    ] = "",
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Send to this address, not to the one that the source declares.")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Also rows that were replayed before.")] = False,  # noqa: FBT002
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and where to.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Send dead letters in again, after the cause was fixed, or write them to a file.

    Records that did not fit a typed stream are parsed again by its receiver, which is restarted for that. Those that
    fit by now are stored, each once; the others stay in their row. Columns that the source has beside the record are
    null. Every other record goes to the receiver of its stream, as it was received, and through its own parser: one
    that is still bad becomes a new dead letter. That works for SocketText that listens without TLS. Of every other
    source, a dead letter lacks what came with the record: write it with --to, correct it, and send it as any other
    record. Each record in the file ends as one of its stream does; a part of a too long record is written as it is.

    A row that can't be replayed is named, and keeps no other back; the command ends with 1 then.

    No row is sent twice: it is marked first, and refused the next time, unless you add --again. If the connection
    breaks meanwhile, it is unknown what was received, and the row stays marked.

    For example:

        forebay dead-letters replay 17 --dry-run
        forebay dead-letters replay 17 18
        forebay dead-letters replay 19 --to letters.ndjson
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    if to and address:
        message = "give --to or --address, not both"
        raise typer.BadParameter(message)
    if to == _STDOUT and as_json:
        message = "--json and --to - both write to standard output"
        raise typer.BadParameter(message)
    refused = RefusedRows(console)
    with driver_log(console, application_name=APPLICATION) as connection:
        parsed: list[LettersToParse] = []
        planned: list[tuple[_Letters, str]] = []
        for one in dict.fromkeys(dead_letter_ids):
            with refused.row(one):
                found = _found(connection, one, to=to, address=address, again=again)
                if isinstance(found, LettersToParse):
                    parsed.append(found)
                else:
                    planned.append(found)
        with _opened(to if planned and not dry_run else "") as file:
            done = [_replayed(connection, console, *one, file=file, again=again, dry_run=dry_run) for one in planned]
        done += parse_again(connection, console, parsed, refused, again=again, dry_run=dry_run) if parsed else []
    if as_json:
        typer.echo(json.dumps({"dead_letters": done, "refused": refused.listed(), "dry_run": dry_run}))
    if refused.whys:
        raise typer.Exit(1)


def _found(
    connection: sa.Connection, dead_letter_id: int, *, to: str, address: str, again: bool
) -> LettersToParse | tuple[_Letters, str]:
    """Return a row to be parsed again, or what goes elsewhere, and where. Raises CommandError."""
    row, records = find_letters(connection, dead_letter_id)
    found: LettersToParse | tuple[_Letters, str]
    reader = None if to or address or _is_cut(row, records) else letter_reader(connection, row)
    if reader is None or reader.records is None:
        _refuse_wanted(row)
        found = _planned(connection, row, records, to=to, address=address)
    else:
        found = LettersToParse.of(row, records, reader)
    if not again:
        _refuse_replayed(row)
    return found


def _refuse_replayed(row: DeadLetterRow) -> None:
    if row.replayed_at is not None:
        message = (
            f"Dead letter {row.id} was replayed at {row.replayed_at:%Y-%m-%d %H:%M:%S} UTC, to {row.replayed_to}: "
            "--again does it once more"
        )
        raise CommandError(message)


def _refuse_wanted(row: DeadLetterRow) -> None:
    if row.replay_wanted:
        message = (
            f"Dead letter {row.id} waits for its receiver {row.stream}/{row.ordinal}, which parses it again when it "
            "starts: `forebay events` says what keeps it. Start it, and replay what is left then"
        )
        raise CommandError(message)


def _planned(
    connection: sa.Connection, row: DeadLetterRow, records: Sequence[bytes], *, to: str, address: str
) -> tuple[_Letters, str]:
    """Return what goes, and the address or file where it goes. Raises CommandError."""
    if not records:
        message = f"Dead letter {row.id} has no records: {row.dropped:,} were counted, and not kept"
        raise CommandError(message)
    source = _source(connection, row)
    terminator = source.delimiter_bytes if isinstance(source, SocketText) else b"\n"
    is_whole = row.reason in _WHOLE and not _is_cut(row, records)
    # The others are in a block. All are, where none is left: then --again asks for all.
    numbers = row.left_records or range(1, len(records) + 1)
    letters = _Letters(row, {one: records[one - 1] for one in numbers}, terminator if is_whole else b"")
    if to:
        return letters, "standard output" if to == _STDOUT else to
    instead = f"write it with --to FILE, correct it, and send it to {row.stream} as any other record"
    if not is_whole:
        message = f"Dead letter {row.id} is {row.reason}, so it is no whole record: {instead}"
        if row.reason in _WHOLE:
            message = f"Dead letter {row.id} is the first {row.bytes:,} bytes of a longer record: {instead}"
        raise CommandError(message)
    if not (isinstance(source, SocketText) and source.listen is not None and source.tls is None):
        message = f"Dead letter {row.id} is of {row.stream}, which is no SocketText that listens without TLS: {instead}"
        raise CommandError(message)
    return letters, address or _address(connection, row, source.listen)


def _is_cut(row: DeadLetterRow, records: Sequence[bytes]) -> bool:
    # `aside` in receiver_runtime/receivers/framing.py cuts them, and each has a row of its own.
    return len(records) == 1 and row.dropped_bytes > 0 and row.bytes >= LETTER_BYTES


def _source(connection: sa.Connection, row: DeadLetterRow) -> Source | None:
    """Return the source as it is declared now; None: the receiver was removed, or this version can't read it."""
    try:
        return parse_source(get_receiver(connection, row.receiver_id).source)
    except (NoSuchReceiverError, SourceError):
        return None


def _address(connection: sa.Connection, row: DeadLetterRow, listen: str) -> str:
    """Return where the receiver can be reached from here. Raises CommandError."""
    host, port = parse_listen(listen)
    name = f"{row.stream}/{row.ordinal}"
    process = process_of_receiver(connection, row.receiver_id)
    if process.host is None:
        message = f"{name} does not run: forebay receivers start {name}, or name another receiver by --address"
        raise CommandError(message)
    if not port:
        message = f"{name} listens on any free port: name it by --address"
        raise CommandError(message)
    is_here = process.host == socket.gethostname()
    if host in _WILDCARDS:
        host = _WILDCARDS[host] if is_here else process.host
    elif is_written_as_loopback(host) and not is_here:
        message = f"{name} listens on {listen} of host {process.host}: run this there, or name it by --address"
        raise CommandError(message)
    return address_of(host, port)


def _replayed(
    connection: sa.Connection,
    console: Console,
    letters: _Letters,
    where: str,
    *,
    file: BinaryIO | None,
    again: bool,
    dry_run: bool,
) -> dict[str, object]:
    """Send or write one row, and return what was done. Raises CommandError."""
    row, count = letters.row, f"{len(letters.records):,} record(s) of {letters.row.stream}"
    done: dict[str, object] = {
        "id": row.id,
        "stream": row.stream,
        "ordinal": row.ordinal,
        "reason": row.reason,
        "records": len(letters.records),
        "bytes": len(letters.data),
        "to": where,
    }
    if dry_run:
        console.print(f"Dead letter {row.id}: {count} would go to {where}:", markup=False)
        for number, record in letters.records.items():
            console.print(f"  {number}: {as_text(record, most=SHOWN_BYTES)}", markup=False)
        return done
    marked = mark_replayed(connection, row.id, to=where, again=again)
    if marked is None:
        message = f"Dead letter {row.id} is being replayed by another command, or was cleaned up"
        raise CommandError(message)
    try:
        peer = _connection(where) if file is None else None
    except (OSError, ValueError) as error:
        restore_replayed(connection, row, marked=marked)
        message = f"Dead letter {row.id} was not sent: {where}: {error}"
        raise CommandError(message) from error
    try:
        if peer is not None:
            _send(peer, letters.data)
        elif file is not None:
            file.write(letters.data)
            file.flush()
    except OSError as error:
        message = (
            f"Dead letter {row.id}: {where}: {error}. It is unknown which of its records arrived. Look at what came, "
            "and send it with --again if nothing did."
        )
        raise CommandError(message) from error
    console.print(f"Dead letter {row.id}: {count} went to {where}.", markup=False)
    return done


@contextmanager
def _opened(to: str) -> Iterator[BinaryIO | None]:
    """Open the new file that `to` names, or standard output; None without it. Raises CommandError."""
    if not to:
        yield None
    elif to == _STDOUT:
        yield sys.stdout.buffer
    else:
        try:
            descriptor = os.open(to, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            message = f"{to} can't be made: {error.strerror}. Nothing was written"
            raise CommandError(message) from error
        file = os.fdopen(descriptor, "wb")
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
        except OSError as error:
            message = (
                f"{to}: {error.strerror}. Some of the records may be missing in it: make room, delete it, and write "
                "them again with --again"
            )
            raise CommandError(message) from error
        finally:
            # What it could not write was told above.
            with suppress(OSError):
                file.close()


def _connection(address: str) -> socket.socket:
    host, port = parse_listen(address)
    return socket.create_connection((host, port), timeout=_CONNECT_SECONDS)


def _send(connection: socket.socket, data: bytes) -> None:
    """Send to a receiver, and wait until it has read all: it closes the connection after the last byte.

    Raises OSError; it is unknown then what was read.
    """
    with connection:
        connection.settimeout(_READ_SECONDS)
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass
