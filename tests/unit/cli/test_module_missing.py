"""Test that no command takes the demo's pipelines, or any others, when the user has named no module."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from forebay.cli.main import app

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
    assert "No module of pipelines is named: give one (`forebay up my_pipeline`), or set FOREBAY_MODULE." in said
    assert not nothing_named.exists(), "nothing was started"


def test_an_empty_name_is_no_name(nothing_named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_MODULE", "")
    assert CliRunner().invoke(app, ["up"]).exit_code == 2
    assert not nothing_named.exists()
