"""Check that ARCHITECTURE.md's map has a line for each of our folders, and for no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("forebay", "orchestration", "receiver_runtime", "tracker_store")
#: These folders have one line each in the map, without lines for their subfolders.
WHOLE = ("benchmarks", "docs", "examples", "migrations", "release", "tests")


def test_map_lines_and_folders_match() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = page[page.index("## Folders") : page.index("## State machines")]
    named = re.findall(r"^\| \[([\w/]+)/\]\(([\w/]+)\) \| \S", table, re.MULTILINE)
    assert [name for name, link in named if name != link] == []
    folders = {
        path.parent.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for pattern in ("*.py", "*.sql")
        for path in (ROOT / package).rglob(pattern)
    }
    assert sorted(name for name, _ in named) == sorted([*folders, *WHOLE])
