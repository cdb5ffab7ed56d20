"""Test what the site does to pages: navigation, links that leave docs/, fences; and the pages that name tests."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from release.docs_site import DOCS, OUTSIDE, ROOT, navigation, outside_files, prepared, text_of

if TYPE_CHECKING:
    from pathlib import Path


def pages_of(entry: object) -> list[str]:
    """Return the pages of an entry of the navigation, in its order."""
    if isinstance(entry, str):
        return [entry]
    if isinstance(entry, dict):
        return [page for value in entry.values() for page in pages_of(value)]
    assert isinstance(entry, list)
    return [page for value in entry for page in pages_of(value)]


def test_the_navigation_has_every_page_once() -> None:
    pages = pages_of(navigation())
    assert sorted(pages) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_a_new_page_is_in_its_section_and_known_ones_come_first(tmp_path: Path) -> None:
    for name in ("aaa", "cli", "sinks", "zzz"):
        path = tmp_path / "reference" / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text("# A page\n", encoding="utf-8")
    [section] = [
        entry["Reference"] for entry in navigation(tmp_path) if isinstance(entry, dict) and "Reference" in entry
    ]
    assert section == [f"reference/{name}.md" for name in ("cli", "sinks", "aaa", "zzz")]


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("how-to/sql.md", "../reference/schema.md", "../reference/schema.md"),
        ("how-to/sql.md", "#below", "#below"),
        ("how-to/sql.md", "https://example.com/a.md", "https://example.com/a.md"),
        ("security.md", "../SECURITY.md", f"{OUTSIDE}/SECURITY.md"),
        ("how-to/deploy.md", "../../deploy/dagster.yaml", f"../{OUTSIDE}/deploy/dagster.yaml.md"),
        ("how-to/deploy.md", "../../deploy", f"../{OUTSIDE}/deploy.md"),
        ("how-to/deploy.md", "../../ARCHITECTURE.md#processes", f"../{OUTSIDE}/ARCHITECTURE.md#processes"),
        ("index.md", "how-to/sources", "how-to/sources/README.md"),
        ("index.md", "missing.py", "missing.py"),
    ],
)
def test_a_link_that_leaves_docs_leads_to_a_page_of_the_site(page: str, link: str, expected: str) -> None:
    assert prepared(f"[a]({link})", (DOCS / page).parent, page) == f"[a]({expected})"


def test_every_file_outside_has_a_page_and_its_own_links_lead_back() -> None:
    outside = outside_files()
    assert outside[f"{OUTSIDE}/ARCHITECTURE.md"] == ROOT / "ARCHITECTURE.md"
    assert "](../docs/" not in text_of(ROOT / "ARCHITECTURE.md")
    assert "](../explanation/driver-log.md)" in text_of(ROOT / "ARCHITECTURE.md")
    assert text_of(ROOT / "deploy" / "dagster.yaml").startswith("# deploy/dagster.yaml\n\n````yaml\n")
    assert "- `compose.yaml`" in text_of(ROOT / "deploy")


@pytest.mark.parametrize(
    ("fence", "expected"),
    [
        ("```sql runnable", "```sql"),
        ("   ```sh runnable", "   ```sh"),
        ("```python file=pipelines.py", '```python title="pipelines.py"'),
        ("```mermaid", "```mermaid"),
        ("```", "```"),
    ],
)
def test_words_for_tests_are_not_shown(fence: str, expected: str) -> None:
    assert prepared(f"{fence}\nSELECT 1\n```\n", DOCS, "index.md").splitlines()[0] == expected


def test_each_guarantee_names_a_test_that_exists() -> None:
    page = (DOCS / "explanation" / "guarantees.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .+ \| .+ \| `(test_\w+)` \|$", page, re.MULTILINE)
    table = page.split("## What is not guaranteed")[0]
    assert len(rows) == len([line for line in table.splitlines() if line.startswith("| ")]) - 1
    defined = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert set(rows) <= defined


def test_every_link_of_the_index_has_a_target() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)", (DOCS / "index.md").read_text(encoding="utf-8"))
    assert len(links) > 40
    assert [link for link in links if not (DOCS / link).exists()] == []
