"""Check that docs/how-to/add-a-sink.md shows the example as it is: `make sink-example` installs and tests that."""

from __future__ import annotations

import re
from pathlib import Path

import forebay.sink

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "add-a-sink.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "forebay-duckdb"


def flat(text: str) -> str:
    """Return a text without indentation and blank lines: a method stands at the margin of the page."""
    return re.sub(r"^\s+", "", text, flags=re.MULTILINE)


def test_its_code_is_that_of_the_example() -> None:
    blocks = re.findall(r"^```(?:python|toml)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    files = [flat(path.read_text(encoding="utf-8")) for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml")]
    assert len(blocks) == 7
    assert [block for block in blocks if not any(flat(block) in text for text in files)] == []


def test_what_it_names_of_the_interface_is_exported() -> None:
    [table] = re.findall(r"^\| from `forebay.sink`.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`(\w+)`", table)) - {"_batch_time"}
    assert named <= set(forebay.sink.__all__)
