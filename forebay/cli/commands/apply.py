"""`forebay apply`: shows what would change in the driver log, and writes it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.checks.code_change import in_driver_log
from forebay.cli.checks.unset_variables import unset_here
from forebay.cli.instance.database import driver_log
from forebay.cli.services.running_module import UNLESS_GIVEN, left_to_a_person, lost_here, named_module, runs_here
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import clear_errors
from forebay.cli.terminal.tables import print_table
from orchestration.declarations.apply import (
    SENDERS_PATH,
    Change,
    difference,
    refuse,
    rename_hints,
)
from orchestration.declarations.apply import apply as write
from orchestration.declarations.asked_targets import ask_targets
from orchestration.declarations.compatibility import declared
from orchestration.declarations.modules import load_pipelines
from orchestration.declarations.project_code import CodeCopies, ProjectReader
from orchestration.declarations.questions import Decided, mistyped_stops, undecided
from orchestration.declarations.settings import Settings
from tracker_store.connection.errors import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestration.declarations.asked_targets import TargetAnswers


def print_changes(console: Console, changes: Sequence[Change], *, asks: bool = False) -> None:
    """Print the difference, with one line per changed key, and sentences on senders who are refused from then on.

    asks: nothing is written, and what a stream that stops needs is not known before a person has answered.
    """
    rows = [[f"+ {change.kind}", change.name, "", "", "new"] for change in changes if change.action == "add"]
    signs = {"stop": "-"}
    rows += [
        [f"{signs.get(change.action, '~')} {change.kind}", change.name, key, shown_value(old), shown_value(new)]
        for change in changes
        for key, old, new in change.details
    ]
    print_table(console, ["", "name", "key", "driver log", "code"], rows, title="Declarations")
    for change in changes:
        for path, old, new in change.details:
            if path == SENDERS_PATH:
                console.print(
                    f"{change.name}: its senders must use {new}. {old} gets 404 as soon as its receivers start again.",
                    markup=False,
                )
        if change.action == "stop" and not asks:
            console.print(
                f"{change.name}: nothing reads it any more. Its receivers stop, so that senders are refused; what it "
                "has stored is kept for its retention (`forebay streams`). If it is gone for good: `forebay streams "
                f"remove {change.name}`.",
                markup=False,
            )


def held_targets(targets: TargetAnswers) -> str | None:
    """Return what to do before an apply after which batches would fail; None: nothing."""
    last = ["Then apply again, and start what you stopped."] if targets.refused else []
    return " ".join([*targets.refused, *last, *targets.held]) or None


def shown_value(value: object) -> str:
    """Return a value of a declaration as people write it in their modules: a window, a list, text, a number."""
    match value:
        case None:
            return "-"
        case {"window": str(stream), "length_ms": int(length), "slide_ms": slide, **more}:
            # A calendar's have texts of their own.
            size = more.get("length") or _seconds(length)
            pace = more.get("slide") or ("" if slide is None else _seconds(slide))
            every = f', slide="{pace}"' if pace else ""
            new = f', new_column="{more["new_column"]}"' if "new_column" in more else ""
            return f'{stream}.window("{size}"{every}{new})'
        case dict():
            return ", ".join(f"{key}: {shown_value(item)}" for key, item in value.items()) or "-"
        case list():
            return "\n".join(shown_value(item) for item in value) or "none"
        case _:
            return str(value)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g}s"


def _as_json(changes: Sequence[Change], steps: Sequence[str], effects: Sequence[str], *, written: bool) -> str:
    return json.dumps(
        {
            "written": written,
            "effects": list(effects),
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
    module: Annotated[str | None, typer.Argument(help=f"The module (or .py file); {UNLESS_GIVEN}.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the difference, write nothing.")] = False,  # noqa: FBT002
    stop: Annotated[
        list[str] | None, typer.Option(help="A stream that stops, and is not one of the new ones by another name.")
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(help="A new pipeline that may begin with records that a removed one wrote to the same place."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Write a module's streams and pipelines to the driver log, as versioned rows, and show what changes.

    Refuses a change that would leave blocks that no pipeline reads, and one that needs a step in a table while its
    pipeline runs. Asks before it stops one stream and begins another, which may be the same one renamed, and before a
    new pipeline writes kept records where a removed one has written them. Applying the same module again changes
    nothing.

    For example:

        forebay apply my_pipeline --dry-run
        forebay apply my_pipeline
    """
    settings = Settings()
    console = Console(highlight=False, stderr=as_json)
    with clear_errors(console):
        name = named_module(module, settings)
        # Before it is loaded: where the files change meanwhile, a `forebay up` beside this finds another version.
        version = ProjectReader(name).read().version
        pipelines = load_pipelines(name)
    copies = CodeCopies(settings.home)
    is_new_code = runs_here(name, settings) and copies.in_force() != copies.file_of(version)
    with driver_log(console, application_name="forebay apply") as connection:
        changes = difference(connection, pipelines)
        decided = Decided(stop or (), again or ())
        for line in (*rename_hints(connection, pipelines), *mistyped_stops(connection, changes, decided)):
            console.print(line, markup=False, soft_wrap=True)
        refuse(connection, pipelines)
        # Before a write what to do first, after it what is left to do.
        effects = (left_to_a_person if dry_run else lost_here)(connection, name, pipelines, settings)
        effects += unset_here(in_driver_log(connection), declared(pipelines))
        targets = ask_targets(connection, pipelines)
        unclear = undecided(connection, pipelines, changes, decided, f"forebay apply {name}") or held_targets(targets)
        if not (dry_run or unclear):
            changes = write(connection, pipelines)
    for line in targets.unasked:
        console.print(line, markup=False, soft_wrap=True)
    if unclear is not None:
        print_changes(console, changes, asks=True)
        console.print(f"Nothing was written. {unclear}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    if not dry_run:
        copies.apply(version)
    # Of pipelines that are stopped: those of others are a refusal.
    steps = [
        f"{step} Do it before `forebay start --pipeline {output.pipeline.name}`."
        for output, step in targets.steps.items()
    ]
    steps += targets.unlooked
    if as_json:
        typer.echo(_as_json(changes, steps, effects, written=not dry_run))
        return
    # Not before a refusal or a question, which may be about the same pipelines, and says another way out.
    for line in effects:
        console.print(sentence(line), markup=False, soft_wrap=True)
    if is_new_code:
        effect = "would take effect" if dry_run else "takes effect"
        console.print(f"Code {version} {effect} at the next batch: the running `forebay up` checks it first.")
    if changes:
        _print_written(console, changes, steps, dry_run=dry_run)
    else:
        what = "No declaration changed" if is_new_code else "Nothing to apply"
        console.print(f"{what}." if effects else f"{what}: code and driver log agree.")


def _print_written(console: Console, changes: Sequence[Change], steps: Sequence[str], *, dry_run: bool) -> None:
    print_changes(console, changes)
    for step in steps:
        console.print(step, markup=False, soft_wrap=True)
    console.print("Nothing was written (--dry-run)." if dry_run else "Applied.")
