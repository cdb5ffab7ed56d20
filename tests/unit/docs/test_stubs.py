"""Check that type checkers know each kind of source that comes with Forebay."""

from __future__ import annotations

from release.stubs import STUB, stub


def test_the_stub_names_the_registered_kinds() -> None:
    assert STUB.read_text(encoding="utf-8") == stub() + "\n", "run `python -m release.stubs`"
