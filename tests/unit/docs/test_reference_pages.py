"""Hold the generated pages of docs/reference to the commands, the settings and the exit codes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from forebay.cli.exit_codes import EXIT_CODES, FINDINGS
from forebay.cli.main import app
from forebay.cli.reference import Page, describe
from orchestration.settings import Settings

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", Page)
@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_page_is_generated(page: Page, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The terminal, and what is set where it is written, must make no difference.
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FOREBAY_HISTORY_RETENTION", "3d")
    path = REFERENCE / f"{page}.md"
    assert path.read_text(encoding="utf-8") == describe(page), (
        f"it has changed: forebay reference {page} > docs/reference/{page}.md"
    )


def test_the_pages_have_every_command_and_setting() -> None:
    cli, settings = describe(Page.CLI), describe(Page.SETTINGS)
    for name in ("config", "db check", "batches replay", "up"):
        assert f" forebay {name}\n" in cli
    assert "forebay receiver\n" not in cli, "an agent starts it, not a person"
    assert all(f"`FOREBAY_{name.upper()}`" in settings for name in Settings.model_fields)


def test_each_command_with_an_answer_in_its_exit_code_exists() -> None:
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    for words in FINDINGS:
        command, _, part = words.partition(" ")
        found = root.get_command(None, command)  # type: ignore[arg-type]
        assert found is not None, words
        if part:
            assert isinstance(found, TyperGroup)
            assert part in found.commands, words


def test_no_command_exits_with_a_code_that_has_no_row() -> None:
    given = {
        constant.value
        for path in (ROOT / "forebay" / "cli").rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"typer.Exit", "sys.exit", "SystemExit"}
        for argument in call.args
        for constant in ast.walk(argument)
        if isinstance(constant, ast.Constant) and type(constant.value) is int
    }
    assert given - {int(code) for code in EXIT_CODES if code.isdecimal()} == {128}
    assert "128 + N" in EXIT_CODES
