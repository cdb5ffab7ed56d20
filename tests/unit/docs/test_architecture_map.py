"""ARCHITECTURE.md's map has a line for each folder of ours, and for no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("forebay", "orchestration", "receiver_runtime", "tracker_store")
#: Below these the map has one line for all.
WHOLE = ("benchmarks", "docs", "examples", "migrations", "tests")


def test_each_folder_has_one_line_and_each_line_a_folder() -> None:
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
