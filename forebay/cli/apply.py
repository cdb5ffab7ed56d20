"""`forebay apply`: shows what would change in the driver log, and writes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from forebay.cli.console import Console
from forebay.cli.database import driver_log
from forebay.cli.failures import clear_errors
from orchestration.apply import Change, difference
from orchestration.apply import apply as write
from orchestration.modules import load_pipelines
from orchestration.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def changes_table(changes: Sequence[Change]) -> Table:
    """Return the difference as a table, with one line per changed key."""
    table = Table("", "name", "key", "driver log", "code", title="Declarations")
    for change in changes:
        if change.action == "add":
            table.add_row(f"+ {change.kind}", change.name, "", "", "new")
        for key, old, new in change.details:
            table.add_row(f"~ {change.kind}", change.name, key, str(old), str(new))
    return table


def _as_json(changes: Sequence[Change], *, written: bool) -> str:
    return json.dumps(
        {
            "written": written,
            "changes": [
                {
                    "kind": change.kind,
                    "name": change.name,
                    "action": change.action,
                    "details": [{"key": k, "driver_log": old, "code": new} for k, old, new in change.details],
                }
                for change in changes
            ],
        }
    )


def apply(
    module: Annotated[str | None, typer.Argument(help="The module (or .py file); FOREBAY_MODULE unless given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, write nothing.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Write a module's streams and pipelines to the driver log, as versioned rows, and show what changes.

    Refuses a change that would leave blocks that no pipeline reads. Applying the same module again changes nothing.
    """
    settings = Settings()
    console = Console(highlight=False, stderr=as_json)
    with clear_errors(console):
        pipelines = load_pipelines(module or settings.require_module())
    with driver_log(console, application_name="forebay apply") as connection:
        changes = difference(connection, pipelines) if dry_run else write(connection, pipelines)
    if as_json:
        typer.echo(_as_json(changes, written=not dry_run))
        return
    if not changes:
        console.print("Nothing to apply: code and driver log agree.")
        return
    console.print(changes_table(changes))
    console.print("Nothing was written (--dry-run)." if dry_run else "Applied.")
