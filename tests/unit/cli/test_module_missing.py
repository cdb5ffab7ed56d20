"""Test commands of a user who has named no module, or no driver log: none takes the demo's, each says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app
from forebay.cli.services.running_module import named_module
from forebay.cli.services.supervisor_lock import take_lock
from orchestration.declarations.project_code import CodeCopies
from orchestration.declarations.settings import DatabaseUrlMissingError, ModuleMissingError, Settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty FOREBAY_HOME; no other setting is set."""
    for name in ("FOREBAY_MODULE", "FOREBAY_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    "command",
    [
        ("up",),
        ("apply",),
        ("agent", "--roles", "receivers,batch-driver"),
    ],
)
def test_a_command_that_needs_a_module_refuses_to_guess_one(nothing_named: Path, command: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, command)
    said = " ".join(result.output.split())
    assert result.exit_code == 2, said
    assert (
        "No module of pipelines is named: give one (`forebay up my_pipeline`), set FOREBAY_MODULE, or begin a project."
        in said
    )
    assert not nothing_named.exists(), "nothing was started"


@pytest.mark.parametrize("command", ["agent", "batch-driver", "batches", "db upgrade", "events", "pipelines", "top"])
def test_without_a_driver_log_a_command_says_what_to_do(nothing_named: Path, command: str) -> None:
    result = CliRunner().invoke(app, command.split())
    said = " ".join(result.output.split())
    assert (result.exit_code, isinstance(result.exception, SystemExit)) == (1, True), result.exception
    assert said == DatabaseUrlMissingError.__doc__
    assert not nothing_named.exists()


def test_an_empty_name_is_no_name(nothing_named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_MODULE", "")
    assert CliRunner().invoke(app, ["up"]).exit_code == 2
    assert not nothing_named.exists()


def test_a_command_beside_a_running_up_takes_its_module(nothing_named: Path) -> None:
    CodeCopies(nothing_named).of("shop")
    with take_lock(nothing_named):
        assert named_module(None, Settings()) == "shop"
        assert named_module("given", Settings()) == "given"
    with pytest.raises(ModuleMissingError):
        named_module(None, Settings())
