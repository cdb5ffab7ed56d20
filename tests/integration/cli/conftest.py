"""A module of pipelines that commands find by the environment."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture
def declare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings_in_environment: None
) -> Iterator[Callable[[str], None]]:
    """Return a function that writes the module `words_module`, whose declarations the commands of a test then have."""
    monkeypatch.setenv("FOREBAY_MODULE", str(tmp_path / "words_module.py"))
    monkeypatch.delenv("FOREBAY_DAGSTER_URL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.modules.pop("words_module", None)

    def write(text: str) -> None:
        (tmp_path / "words_module.py").write_text(text, encoding="utf-8")

    yield write
    sys.modules.pop("words_module", None)
