"""Test `forebay new`: the files that it makes, and the names and directories that it refuses."""

from __future__ import annotations

import ast
import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from forebay.cli.commands.new import ProjectSource, make_project, module_name
from forebay.cli.main import app
from forebay.cli.terminal.failures import CommandError

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    ".gitignore",
    "README.md",
    "dagster.yaml",
    "definitions.py",
    "my_shop.py",
    "pyproject.toml",
    "test_my_shop.py",
    "workspace.yaml",
}


@pytest.mark.parametrize("source", ProjectSource)
def test_the_files_of_a_project(source: ProjectSource, tmp_path: Path) -> None:
    directory = tmp_path / "below" / "my-shop"
    files = FILES | ({"order.avsc"} if source is ProjectSource.KAFKA_AVRO else set())
    assert {str(path) for path in make_project(directory, source)} == files
    assert {path.name for path in directory.iterdir()} == files
    for path in directory.iterdir():
        text = path.read_text(encoding="utf-8")
        assert "$module" not in text, path
        assert "$" not in text or path.name == "README.md", path
        if path.suffix == ".py":
            ast.parse(text)
    assert tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"] == "my-shop"


def test_a_project_of_web_hooks_declares_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["new", "my-hooks", "--source", "webhook"]).exit_code == 0
    names: dict[str, Any] = {"__name__": "my_hooks"}
    exec((tmp_path / "my-hooks" / "my_hooks.py").read_text(encoding="utf-8"), names)
    source = names["events"].source
    assert (str(source.verify.secrets[0]), source.key_from) == ("env:GITHUB_SECRET", "header:X-GitHub-Delivery")
    assert CliRunner().invoke(app, ["new", "others", "--source", "fax"]).exit_code == 2


@pytest.mark.parametrize("command", ["new", "init"])
def test_it_says_what_it_made_and_what_to_do_next(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [command, "My Shop"])
    assert result.exit_code == 0, result.output
    assert "+ My Shop/my_shop.py\n" in result.output
    assert "    cd 'My Shop'\n    pytest\n    forebay up\n" in result.output


def test_an_empty_directory_that_one_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-shop").mkdir()
    monkeypatch.chdir(tmp_path / "my-shop")
    result = CliRunner().invoke(app, ["new", ".", "--json"])
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert (made["directory"], made["module"]) == (str(tmp_path / "my-shop"), "my_shop")
    assert set(made["files"]) == FILES


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("9-lives", "can't be the name of a Python module"),
        ("class", "can't be the name of a Python module"),
        ("caffè", "can't be the name of a Python module"),
        ("email", "already"),
        ("forebay", "already"),
        ("Orchestration", "already"),
        ("tracker-store", "already"),
        ("dagster", "already"),
        ("setuptools", "already"),
        ("pip", "already"),
        ("definitions", "another of its files"),
        ("test-shop", "another of its files"),
    ],
)
def test_a_name_that_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=reason):
        module_name(name)
    result = CliRunner().invoke(app, ["new", str(tmp_path / name)])
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert not (tmp_path / name).exists()


def test_a_directory_with_files_is_refused_and_kept(tmp_path: Path) -> None:
    directory = tmp_path / "my-shop"
    directory.mkdir()
    (directory / "notes").write_text("mine", encoding="utf-8")
    result = CliRunner().invoke(app, ["new", str(directory)])
    assert result.exit_code == 1
    assert "exists and is not an empty directory" in result.output
    assert [path.name for path in directory.iterdir()] == ["notes"]


def test_a_file_of_that_name_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "my-shop").write_text("mine", encoding="utf-8")
    with pytest.raises(CommandError, match="not an empty directory"):
        make_project(tmp_path / "my-shop")
    assert (tmp_path / "my-shop").read_text(encoding="utf-8") == "mine"
