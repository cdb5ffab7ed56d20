"""Ask a person before a command destroys something. Refuse without a terminal, unless `--yes` is given."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def confirm(question: str, *, yes: bool, err: bool = False) -> None:
    """Return if a person agrees, or `yes` is given; else exit with 1. Only a terminal's answer counts.

    `err`: ask on standard error, because standard output is for another program.
    """
    if yes:
        return
    if not is_terminal():
        typer.echo(f"{question} Nobody can be asked here, so nothing was changed: add --yes", err=True)
        raise typer.Exit(1)
    # Even then Click gives the end of its prompt to `input`, which writes it on standard output.
    with contextlib.redirect_stdout(sys.stderr) if err else contextlib.nullcontext():
        typer.confirm(question, abort=True, err=err)


def is_terminal() -> bool:
    """Return whether a person can answer on standard input."""
    return sys.stdin.isatty()
