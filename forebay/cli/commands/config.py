"""`forebay config`: show each setting of this environment, where its value comes from, and its default."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import pydantic
import typer
from pydantic_settings import SettingsError
from rich.padding import Padding
from rich.text import Text

from forebay.cli.reference_pages.setting_values import PREFIX, UNSET, Origin, as_rows, setting_values, unknown_variables
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import wrong_settings
from orchestration.declarations.project_file import ProjectFileError
from orchestration.declarations.settings import Settings
from tracker_store.close_names import close_name
from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.cli.reference_pages.setting_values import SettingValue


def _names(incomplete: str) -> list[str]:
    names = [name.upper() for name in Settings.model_fields]
    return [PREFIX + name for name in names if (PREFIX + name).startswith(incomplete.upper())]


def config(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SETTING]…",
            help="Only these, with what each one is for; FOREBAY_ may be left out.",
            autocompletion=_names,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Show each setting, its value, where the value comes from (environment, file, default), and its default.

    Secrets are masked. A process reads its settings from its own environment, so run this where that process starts:
    in the same shell, or unit file. The exit code is 1 if a value can't be used.

    For example:

        forebay config
        forebay config HISTORY_RETENTION
        forebay config --json | jq '.settings[] | select(.from != "default")'
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    try:
        settings = Settings()
    except pydantic.ValidationError as error:
        for name, why in wrong_settings(error):
            console.print(f"{name}: {why}. Correct or unset it.", style="bold red", markup=False)
        raise typer.Exit(1) from error
    except SettingsError as error:
        # The only setting that is JSON.
        console.print(
            f"{PREFIX}SPARK_CONFIGURATION can't be read: write JSON, as "
            """'{"spark.executor.memory": "4g"}', or unset it.""",
            style="bold red",
            markup=False,
        )
        raise typer.Exit(1) from error
    try:
        values = _chosen(setting_values(settings, os.environ), names or ())
    except ProjectFileError as error:
        console.print(str(error), style="bold red", markup=False)
        raise typer.Exit(1) from error
    unknown = unknown_variables(os.environ)
    if as_json:
        typer.echo(json.dumps({"settings": as_rows(values), "unknown": [asdict(one) for one in unknown]}))
        return
    for value in values:
        _show(console, value, with_description=bool(names))
    for one in unknown:
        console.print(
            f"{one.variable} is in the environment and is no setting: is {one.meant} meant?",
            style="yellow",
            markup=False,
        )


def _chosen(values: Sequence[SettingValue], names: Sequence[str]) -> Sequence[SettingValue]:
    if not names:
        return values
    by_name = {value.variable: value for value in values}
    asked = [name.upper() if name.upper().startswith(PREFIX) else PREFIX + name.upper() for name in names]
    for name in asked:
        if name not in by_name:
            # Without what all of them begin with, by which nearly all are alike.
            meant = close_name(name.removeprefix(PREFIX), [known.removeprefix(PREFIX) for known in by_name])
            hint = f"did you mean {PREFIX}{meant}?" if meant else "forebay config lists them"
            raise typer.BadParameter(f"there is no setting {name}: {hint}", param_hint="SETTING")
    return [by_name[name] for name in asked]


def _show(console: Console, value: SettingValue, *, with_description: bool) -> None:
    origin = {
        Origin.ENVIRONMENT: f"environment; default {value.default}",
        Origin.FILE: f"file {value.where}; default {value.default}",
        Origin.DEFAULT: "default",
    }[value.origin]
    style = "" if value.origin is Origin.DEFAULT else "bold"
    assigned = f": {UNSET}" if value.value == UNSET else f"={value.value}"
    console.print(f"{value.variable}{assigned}  ({origin})", style=style, markup=False)
    if with_description:
        console.print(Padding(Text(escaped(value.description)), (0, 0, 0, 2)), soft_wrap=False)
