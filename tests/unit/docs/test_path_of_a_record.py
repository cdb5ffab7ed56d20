"""Check that the page walks the path in both halves, with a link to the module of each step."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "explanation" / "path-of-a-record.md"
#: Steps 1 to 4 lead from `Receiver.store` to `add_block`, steps 5 to 7 from a boundary to `commit_output`.
HALVES = {"receiving": range(1, 5), "batch": range(5, 8)}


@pytest.mark.parametrize("half", HALVES)
def test_each_half_of_the_path_is_walked_through_modules_that_are_there(half: str) -> None:
    steps = dict(
        re.findall(r"^(\d)\. (.*?)(?=^\d\. |^[A-Z])", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    )
    text = "".join(steps[str(number)] for number in HALVES[half])
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if link.endswith((".py", ".sql"))]
    assert len(set(links)) >= 10
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
