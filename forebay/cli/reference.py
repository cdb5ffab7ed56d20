"""`forebay reference PAGE`: write a generated page of docs/reference as Markdown, from the commands and the settings.

A test compares the pages with what this prints. It needs no driver log, and reads no environment.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from forebay.cli.exit_codes import EXIT_CODES, FINDINGS
from forebay.cli.setting_values import OPTION_VARIABLES, PREFIX, UNSET, shown
from orchestration.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# Wider than any usage line, so that the page does not depend on the terminal.
_WIDTH = 10_000


class Page(StrEnum):
    """A generated page: its name in docs/reference."""

    CLI = "cli"
    SETTINGS = "settings"
    EXIT_CODES = "exit-codes"


def reference(page: Annotated[Page, typer.Argument(help="The page's name in docs/reference.")]) -> None:
    """Print a page of docs/reference: `forebay reference cli > docs/reference/cli.md`."""
    typer.echo(describe(page), nl=False)


def describe(page: Page) -> str:
    """Return the page as Markdown."""
    lines = {Page.CLI: _cli, Page.SETTINGS: _settings, Page.EXIT_CODES: _exit_codes}[page]()
    return "\n".join(lines) + "\n"


def _cli() -> Iterator[str]:
    from forebay.cli.main import app  # noqa: PLC0415  it imports this module

    yield "# The command line"
    yield ""
    yield "Every command of `forebay`, as `forebay COMMAND --help` shows it. Written by `forebay reference cli`."
    yield "[settings.md](settings.md) has the settings that commands read from the environment, and"
    yield "[exit-codes.md](exit-codes.md) what exit codes mean."
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    yield from _options(root, "forebay")
    context = root.make_context("forebay", [], resilient_parsing=True)
    for name in sorted(root.list_commands(context)):
        command = root.get_command(context, name)
        assert isinstance(command, TyperCommand | TyperGroup)
        if not command.hidden:
            yield from _command(command, f"forebay {name}", "##")


def _command(command: TyperCommand | TyperGroup, name: str, heading: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=_WIDTH, max_content_width=_WIDTH)
    yield ""
    yield f"{heading} {name}"
    yield ""
    yield f"`{command.get_usage(context).removeprefix('Usage: ')}`"
    yield ""
    yield from (line if line.startswith("    ") else _escaped(line) for line in _help(command).splitlines())
    yield from _options(command, name)
    if isinstance(command, TyperGroup):
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert isinstance(found, TyperCommand | TyperGroup)
            if not found.hidden:
                yield from _command(found, f"{name} {part}", f"{heading}#")


def _help(command: TyperCommand | TyperGroup) -> str:
    return (command.help or "").partition("\f")[0].strip()


def _options(command: TyperCommand | TyperGroup, name: str) -> Iterator[str]:
    """Yield a table of a command's arguments and options, without those that every command has."""
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=_WIDTH)
    records = [
        (record[0].replace("|", "\\|"), _cell(record[1]))
        for parameter in command.params
        if (record := parameter.get_help_record(context)) is not None
    ]
    if records:
        yield ""
        yield "| argument or option | |"
        yield "|---|---|"
        yield from (f"| `{what}` | {text} |" for what, text in records)


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Every setting is an environment variable of the process that reads it. `forebay config` shows the values"
    yield "that hold here, and where each comes from. What is set for a stream or a pipeline is declared with it:"
    yield "[receiver-settings.md](receiver-settings.md). Written by `forebay reference settings`."
    yield ""
    yield "| setting | default | |"
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        default = shown(field.get_default(call_default_factory=True))
        text = UNSET if default == UNSET else f"`{default}`"
        yield f"| `{PREFIX}{name.upper()}` | {text} | {_cell(field.description or '')} |"
    yield ""
    yield "These variables give the value of an option where it is not on the command line:"
    yield ""
    yield "| variable | option |"
    yield "|---|---|"
    for variable, option in OPTION_VARIABLES.items():
        yield f"| `{variable}` | `{option}` |"


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes"
    yield ""
    yield "Written by `forebay reference exit-codes`."
    yield ""
    yield "| code | |"
    yield "|---|---|"
    yield from (f"| {code} | {text} |" for code, text in EXIT_CODES.items())
    yield ""
    yield "The code 1 of these commands is an answer. Of all others it says that they could not do what was asked."
    yield ""
    yield "| command | 1 means |"
    yield "|---|---|"
    yield from (f"| `forebay {command}` | {text} |" for command, text in FINDINGS.items())


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    """Return text in which Markdown finds no HTML."""
    return text.replace("<", "&lt;")
