"""Hold the generated pages of docs/reference to the program."""

from __future__ import annotations

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from forebay.cli.commands.reference import Page, describe
from forebay.cli.main import app
from forebay.cli.reference_pages.api_reference import MODULES, public_names
from forebay.cli.terminal.exit_codes import EXIT_CODES, FINDINGS
from orchestration.declarations.settings import Settings
from orchestration.tracker.http.metrics import METRICS
from release.docs_site import GENERATED

ROOT = Path(__file__).parents[3]
REFERENCE = ROOT / "docs" / "reference"


@pytest.mark.parametrize("page", [page for page in Page if page not in GENERATED])
@pytest.mark.parametrize("columns", ["40", "200"])
def test_the_page_is_generated(page: Page, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The terminal, and what is set where it is written, must make no difference.
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("FOREBAY_HISTORY_RETENTION", "3d")
    path = REFERENCE / f"{page}.md"
    assert path.read_text(encoding="utf-8") == describe(page), (
        f"it has changed: forebay reference {page} > docs/reference/{page}.md"
    )


@pytest.mark.parametrize("page", GENERATED)
def test_a_page_of_the_site_does_not_depend_on_where_it_is_written(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    before = describe(Page(page))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("FOREBAY_HISTORY_RETENTION", "3d")
    assert describe(Page(page)) == before
    assert not (REFERENCE / f"{page}.md").exists(), "the site's build writes it"


def test_the_pages_have_every_command_and_setting() -> None:
    cli, settings = describe(Page.CLI), describe(Page.SETTINGS)
    for name in ("config", "db check", "batches replay", "up"):
        assert f" forebay {name}\n" in cli
    assert "forebay receiver\n" not in cli, "an agent starts it, not a person"
    assert all(f"`FOREBAY_{name.upper()}`" in settings for name in Settings.model_fields)


def test_the_page_of_metrics_has_each_with_its_labels() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([\w, ]+) \| (.*) \|$", describe(Page.METRICS), re.MULTILINE)
    assert rows == [(name, kind, ", ".join(labels) or "none", text) for name, (kind, labels, text) in METRICS.items()]


def test_the_page_of_the_python_api_has_each_public_name_and_parameter() -> None:
    sections = re.split(r"^## (.+)$", describe(Page.PYTHON_API), flags=re.MULTILINE)[1:]
    described = dict(zip(sections[::2], sections[1::2], strict=True))
    assert list(described) == list(MODULES)
    public = {path.stem for path in (ROOT / "forebay").glob("*.py")} - {"__init__", "shadowing"} | {"testing"}
    assert {module.partition(".")[2] for module in MODULES} - {""} == public
    for module, section in described.items():
        assert re.findall(r"^### (\w+)$", section, re.MULTILINE) == public_names(import_module(module))
    assert "catch_up: CatchUp = 'each'," in described["forebay"]
    assert "- `catch_up`: behind schedule, make" in described["forebay"]
    assert "head_timeout: Seconds = 10.0," in described["forebay.sources"]
    assert "#### `on_start()`" in described["forebay.receiver"]
    # What differs from run to run, or is not for users.
    assert not re.search(r"0x[0-9a-f]{6}|Annotated\[|\b_blocks\b", "".join(described.values()))


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
