"""Find the commands of `forebay`: one module per noun, loaded when its command is called (`forebay --help` loads all).

So `forebay status` loads within a second: it has to answer within five, whatever is wrong.
"""

from __future__ import annotations

import inspect
import logging
from importlib import import_module, metadata
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from forebay.cli.services.private_home import mask_new_files
from tracker_store.host.process_output import configure_log, keep_output_from_failing

_MARKUP: Final = "markdown"

# Command -> module of forebay.cli.commands, and the name in it: of a function, or of a typer.Typer with subcommands.
_COMMANDS = {
    "demo": ("demo", "demo"),
    "new": ("new", "new"),
    "init": ("new", "new"),
    "up": ("up", "up"),
    "stop": ("stop", "stop"),
    "start": ("stop", "start"),
    "apply": ("apply", "apply"),
    "validate": ("validate", "validate"),
    "status": ("status", "status"),
    "top": ("top", "top"),
    "sources": ("sources", "sources"),
    "doctor": ("doctor", "doctor"),
    "config": ("config", "config"),
    "agent": ("agent", "agent"),
    "batch-driver": ("batch_driver", "batch_driver"),
    "receiver": ("receiver", "receiver"),
    "tracker": ("agent", "tracker"),
    "agents": ("agents", "app"),
    "receivers": ("receivers", "app"),
    "streams": ("streams", "app"),
    "pipelines": ("pipelines", "app"),
    "readers": ("readers", "app"),
    "channels": ("channels", "channels"),
    "batches": ("batches.batches", "app"),
    "state": ("state.state", "app"),
    "blocks": ("records.blocks", "app"),
    "dead-letters": ("records.dead_letters", "app"),
    "events": ("events", "events"),
    "logs": ("logs", "logs"),
    "tap": ("records.tap", "tap"),
    "send": ("records.send", "send"),
    "db": ("driver_log.db", "app"),
    "reference": ("reference", "reference"),
}
# Started by an agent, what writes pages of docs/reference, and another name of `new`: not in the list.
_HIDDEN = ("receiver", "tracker", "reference", "init")


class _Commands(TyperGroup):
    """Find the commands by name; import a command's module only when the command is requested."""

    def __init__(self, **attributes: Any) -> None:  # noqa: ANN401  Typer's
        """Hold the names, so that Typer can suggest one for a mistyped name, and complete one."""
        names = [TyperCommand(name, hidden=name in _HIDDEN) for name in _COMMANDS]
        super().__init__(**{**attributes, "commands": names})

    def list_commands(self, ctx: object) -> list[str]:  # noqa: ARG002  Typer's interface
        return list(_COMMANDS)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:  # noqa: ANN401  Typer's, and not public
        """Complete a command's name or an option, without the commands' modules: a shell waits for the answer."""
        names = TyperGroup(commands=dict(self.commands), params=self.params)
        return names.shell_complete(typer.Context(names, parent=ctx), incomplete)

    def get_command(self, ctx: object, cmd_name: str) -> TyperCommand | TyperGroup | None:  # noqa: ARG002  the same
        if cmd_name not in _COMMANDS:
            return None
        module, attribute = _COMMANDS[cmd_name]
        found = getattr(import_module(f"forebay.cli.commands.{module}"), attribute)
        holder = typer.Typer(
            add_completion=False, rich_markup_mode=_MARKUP, pretty_exceptions_enable=False, callback=_nothing
        )
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=cmd_name)
        else:
            holder.command(cmd_name, hidden=cmd_name in _HIDDEN)(found)
        group = typer.main.get_command(holder)
        assert isinstance(group, TyperGroup)
        command = group.commands[cmd_name]
        assert isinstance(command, TyperCommand | TyperGroup)
        return _with_list(command) if isinstance(command, TyperGroup) else command


def _with_list(group: TyperGroup) -> TyperGroup:
    """Give a group that lists when it is called without a subcommand that listing as `list` too."""
    if group.invoke_without_command and group.callback is not None and "list" not in group.commands:
        said = inspect.cleandoc(group.callback.__doc__ or "")
        group.add_command(
            TyperCommand("list", callback=group.callback, params=group.params, help=said, rich_markup_mode=_MARKUP)
        )
    return group


def _nothing() -> None:
    """Do nothing: a Typer with a callback is a group, even with one command."""


# Commands whose files are the user's, as those of an editor: the mask of the shell holds.
_OWN_FILES = frozenset({"new", "init"})
# Commands that run until they are stopped, with their output in a file on a disk that may be full.
_SERVICES = frozenset({"agent", "batch-driver", "receiver", "tracker", "up"})

app = typer.Typer(
    name="forebay",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=_MARKUP,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Receivers as a service: pushed records become durable blocks, blocks become PySpark batches in Dagster.

Begin with `forebay demo`. Then make a project of your own with `forebay new my-shop`, and run its pipeline with
`forebay up my_shop`.

Where things are: FOREBAY_HOME (.forebay) holds the state; FOREBAY_DATABASE_URL names a Postgres of your own;
FOREBAY_MODULE the module that declares your pipelines.
""",
)


def _print_version(context: typer.Context, asked: bool) -> None:
    # While a shell completes a command line, nothing else may be printed.
    if asked and not context.resilient_parsing:
        typer.echo(f"forebay {metadata.version('forebay')}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001, FBT002  its callback acts
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages too.")] = False,  # noqa: FBT002
) -> None:
    """Configure the log, and let nothing but a new project be readable by other accounts."""
    if context.invoked_subcommand not in _OWN_FILES:
        mask_new_files()
    if context.invoked_subcommand in _SERVICES:
        keep_output_from_failing()
    # `forebay up` tells of what people should know by lines of its own.
    usual = logging.WARNING if context.invoked_subcommand == "up" else logging.INFO
    configure_log(logging.DEBUG if verbose else usual)
