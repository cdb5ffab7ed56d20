"""`forebay send URL`: send lines to a channel of a stream, each once, with a spool that a kill does not lose.

It reads lines, counts them, and says how far it is; `forebay.client` does the rest. It needs no driver log.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path  # noqa: TC003  Typer reads it
from typing import TYPE_CHECKING, Annotated, BinaryIO
from urllib.parse import urlsplit

import typer

from forebay.cli.terminal.failures import CommandError, clear_errors
from forebay.client import FlushTimeoutError, InputOpenError, RecordRefusedError, Sender, SendError, SenderStatus
from forebay.client.framing import JsonLines
from forebay.client.meeting import OnMismatch  # noqa: TC001  Typer reads it

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
        bool,
        typer.Option(
            "--resume", help="Continue the last input: skip as many of its lines as the spool has taken from it."
        ),
    ] = False,
    new_input: Annotated[  # noqa: FBT002
        bool, typer.Option("--new-input", help="Take another input, even if the last one was not read to its end.")
    ] = False,
    complete: Annotated[  # noqa: FBT002
        bool, typer.Option("--complete", help="Take a last line without a line break, whatever it holds.")
    ] = False,
    on_mismatch: Annotated[
        OnMismatch,
        typer.Option(
            metavar="CHOICE",
            help="If spool and channel do not fit together: error, resend what the spool holds, or discard what may "
            "have been sent.",
        ),
    ] = "error",
    timeout: Annotated[
        float | None,
        typer.Option(min=0, metavar="SECONDS", help="How long to wait at the end until all is registered. [for ever]"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output, at the end.")] = False,  # noqa: FBT002
) -> None:
    """Send lines of JSON to an HTTP source, each once, whatever is killed in between.

    A line is first in the spool, a folder on this host, and stays there until the receiver has registered it. Without
    a receiver the spool grows, up to 1 GiB; the next `forebay send` with the same spool and channel goes on sending
    what the spool holds. Blank lines are left out. A line that does not begin as JSON does is named and left out;
    one that is no JSON all the same, or does not fit a typed stream, becomes a dead letter at the receiver. Both make
    the exit code 1.

    If it was killed, run the same command with --resume and the same input from its first line: it skips the lines
    that the spool has taken. Without --resume an input is taken from its first line; this is refused while the last
    input was not read to its end. A last line without a line break may be half written: it is taken if it is a whole
    JSON value, or with --complete. Otherwise it is named and left out, and the exit code is 1.

    A token for the source is in the variable FOREBAY_SEND_TOKEN.

    For example:

        forebay send http://host:8080/v1/s --channel c7 --spool sent --from a.jsonl
        forebay send http://host:8080/v1/s --channel c7 --spool sent --resume
        forebay send http://host:8080/v1/s --channel w1 --spool sent --field line
    """
    with clear_errors(), ExitStack() as stack:
        try:
            file = sys.stdin.buffer if source is None else stack.enter_context(source.open("rb"))
            sender = stack.enter_context(
                Sender(url, channel=channel, spool=spool, token=os.environ.get(_TOKEN) or None, on_mismatch=on_mismatch)
            )
            before = sender.status()
            lines = _Lines(sender, field, before, to_pass=sender.begin_input(resume=resume, abandon=new_input))
            _send_all(sender, lines, file, timeout, complete=complete)
        except InputOpenError as error:
            raise CommandError(f"{error}: add --resume to continue it, or --new-input to take another one") from error
        except (SendError, ValueError, OSError) as error:
            raise CommandError(str(error)) from error
    if as_json:
        typer.echo(json.dumps(_counts(sender, lines)))
    else:
        _say(sender, before)
    if _report_faults(sender, url, spool, before) or lines.left_out or lines.held_back:
        raise typer.Exit(1)


def _counts(sender: Sender, lines: _Lines) -> dict[str, object]:
    """Return the counts of this run; those of all runs are named `spool_`."""
    status, before = sender.status(), lines.before
    return {
        "channel": status.channel,
        "taken": status.taken - before.taken,
        "registered": max(0, status.registered - before.taken),
        "passed": lines.passed,
        "left_out": lines.left_out,
        "refused": max(0, status.refused - before.refused),
        "dead_letters": status.dead_letters,
        "waiting": status.waiting,
        "spool_taken": status.taken,
        "spool_registered": status.registered,
        "spool_refused": status.refused,
        "spool_bytes": status.spool_bytes,
        "last_error": status.last_error,
    }


def _report_faults(sender: Sender, url: str, spool: Path, before: SenderStatus) -> bool:
    """Say what became of records that are not in the stream, and return whether there are any of this run."""
    status = sender.status()
    if status.refused:
        typer.echo(f"{status.refused} lines were refused by the receiver: see {spool}/refused.jsonl", err=True)
    if status.dead_letters:
        stream = urlsplit(url).path.rstrip("/").rpartition("/")[2]
        where = f"forebay dead-letters list {stream}".rstrip()
        typer.echo(f"{status.dead_letters} lines became dead letters: {where}", err=True)
    return status.refused > before.refused or status.dead_letters > 0


def _send_all(sender: Sender, lines: _Lines, file: BinaryIO, timeout: float | None, *, complete: bool) -> None:
    try:
        lines.read(file, complete=complete)
        if lines.passed:
            typer.echo(f"{lines.passed:,} lines skipped", err=True)
        _wait_registered(sender, lines.before, timeout)
        # Not before: a command that is killed while it waits is often run again as it was.
        if not lines.held_back:
            sender.end_input()
    except KeyboardInterrupt:
        _say(sender, lines.before)
        typer.echo("Interrupted: the rest stays in the spool; go on with --resume.", err=True)
        raise


class _Lines:
    """Take lines into a sender's spool, and count them."""

    def __init__(self, sender: Sender, field: str | None, before: SenderStatus, *, to_pass: int) -> None:
        self._sender = sender
        self._field = field
        #: The sender's counts before this run.
        self.before = before
        self._to_pass = to_pass
        self._taken_before = to_pass
        self._number = 0
        self._said_at = time.monotonic()
        #: Lines that the spool had taken before; lines that can't be sent.
        self.passed = 0
        self.left_out = 0
        #: Whether the last line may be half written.
        self.held_back = False

    def read(self, file: BinaryIO, *, complete: bool) -> None:
        """Take all lines of a file, as they come; a last one without a line break only if it is whole."""
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
                _say(self._sender, self.before)
        if complete or not rest.strip(_BLANKS) or (self._field is None and _is_whole(rest)):
            self._take([rest])
        else:
            self.held_back = True
            typer.echo(
                f"line {self._number + 1} is left out: the input ends within it, without a line break: continue the "
                "input with --resume, and with --complete if the line is whole",
                err=True,
            )
        if self._to_pass:
            raise CommandError(
                f"the input has {self.passed} lines that can be sent, and the spool has taken {self._taken_before} "
                "from the last input: give the same input from its first line, or --new-input without --resume"
            )

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


