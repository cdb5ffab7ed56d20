"""Check that `forebay status` names what does not answer without the secrets of its address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.testing import CliRunner

from forebay.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

_ROOT = "s3://AKIAPL:pl4nted%2Fx7k9q@bucket/x?endpoint_override=127.0.0.1:1&scheme=http&region=x"


def test_what_does_not_answer_is_shown_without_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://me:pl4nted:x7k9q@127.0.0.1:pl4nted/none")
    monkeypatch.setenv("FOREBAY_BLOCK_STORE", _ROOT)
    for arguments in (["status", "--json", "--within", "3"], ["status", "--within", "3"]):
        done = CliRunner().invoke(app, arguments)
        assert "block store s3://bucket/x" in done.output
        assert not [secret for secret in ("pl4nted", "x7k9q", "AKIAPL") if secret in done.output]
