"""Check what `forebay receiver` hands to the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from forebay.cli.main import app
from receiver_runtime.watching.exit_codes import ExitCode

if TYPE_CHECKING:
    import pytest


def test_a_receiver_gets_the_keys_from_before_a_rotation(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def run(_: object, **parts: object) -> ExitCode:
        given.update(parts)
        return ExitCode.STOPPED

    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    monkeypatch.setenv("FOREBAY_BLOCK_KEY", "env:NOW")
    monkeypatch.setenv("FOREBAY_BLOCK_KEYS_FOR_READING", "file:/run/before")
    monkeypatch.setattr("receiver_runtime.process.receiver_process.run", run)
    assert CliRunner().invoke(app, ["receiver", "--receiver", "1:1"]).exit_code == ExitCode.STOPPED
    assert (str(given["block_key"]), [str(key) for key in given["keys_for_reading"]]) == (
        "env:NOW",
        ["file:/run/before"],
    )
