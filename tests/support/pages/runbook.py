"""Read a runbook of docs/runbooks: its sections, its commands, and the blocks marked `runnable`; run commands."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from typer.core import TyperGroup
from typer.main import get_command

from forebay.cli.main import app
from tests.support.commands.forked_command import programs

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNBOOKS = Path(__file__).parents[3] / "docs" / "runbooks"
#: The sections of each runbook, in their order.
HEADINGS = ["Symptom", "How to see it", "Cause", "Cure", "How to know that it is cured"]
_FENCE = re.compile(r"^ *```(\w*)([^\n`]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:[^`\n]|\n(?!\n))+)`")
_FOREBAY = re.compile(r"^(?:\w+=\S* )*forebay (?=\S)")


def page(stem: str) -> str:
    """Return the text of a runbook."""
    return (RUNBOOKS / f"{stem}.md").read_text(encoding="utf-8")


def sections(stem: str) -> dict[str, str]:
    """Return the text of each section, by its heading."""
    return dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page(stem), re.MULTILINE | re.DOTALL))


def blocks(text: str, language: str) -> list[str]:
    """Return the runnable blocks of a language, in their order."""
    return re.findall(rf"^ *```{language} runnable\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def runnable(text: str) -> list[tuple[str, str]]:
    """Return all runnable blocks in their order, each with its language."""
    return re.findall(r"^ *```(sh|sql) runnable\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def fences(text: str) -> list[tuple[str, str, str]]:
    """Return each fence: its language (empty: none), the words after it, and its text."""
    return _FENCE.findall(text)


def inline_code(text: str) -> list[str]:
    """Return what the text has in backticks outside of fences, each on one line."""
    return [" ".join(code.split()) for code in _INLINE.findall(_FENCE.sub("", text))]


def inline_commands(text: str) -> set[str]:
    """Return the words of each `forebay` command that is in backticks outside of fences."""
    return {command_words(code) for code in inline_code(text) if _FOREBAY.match(code)}


def commands_in(lines: str) -> set[str]:
    """Return the words of each `forebay` command at the beginning of a line."""
    return {command_words(line) for line in map(str.strip, lines.splitlines()) if _FOREBAY.match(line)}


def command_words(command: str) -> str:
    """Return the words that name a command: `batches show` for `forebay batches show words latest`."""
    group = get_command(app)
    found: list[str] = []
    for word in _FOREBAY.sub("", command).split():
        if not isinstance(group, TyperGroup):
            break
        inner = group.get_command(group.make_context("forebay", [], resilient_parsing=True), word)
        if inner is None:
            break
        found.append(word)
        group = inner
    assert found, f"there is no such command: {command}"
    # `forebay batches` and `forebay batches list` are the same.
    return " ".join(found).removesuffix(" list")


def page_environment(database_url: str, home: Path, **variables: str) -> dict[str, str]:
    """Return what the commands of a page run with: this environment, `declared.py` as the module, and `variables`."""
    return {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(home),
        "FOREBAY_MODULE": str(home / "declared.py"),
        "COLUMNS": "200",
        **programs(),
        **variables,
    }


def run_commands(commands: str, environment: Mapping[str, str], directory: Path) -> str:
    """Run a block of commands, which must succeed; return what it prints."""
    done = subprocess.run(
        # Allow more time on a loaded machine.
        ["sh", "-euc", commands.replace("forebay status", "forebay status --within 60")],
        env=environment,
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
