"""`forebay send URL`: send lines to a channel of a stream, each once, with a spool that a kill does not lose.

It reads lines, counts them, and says how far it is; `forebay.client` does the rest. It needs no driver log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  Typer reads it
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from forebay.cli.terminal.failures import CommandError, clear_errors
from forebay.client import FlushTimeoutError, RecordRefusedError, Sender, SendError
from forebay.client.framing import JsonLines

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_BYTES = 2**18
_MOST_LINE_BYTES = 2**24
_SAY_SECONDS = 2.0
_TOKEN = "FOREBAY_SEND_TOKEN"  # noqa: S105  the name of a variable
_BLANKS = b" \t\r\n"


def send(
    url: Annotated[str, typer.Argument(metavar="URL", help="The stream's URL, as http://host:8080/v1/orders.")],
    channel: Annotated[
        str, typer.Option(metavar="NAME", help="The channel: a name that no other sender of the stream has.")
    ],
    spool: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where lines are until they are registered; for this channel alone.")
    ],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="Read this file in place of standard input.")
    ] = None,
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME", help='Send each line of text as an object, {"NAME": "the line"}.'),
    ] = None,
    resume: Annotated[  # noqa: FBT002
        bool, typer.Option("--resume", help="Pass over as many lines as the last run took: the input is the same.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait at the end until all is registered. [for ever]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output, at the end.")] = False,  # noqa: FBT002
) -> None:
    """Send lines of JSON to an HTTP source, each once, whatever is killed in between.

    A line is first in the spool, a folder on this host, and stays there until the receiver has registered it. Without
    a receiver the spool grows, up to 1 GiB; the next `forebay send` with the same spool and channel goes on. Blank
    lines are passed over. A line that is no JSON is named, left out, and makes the exit code 1.

    If it was killed, run the same command with --resume: it passes over the lines that the spool has taken since the
    last run without --resume. A token for the source is in the variable FOREBAY_SEND_TOKEN.

    For example:

        forebay send http://host:8080/v1/s --channel c7 --spool sent --from a.jsonl
        forebay send http://host:8080/v1/s --channel c7 --spool sent --resume
        forebay send http://host:8080/v1/s --channel w1 --spool sent --field line
    """
    with clear_errors(), ExitStack() as stack:
        try:
            file = sys.stdin.buffer if source is None else stack.enter_context(source.open("rb"))
            sender = stack.enter_context(
                Sender(url, channel=channel, spool=spool, token=os.environ.get(_TOKEN) or None)
            )
            if not resume:
                sender.begin_input()
            lines = _Lines(sender, field, to_pass=sender.status().input_taken if resume else 0)
            _send_all(sender, lines, file, timeout)
        except FlushTimeoutError as error:
            raise CommandError(f"{error} when you run it again") from error
        except (SendError, ValueError, OSError) as error:
            raise CommandError(str(error)) from error
    status = sender.status()
    if as_json:
        typer.echo(json.dumps({**asdict(status), "passed": lines.passed, "left_out": lines.left_out}))
    else:
        _say(sender)
    if status.refused:
        typer.echo(f"{status.refused} lines were refused by the receiver: see {spool}/refused.jsonl", err=True)
    if lines.left_out or status.refused:
        raise typer.Exit(1)


def _send_all(sender: Sender, lines: _Lines, file: BinaryIO, timeout: float | None) -> None:
    try:
        lines.read(file)
        _wait_registered(sender, timeout)
    except KeyboardInterrupt:
        _say(sender)
        typer.echo("Interrupted: the rest stays in the spool; go on with --resume.", err=True)
        raise


class _Lines:
    """Take lines into a sender's spool, and count them."""

    def __init__(self, sender: Sender, field: str | None, *, to_pass: int) -> None:
        self._sender = sender
        self._field = field
        self._to_pass = to_pass
        self._number = 0
        self._said_at = time.monotonic()
        #: Lines that the spool had taken before; lines that can't be sent.
        self.passed = 0
        self.left_out = 0

    def read(self, file: BinaryIO) -> None:
        """Take all lines of a file, as they come."""
        rest = b""
        while data := file.read1(_READ_BYTES):  # type: ignore[attr-defined]
            *lines, rest = (rest + data).split(b"\n")
            if len(rest) > _MOST_LINE_BYTES:
                raise CommandError(
                    f"line {self._number + len(lines) + 1} has more than {_MOST_LINE_BYTES} bytes: is it lines?"
                )
            self._take(lines)
            if time.monotonic() - self._said_at > _SAY_SECONDS:
                self._said_at = time.monotonic()
                _say(self._sender)
        self._take([rest])

    def _take(self, lines: list[bytes]) -> None:
        records = list(self._records(lines))
        if self._to_pass:
            passed = min(self._to_pass, len(records))
            self._to_pass -= passed
            self.passed += passed
            records = records[passed:]
        self._sender.send_many(records)

    def _records(self, lines: list[bytes]) -> Iterator[bytes]:
        """Return the records of lines, always the same ones: `--resume` counts them."""
        for line in lines:
            self._number += 1
            if not line.strip(_BLANKS):
                continue
            try:
                record = line if self._field is None else _wrapped(self._field, line)
                JsonLines.check(record)
            except RecordRefusedError as error:
                self.left_out += 1
                typer.echo(f"line {self._number} is left out: {error}", err=True)
                continue
            yield record


def _wrapped(field: str, line: bytes) -> bytes:
    try:
        text = line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise RecordRefusedError(f"it is no UTF-8 at byte {error.start}") from error
    return json.dumps({field: text}, ensure_ascii=False).encode()


def _wait_registered(sender: Sender, timeout: float | None) -> None:
    """Wait until all is registered, and say how far it is meanwhile."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SAY_SECONDS if deadline is None else min(_SAY_SECONDS, max(0.0, deadline - time.monotonic()))
        try:
            sender.flush(left)
        except FlushTimeoutError:
            if deadline is not None and time.monotonic() >= deadline:
                raise
            _say(sender)
        else:
            return


def _say(sender: Sender) -> None:
    status = sender.status()
    again = f" ({status.last_error})" if status.last_error and status.waiting else ""
    typer.echo(f"{status.taken:,} lines taken, {status.registered:,} registered{again}", err=True)
