"""Read a runbook of docs/runbooks: its sections, and the commands and statements marked `runnable`; run commands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

RUNBOOKS = Path(__file__).parents[1] / "docs" / "runbooks"
#: The sections of each runbook, in their order.
HEADINGS = ["Symptom", "How to see it", "Cause", "Cure", "How to know that it is cured"]


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
    return re.findall(r"^ *```(\w*)([^\n`]*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


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
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
