"""Hold the pictures in docs/images to the pages that show them and to the tests that make them (`make screenshots`)."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"
_PICTURE = re.compile(r"!\[([^\]]+)\]\(([^)\s]+)\)")
_MADE = re.compile(r'\.picture\(f?"([\w{}-]+)"\)')
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 300_000


def shown() -> set[Path]:
    """Return the files that README and the pages of docs/ show; each has a description."""
    found = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for _, link in _PICTURE.findall(page.read_text(encoding="utf-8")):
            found.add((page.parent / link).resolve())
    return found


def test_every_picture_is_shown_and_every_one_that_is_shown_is_there() -> None:
    there = set(IMAGES.iterdir())
    # Those elsewhere are curves, which a benchmark writes beside its page.
    assert there == {picture for picture in shown() if picture.is_relative_to(IMAGES)}
    assert there
    assert [picture for picture in shown() if not picture.is_file()] == []
    for picture in there:
        content = picture.read_bytes()
        assert content.startswith(_SIGNATURE), picture
        assert len(content) <= _MOST_BYTES, picture


def test_every_picture_is_made_by_a_test_of_the_pages() -> None:
    names = {
        name
        for path in (ROOT / "tests" / "e2e").glob("test_*.py")
        for name in _MADE.findall(path.read_text(encoding="utf-8"))
    }
    made = {name.replace("{mode}", mode) for name in names for mode in ("light", "dark", "phone")}
    assert {picture.stem for picture in IMAGES.iterdir()} <= made


def test_readme_has_a_picture() -> None:
    assert _PICTURE.search((ROOT / "README.md").read_text(encoding="utf-8"))
