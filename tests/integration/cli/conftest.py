"""A module of pipelines that commands find by the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings_in_environment: None) -> Callable[[str], None]:
    """Return a function that writes the module `words_module`, whose declarations the commands of a test then have."""
    monkeypatch.setenv("FOREBAY_MODULE", str(tmp_path / "words_module.py"))
    monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")

    def write(text: str) -> None:
        (tmp_path / "words_module.py").write_text(text, encoding="utf-8")

    return write
