"""Complete a command line for a shell, without loading what the commands load.

The commands, their options and their words are in ``completion.json``, which `forebay reference completion` writes and
a test compares with the commands. Only names are asked of the driver log (`names`). Typer reads the shell's words and
answers in its form; it is given commands that do nothing.
"""

from __future__ import annotations

import inspect
import json
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from forebay.cli import names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TABLE = "completion.json"
#: What a shell sets, as Typer's scripts for it do.
VARIABLE = "_FOREBAY_COMPLETE"


def complete() -> None:
    """Answer the shell that set `VARIABLE`, and exit."""
    table = json.loads(resources.files("forebay.cli").joinpath(TABLE).read_text(encoding="utf-8"))
    # Typer adds its options that install the completion, and with them the shells that it knows.
    app = typer.Typer(context_settings=_SETTINGS)
    _fill(app, table)
    app(prog_name="forebay")


_SETTINGS = {"help_option_names": ["-h", "--help"]}
_TYPERS = ("install_completion", "show_completion")


def _fill(app: typer.Typer, entry: Mapping[str, Any]) -> None:
    """Add the commands of a group; its own options are those of a callback."""
    app.callback(invoke_without_command=True)(_stub(entry))
    for name, command in entry["commands"].items():
        if "commands" in command:
            group = typer.Typer(add_completion=False)
            _fill(group, command)
            app.add_typer(group, name=name, help=command["help"])
        else:
            app.command(name, help=command["help"])(_stub(command))


def _stub(entry: Mapping[str, Any]) -> Callable[..., None]:
    """Return a function that does nothing and has the command's parameters."""

    def stub(**_: object) -> None:
        """Do nothing."""

    annotations = {parameter["name"]: _annotation(parameter) for parameter in entry["parameters"]}
    stub.__annotations__ = annotations
    stub.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in annotations.items()
        ]
    )
    return stub


def _annotation(parameter: Mapping[str, Any]) -> Any:  # noqa: ANN401  a type
    found: Any = str
    if parameter.get("flag"):
        found = bool
    elif parameter.get("many"):
        found = list[str]
    words = _words(parameter)
    text = parameter.get("help")
    if "options" not in parameter:
        return Annotated[found | None, typer.Argument(help=text, autocompletion=words)]
    return Annotated[found | None, typer.Option(*parameter["options"], help=text, autocompletion=words)]


def _words(parameter: Mapping[str, Any]) -> Callable[..., list[str]] | None:
    if "names" in parameter:
        found: Callable[..., list[str]] = getattr(names, parameter["names"])
        return found
    words = parameter.get("words")
    if words is None:
        return None

    def begin_so(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    return begin_so


def table_of(command: TyperCommand | TyperGroup) -> dict[str, Any]:
    """Return a command's part of the table. Loads all commands."""
    context = command.make_context(command.name or "", [], resilient_parsing=True)
    declared = {} if command.callback is None else _declared(command.callback)
    entry: dict[str, Any] = {
        "help": (command.help or "").strip().partition("\n")[0],
        "parameters": [
            _parameter_of(context, parameter, declared.get(parameter.name or ""))
            for parameter in command.params
            if not getattr(parameter, "hidden", False) and parameter.name not in _TYPERS
        ],
    }
    if isinstance(command, TyperGroup):
        parts = {name: command.get_command(context, name) for name in command.list_commands(context)}
        entry["commands"] = {
            name: table_of(part)
            for name, part in parts.items()
            if isinstance(part, TyperCommand | TyperGroup) and not part.hidden
        }
    return entry


def _declared(callback: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """Return the functions that complete parameters, by the parameter's name."""
    hints = inspect.get_annotations(inspect.unwrap(callback), eval_str=True)
    return {
        name: info.autocompletion
        for name, hint in hints.items()
        for info in getattr(hint, "__metadata__", ())
        if getattr(info, "autocompletion", None) is not None
    }


def _parameter_of(context: Any, parameter: Any, words: Callable[..., Any] | None) -> dict[str, Any]:  # noqa: ANN401  Typer's
    is_option = parameter.param_type_name == "option"
    asked = words is not None and words.__module__ == names.__name__
    described: dict[str, Any] = {
        "name": parameter.name,
        "options": ["/".join([one, *parameter.secondary_opts[:1]]) for one in parameter.opts] if is_option else [],
        "help": " ".join((getattr(parameter, "help", None) or "").split()),
        "flag": is_option and bool(parameter.is_flag),
        "many": bool(parameter.multiple or parameter.nargs == -1),
        "names": words.__name__ if asked and words is not None else None,
        "words": [] if asked else [item.value for item in parameter.shell_complete(context, "")],
    }
    return {key: value for key, value in described.items() if value}
