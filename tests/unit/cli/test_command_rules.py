"""Walk the whole command tree, and hold every command to the same rules."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command
from typer.testing import CliRunner

import forebay.cli
from forebay.cli.main import app
from forebay.cli.terminal import confirmation
from forebay.cli.terminal.exit_codes import EXIT_CODES, FINDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

COLUMNS = 80
_EXAMPLES = re.compile(r"^For example:\n\n((?:    .*\n?)+)", re.MULTILINE)

_SERVICE = "it runs until it is stopped, and what it prints is a log"
_RECORDS = "it prints records as they are, or saves them in a file"
#: Commands without --json, and why.
NO_JSON = {
    "up": _SERVICE,
    "agent": _SERVICE,
    "batch-driver": _SERVICE,
    "blocks records": _RECORDS,
    "blocks dead-letter": _RECORDS,
    "tap": _RECORDS,
    "db describe": "it prints a page in Markdown",
}
#: Commands that ask because results of many batches are replaced; `state undo` takes back what the other one did.
REPLACES = {"batches replay", "state rebuild", "state undo"}
#: Commands after which something is gone.
DESTROYS = {
    "agents forget",
    "streams remove",
    "pipelines remove",
    "readers remove",
    "batches discard",
    "blocks adopt",
}


def _commands() -> dict[str, TyperCommand]:
    """Return every command that people see, by its words after `forebay`; no groups."""
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    return dict(_below(root, ()))


def _below(group: TyperGroup, words: tuple[str, ...]) -> Iterator[tuple[str, TyperCommand]]:
    context = group.make_context("forebay", [], resilient_parsing=True)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, TyperGroup):
            yield from _below(command, (*words, name))
        else:
            assert isinstance(command, TyperCommand)
            if not command.hidden:
                yield " ".join((*words, name)), command


COMMANDS = _commands()


def options(name: str) -> set[str]:
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def examples(name: str) -> list[str]:
    found = _EXAMPLES.search(COMMANDS[name].help or "")
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_examples_that_can_be_typed(name: str) -> None:
    given = examples(name)
    assert any(shlex.split(line)[: 1 + len(name.split())] == ["forebay", *name.split()] for line in given)
    for line in given:
        words = shlex.split(re.split(r" [|>] ", line)[0])
        if words[0] != "forebay":
            continue
        root = get_command(app)
        assert isinstance(root, TyperGroup)
        group, rest = root, words[1:]
        while True:
            context = group.make_context("forebay", [], resilient_parsing=True)
            command = group.get_command(context, rest[0])
            assert command is not None, line
            rest = rest[1:]
            if not isinstance(command, TyperGroup):
                break
            group = command
        # Raises for an option that is not there, and for an argument too few or too many.
        command.make_context(line, rest)


@pytest.mark.parametrize("name", COMMANDS)
def test_how_many_is_asked_for_by_one_option(name: str) -> None:
    assert ("-n" in options(name)) == ("--limit" in options(name))
    assert not options(name) & {"--lines", "--newest", "--tail", "--count", "--last"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_and_breaks_no_example(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": str(COLUMNS), "NO_COLOR": "1"})
    assert shown.exit_code == 0, shown.output
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert max(map(len, shown.stdout.splitlines())) <= COLUMNS
    assert [line for line in examples(name) if line not in lines] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_takes_json_unless_there_is_a_reason(name: str) -> None:
    assert ("--json" in options(name)) is (name not in NO_JSON)


@pytest.mark.parametrize("name", COMMANDS)
def test_what_destroys_asks_or_takes_yes(name: str) -> None:
    assert ("--yes" in options(name)) is (name in DESTROYS | REPLACES)


def test_the_lists_name_commands() -> None:
    assert NO_JSON.keys() | DESTROYS | REPLACES | FINDINGS.keys() <= COMMANDS.keys()


def test_nobody_is_asked_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    confirmation.confirm("Remove it?", yes=True)
    monkeypatch.setattr(confirmation, "is_terminal", lambda: False)
    with pytest.raises(typer.Exit) as refused:
        confirmation.confirm("Remove it?", yes=False)
    assert (refused.value.exit_code, "add --yes" in capsys.readouterr().err) == (1, True)


def _exits() -> Iterator[tuple[str, ast.expr]]:
    """Yield where the code of the command line ends with a code of its own, and the code."""
    for file in sorted(Path(forebay.cli.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and node.args):
                continue
            called = ast.unparse(node.func)
            if called in {"typer.Exit", "sys.exit", "SystemExit", "os._exit"}:
                yield f"{file.name}:{node.lineno}", node.args[0]


def test_every_exit_code_is_in_the_table() -> None:
    codes = {code for code in EXIT_CODES if code.isdecimal()}
    assert "128 + N" in EXIT_CODES
    found = {
        (where, str(constant.value))
        for where, argument in _exits()
        # A signal's, plus 128.
        if "signal." not in ast.unparse(argument)
        for constant in ast.walk(argument)
        if isinstance(constant, ast.Constant) and isinstance(constant.value, int)
    }
    assert found
    assert {(where, code) for where, code in found if code not in codes} == set()
