"""Test the command line as a whole: version, help and lists are where people look for them."""

from __future__ import annotations

from importlib import metadata

import pytest
from typer.core import TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

from forebay.cli.main import app


def groups() -> list[str]:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    context = root.make_context("forebay", [], resilient_parsing=True)
    return [name for name in root.list_commands(context) if isinstance(root.get_command(context, name), TyperGroup)]


def test_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"forebay {metadata.version('forebay')}\n")


@pytest.mark.parametrize("command", [(), ("up",), ("streams", "remove"), ("batches", "list")])
def test_short_help_is_help(command: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*command, option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, long.output)
    assert "Usage:" in short.output


@pytest.mark.parametrize("group", groups())
def test_each_group_that_lists_has_a_command_list_with_the_same_options(group: str) -> None:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    found = root.get_command(root.make_context("forebay", [], resilient_parsing=True), group)
    assert isinstance(found, TyperGroup)
    if group in ("blocks", "db"):
        assert not found.invoke_without_command, "it has nothing to list"
        return
    listing = found.commands["list"]
    if not found.invoke_without_command:
        # Its listing takes an argument, which a group can't tell from a command.
        assert group == "dead-letters"
        return
    # It may take an argument too, which a group can't tell from a command.
    options = {param.name for param in listing.params if param.param_type_name == "option"}
    assert options == {param.name for param in found.params}
    assert "--json" in CliRunner().invoke(app, [group, "list", "--help"]).output
