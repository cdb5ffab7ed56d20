"""Check that type checkers know exactly what users can import from `forebay`."""

from __future__ import annotations

import ast

import forebay
from release.stub import STUB, stub


def test_the_stub_is_that_of_the_code() -> None:
    """If it fails: `python -m release.stub`."""
    assert STUB.read_text(encoding="utf-8") == stub()


def test_the_stub_has_each_public_name_and_no_other() -> None:
    imported = [node for node in ast.parse(stub()).body if isinstance(node, ast.ImportFrom)]
    assert sorted(name.name for node in imported for name in node.names) == dir(forebay)
    for node in imported:
        for name in node.names:
            assert getattr(forebay, name.name).__module__ == node.module
