"""Check that the table of sources matches the declarations, and that its links have targets."""

from __future__ import annotations

import re
from pathlib import Path

from receiver_runtime.sources.source_registry import source_class, source_kinds

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "sources"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_the_table_matches_the_declarations() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \[`(\w+)`\]\(\S+\) \| ([^|]*?) \| ?(?:`(\w+)`)? ?\|", PAGE, re.MULTILINE)
    assert {kind: (name, guarantee, extra or None) for kind, name, guarantee, extra in rows} == {
        kind: (
            source.__name__,
            "the receiver's" if kind == "custom" else "; or ".join(one.words for one in source.guarantees()),
            source.needs_extra,
        )
        for kind, source in ((kind, source_class(kind)) for kind in source_kinds())
    }


def test_its_links_have_targets() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert len(links) > len(source_kinds())
    assert [link for link in links if not (FOLDER / link).is_file()] == []


def test_every_page_on_a_source_is_linked() -> None:
    pages = {path.name for path in FOLDER.glob("*.md")} - {"README.md"}
    linked = {Path(link).name for link in re.findall(r"\]\(([^)#]+)\)", PAGE)}
    assert pages <= linked
