"""Test where a command takes its module from: its argument, FOREBAY_MODULE, or the project in the working directory."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from orchestration.declarations.project_file import project_module

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = """
from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
pipeline = Pipeline("{name}", interval="10s")
@pipeline.output(inputs=[lines], sink=ParquetSink("out"))
def counts(lines):
    return lines
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with three modules; each declares a pipeline of its own name."""
    for name in ("FOREBAY_MODULE", "FOREBAY_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("from_project", "from_variable", "from_argument"):
        (tmp_path / f"{name}.py").write_text(PIPELINE.format(name=name), encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text('[tool.forebay]\nmodule = "from_project"\n', encoding="utf-8")
    return tmp_path


def declared(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["validate", "--offline", "--no-plans", "--json", *arguments])
    found: dict[str, Any] = json.loads(result.stdout)
    return str(next(one["found"] for one in found["findings"] if one["check"] == "declarations"))


def test_an_argument_wins_over_the_variable_and_that_over_the_project(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "from_project" in declared()
    monkeypatch.setenv("FOREBAY_MODULE", "from_variable")
    assert "from_variable" in declared()
    assert "from_argument" in declared("from_argument")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.forebay]\nmodul = 'a'", "module = "),
        ("[tool.forebay]\nmodule = 1", "module = 1"),
        ("[tool.forebay]\nmodule = ''", "module = ''"),
        ("[tool]\nforebay = 'a'", "[tool.forebay]"),
        ("[tool.forebay", "correct it"),
    ],
)
def test_a_project_file_that_can_not_be_used_is_named(project: Path, text: str, said: str) -> None:
    path = project / "pyproject.toml"
    path.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["up"])
    assert (result.exit_code, str(path) in result.output, said in result.output) == (1, True, True), result.output
    assert not (project / "home").exists()


@pytest.mark.parametrize("text", ["", "[project]\nname = 'a'", "[tool.ruff]\n", "tool = 1"])
def test_another_project_names_no_module(project: Path, text: str) -> None:
    (project / "pyproject.toml").write_text(text, encoding="utf-8")
    assert project_module() is None
    (project / "pyproject.toml").unlink()
    assert project_module() is None
