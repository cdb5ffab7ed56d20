"""Check that type checkers know exactly what users can import from the modules that find names by entry points."""

from __future__ import annotations

import ast
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from release.stub import MODULES, ROOT, stub

if TYPE_CHECKING:
    from pathlib import Path

by_module = pytest.mark.parametrize("path", MODULES)


@by_module
def test_the_stub_is_that_of_the_code(path: Path) -> None:
    """If it fails: `python -m release.stub`."""
    assert path.with_suffix(".pyi").read_text(encoding="utf-8") == stub(path)


@by_module
def test_the_stub_has_each_public_name_and_no_other(path: Path) -> None:
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    imported = [node for node in ast.parse(stub(path)).body if isinstance(node, ast.ImportFrom)]
    assert sorted(name.name for node in imported for name in node.names) == dir(module) == sorted(module.__all__)
    for node in imported:
        for name in node.names:
            assert getattr(module, name.name).__module__ == node.module
