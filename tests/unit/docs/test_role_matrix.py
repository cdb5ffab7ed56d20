"""Hold the page of roles to what the roles are."""

from __future__ import annotations

from pathlib import Path

from tracker_store.install.role_matrix import describe

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "roles.md"


def test_the_page_is_generated_from_the_roles() -> None:
    assert PAGE.read_text(encoding="utf-8") == describe(), (
        "the roles have changed: forebay db roles --matrix > docs/reference/roles.md"
    )
