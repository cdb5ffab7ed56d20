"""`forebay apply`: shows what would change in the driver log, and writes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import clear_errors
from forebay.cli.terminal.tables import print_table
from orchestration.declarations.apply import Change, difference, target_steps
from orchestration.declarations.apply import apply as write
from orchestration.declarations.modules import load_pipelines
from orchestration.declarations.project_code import CodeCopies, ProjectReader
from orchestration.declarations.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence


def print_changes(console: Console, changes: Sequence[Change]) -> None:
    """Print the difference, with one line per changed key, and a sentence for each stream that nothing reads now."""
    rows = [[f"+ {change.kind}", change.name, "", "", "new"] for change in changes if change.action == "add"]
    signs = {"stop": "-"}
    rows += [
        [f"{signs.get(change.action, '~')} {change.kind}", change.name, key, shown_value(old), shown_value(new)]
        for change in changes
        for key, old, new in change.details
    ]
    print_table(console, ["", "name", "key", "driver log", "code"], rows, title="Declarations")
    added = [change.name for change in changes if (change.kind, change.action) == ("stream", "add")]
    for change in changes:
        if change.action == "stop":
            console.print(_stop_line(change.name, added), markup=False)


def _stop_line(stream: str, added: Sequence[str]) -> str:
    line = (
        f"{stream}: nothing reads it any more. Its receivers stop, so that senders are refused; what it has stored is "
        f"kept for its retention (`forebay streams`). If it is gone for good: `forebay streams remove {stream}`."
    )
    if added:
        line += f' If it is {" or ".join(added)} by another name, write Stream(…, renamed_from="{stream}") and apply.'
    return line


def shown_value(value: object) -> str:
    """Return a value of a declaration as people write it in their modules: a window, a list, text, a number."""
    match value:
        case None:
            return "-"
        case {"window": str(stream), "length_ms": int(length), "slide_ms": slide}:
            every = "" if slide is None else f', slide="{_seconds(slide)}"'
            return f'{stream}.window("{_seconds(length)}"{every})'
        case dict():
            return ", ".join(f"{key}: {shown_value(item)}" for key, item in value.items()) or "-"
        case list():
            return "\n".join(shown_value(item) for item in value) or "none"
        case _:
            return str(value)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g}s"


def _as_json(changes: Sequence[Change], steps: Sequence[str], *, written: bool) -> str:
    return json.dumps(
        {
            "written": written,
            "target_steps": list(steps),
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
    module: Annotated[
        str | None, typer.Argument(help="The module (or .py file); unless given, FOREBAY_MODULE or the project's.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, write nothing.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Write a module's streams and pipelines to the driver log, as versioned rows, and show what changes.

    Refuses a change that would leave blocks that no pipeline reads. Applying the same module again changes nothing.

    For example:

        forebay apply my_pipeline --dry-run
        forebay apply my_pipeline
    """
    settings = Settings()
    console = Console(highlight=False, stderr=as_json)
    with clear_errors(console):
        name = module or settings.require_module()
        # Before it is loaded: where the files change meanwhile, a `forebay up` beside this finds another version.
        version = ProjectReader(name).read().version
        pipelines = load_pipelines(name)
    with driver_log(console, application_name="forebay apply") as connection:
        steps = target_steps(connection, pipelines)
        changes = difference(connection, pipelines) if dry_run else write(connection, pipelines)
    if not dry_run:
        CodeCopies(settings.home).apply(version)
    if as_json:
        typer.echo(_as_json(changes, steps, written=not dry_run))
        return
    if not changes:
        console.print("Nothing to apply: code and driver log agree.")
        return
    print_changes(console, changes)
    for step in steps:
        console.print(step, markup=False)
    console.print("Nothing was written (--dry-run)." if dry_run else "Applied.")
