"""Check that the pages on sources and sinks of your own show the examples as they are; `make examples` tests those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import forebay.receiver
import forebay.sink

ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs" / "how-to"
SINK = (HOW_TO / "add-a-sink.md").read_text(encoding="utf-8")
SOURCE = (HOW_TO / "add-a-source.md").read_text(encoding="utf-8")


def _flat(text: str) -> str:
    """Return a text without indentation and blank lines: a method stands at the margin of the page."""
    return re.sub(r"^\s+", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("page", "example", "most"), [(SINK, "forebay-duckdb", 7), (SOURCE, "forebay-websocket", 6)], ids=["sink", "source"]
)
def test_its_code_is_that_of_the_example_which_has_ten_files_at_most(page: str, example: str, most: int) -> None:
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    files = [path for path in (ROOT / "examples" / example).rglob("*") if path.suffix in (".py", ".toml", ".md")]
    texts = [_flat(path.read_text(encoding="utf-8")) for path in files]
    assert len(blocks) == most
    assert [block for block in blocks if not any(_flat(block) in text for text in texts)] == []
    assert len(files) <= 10


def test_what_the_page_on_sinks_names_of_the_interface_is_exported() -> None:
    [table] = re.findall(r"^\| from `forebay.sink`.*?\n\n", SINK, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", table)) - {"_batch_time"}
    assert named <= set(forebay.sink.__all__)


def test_what_the_page_on_sources_hands_records_over_by_is_exported() -> None:
    [table] = re.findall(r"^\| the sender .*?\n\n", SOURCE, re.MULTILINE | re.DOTALL)
    columns = [row.split("|")[3] for row in table.strip().splitlines()[2:]]
    assert {name for column in columns for name in re.findall(r"`(\w+)", column)} <= set(forebay.receiver.__all__)