def _is_whole(line: bytes) -> bool:
    """Return whether a line is a JSON value to which nothing can be added: a number could have further digits."""
    try:
        return not isinstance(json.loads(line), int | float) or line.strip(_BLANKS) in {b"true", b"false"}
    except (ValueError, RecursionError):
        return False


def _wrapped(field: str, line: bytes) -> bytes:
    try:
        text = line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise RecordRefusedError(f"it is no UTF-8 at byte {error.start}") from error
    return json.dumps({field: text}, ensure_ascii=False).encode()


def _wait_registered(sender: Sender, before: SenderStatus, timeout: float | None) -> None:
    """Wait until all is registered, and say how far it is meanwhile."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SAY_SECONDS if deadline is None else min(_SAY_SECONDS, max(0.0, deadline - time.monotonic()))
        try:
            sender.flush(left)
        except FlushTimeoutError as error:
            if deadline is not None and time.monotonic() >= deadline:
                status = sender.status()
                raise FlushTimeoutError(
                    f"{status.waiting} records of channel {status.channel} are not registered after {timeout:g} s: "
                    f"{status.last_error or 'there is no answer yet'}: they stay in the spool, and are sent when you "
                    "run it again with --resume"
                ) from error
            _say(sender, before)
        else:
            return


def _say(sender: Sender, before: SenderStatus) -> None:
    status = sender.status()
    again = f" ({status.last_error})" if status.last_error and status.waiting else ""
    taken, registered = status.taken - before.taken, max(0, status.registered - before.taken)
    earlier = f", {before.taken:,} by earlier runs" if before.taken else ""
    typer.echo(f"{taken:,} lines taken{earlier}, {registered:,} registered{again}", err=True)
