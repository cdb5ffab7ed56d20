"""Fuzz the arguments of commands: an exit code and a sentence, never a stack trace. No service is running."""

from __future__ import annotations

import os

from typer.testing import CliRunner

from forebay.cli.main import app
from tests.fuzz.target import fuzzed

# Those that start no process and import no module of a user.
_COMMANDS = ("agents", "batches", "blocks", "events", "pipelines", "readers", "receivers", "sources", "status")
_WITHOUT_SERVICES = {"FOREBAY_HOME": "/nonexistent/forebay", "FOREBAY_DATABASE_URL": None, "NO_COLOR": "1"}


@fuzzed(
    "arguments",
    valid=[
        b"status\n--json",
        b"sources\n--json",
        b"events\n--receiver\n1\n--limit\n5",
        b"batches\nlist\nflights\n--limit\n3",
        b"batches\nshow\nflights\n2026-01-31T12:00:00Z",
        b"blocks\nlist\n--receiver\n1",
        b"readers\nlist",
        b"receivers\nlist\n--json",
        b"pipelines\nlist",
        b"agents\nlist",
    ],
    words=[
        b"\n--",
        b"\n--help",
        b"\n-1",
        b"\n--json",
        b"=",
        b"\n[bold]",
        b"\n\x1b[31m",
        b"\n1e999",
        b"\n2026-02-30",
        b"\n../..",
    ],
    attacks=[b"events\n--limit\n" + b"9" * 5000, b"batches\nshow\n\xed\xa0\x80\n\xff"],
    examples=25,
    steps=3_000_000,
)
def test_any_arguments_give_an_exit_code_and_a_sentence(data: bytes) -> None:
    arguments = [os.fsdecode(one) for one in data.replace(b"\0", b"").split(b"\n")]
    if arguments[0] not in _COMMANDS:
        return
    done = CliRunner().invoke(app, arguments, env=_WITHOUT_SERVICES)
    assert done.exception is None or isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in {0, 1, 2}
    assert done.exit_code == 0 or done.output.strip()
    assert "Traceback" not in done.output
