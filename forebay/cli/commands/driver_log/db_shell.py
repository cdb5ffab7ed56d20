"""`forebay db url` and `forebay db shell`: where the driver log is, and a way to ask it in SQL.

The shell is read-only unless it is asked to write, and has the rights of Forebay's services, not the owner's. A
password goes to psql in its environment, never in its arguments, which other accounts see.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance.database import database_url
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import clear_errors
from forebay.cli.terminal.tables import print_table
from orchestration.declarations.settings import Settings
from tracker_store.connection.log_address import address_of_log, libpq_url, password_of
from tracker_store.connection.person_session import StatementRefusedError, person_session, session_options
from tracker_store.connection.pooler import unpooled_url

if TYPE_CHECKING:
    from tracker_store.connection.person_session import PersonSession, Result

APPLICATION = "forebay db shell"


def url(
    with_password: Annotated[  # noqa: FBT002
        bool, typer.Option("--with-password", help="Print the password too, if the address has one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Print the address of the driver log, for psql and other programs: psql "$(forebay db url --with-password)".

    It has no password unless you ask for it: a terminal, a log or a shell's history may keep what is printed.
    `forebay db shell` connects without showing it.

    For example:

        forebay db url
        psql "$(forebay db url --with-password)"
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    with clear_errors(console):
        address = database_url(Settings())
    shown = libpq_url(address, with_password=with_password)
    left_out = not with_password and password_of(address) is not None
    if as_json:
        place = asdict(address_of_log(address))
        typer.echo(json.dumps({"url": shown, **place, "password_left_out": left_out}))
        return
    typer.echo(shown)
    if left_out and sys.stderr.isatty():
        console.print("Its password is left out: --with-password, or forebay db shell.")


def shell(
    command: Annotated[
        str | None, typer.Option("--command", "-c", help="Run these statements, print their rows, and end.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Allow statements that change something.")] = False,  # noqa: FBT002
    as_json: Annotated[  # noqa: FBT002
        bool, typer.Option("--json", help="With --command: one JSON object on standard output.")
    ] = False,
) -> None:
    """Ask the driver log in SQL: with psql if it is installed, else at a small prompt that prints tables.

    The views of docs/reference/schema.md need no prefix: SELECT * FROM pipeline_status; Nothing can be changed without
    --write, and with it only what Forebay's services may change.

    For example:

        forebay db shell
        forebay db shell -c "SELECT * FROM pipeline_status" --json
    """
    if as_json and command is None:
        raise typer.BadParameter("--json needs --command")
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with clear_errors(console):
        address = unpooled_url(database_url(Settings()), "a shell")
        psql = None if command is not None else shutil.which("psql")
        if psql is not None:
            raise typer.Exit(_exit_code(_run_psql(psql, address, write=write)))
        with person_session(address, application_name=APPLICATION, write=write) as session:
            if command is None:
                _prompt(console, session, address)
                return
            result = session.run(command)
    if as_json:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        typer.echo(json.dumps({"rows": rows, "status": result.status}, default=str))
    else:
        _print(console, result)


def _exit_code(of_psql: int) -> int:
    """Return the code of docs/reference/exit-codes.md: psql's 2 means that it has no connection, not a wrong option."""
    if of_psql < 0:
        return 128 - of_psql
    return 1 if of_psql else 0


def _run_psql(psql: str, address: str, *, write: bool) -> int:
    """Run psql until a person ends it; return its own exit code, or minus the signal that ended it."""
    environment = {**os.environ, "PGOPTIONS": session_options(write=write), "PGAPPNAME": APPLICATION}
    password = password_of(address)
    if password is not None:
        environment["PGPASSWORD"] = password
    command = [psql, libpq_url(address, with_password=False)]
    # Ctrl-C cancels a statement in psql. It must not end this process, and psql with it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run(command, env=environment, check=False).returncode  # noqa: S603  found on PATH
    finally:
        signal.signal(signal.SIGINT, before)


def _prompt(console: Console, session: PersonSession, address: str) -> None:
    """Read statements until the end of the input, and print what each answers; a refused one does not end it."""
    console.print(f"{address_of_log(address)}. Statements end with ; and the prompt with \\q or Ctrl-D.", markup=False)
    text = ""
    while True:
        try:
            line = input("forebay=> " if not text else "forebay-> ")
        except EOFError:
            return
        except KeyboardInterrupt:
            text = ""
            console.print()
            continue
        if not text and line.strip() in ("\\q", "exit", "quit"):
            return
        text = f"{text}{line}\n" if text or line.strip() else ""
        if not text.rstrip().endswith(";"):
            continue
        try:
            _print(console, session.run(text))
        except StatementRefusedError as error:
            console.print(str(error), style="bold red", markup=False)
        text = ""


def _print(console: Console, result: Result) -> None:
    if result.columns:
        rows = [["" if value is None else str(value) for value in row] for row in result.rows]
        print_table(console, result.columns, rows, none="no rows")
    else:
        console.print(result.status, markup=False)
