"""Test what is kept of a text that is too long, and that no other module has a rule of its own for errors."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import tracker_store
from tracker_store.long_texts import one_line, shortened, stored

ROOT = Path(tracker_store.__file__).parent.parent
WORDS = st.lists(st.text("abc.:", min_size=1, max_size=30), min_size=1, max_size=200)
# An error, or what a program said, of which only the beginning is kept; `line[:1]` looks at the first character.
CUT = re.compile(
    r"(?:str|repr)\((?:difference|error|failure|raised)\)\[:"
    r"|\b(?:away|cause|detail|error|line|message|reason)\[:(?!1\])"
    r"|\"\[:[A-Z0-9_]|\)\[:_?LONGEST"
)


@given(WORDS)
def test_a_long_line_keeps_its_first_and_its_last_word_and_cuts_none(words: list[str]) -> None:
    line = one_line(" ".join(words) + "\nmore", 400)
    assert len(line) <= 400
    assert (line.split()[0], line.split()[-1]) == (words[0], words[-1])
    assert {word for word in line.split() if word != "…"} <= set(words)


def test_the_line_of_a_text_that_begins_with_empty_lines_says_something() -> None:
    assert one_line("\n  \nno such table \n at line 1", 400) == "no such table"


@given(WORDS, st.integers(100, 2_000), st.integers(100, 2_000))
def test_a_text_that_is_shortened_twice_keeps_both_ends(words: list[str], first: int, second: int) -> None:
    text = shortened(shortened(" ".join(words), first), second)
    assert len(text) <= second
    assert (text.split()[0], text.split()[-1]) == (words[0], words[-1])


@given(WORDS, st.text("ab \n", max_size=3_000))
def test_what_is_stored_has_the_same_first_line_as_the_text(words: list[str], rest: str) -> None:
    line = " ".join(words)
    kept = stored(f"{line}\n{rest}", 2_000)
    assert len(kept) <= 2_000
    first, _, after = kept.partition("\n")
    assert first == shortened(line, 2_000)
    assert rest.startswith(after)
    assert len(kept) == min(2_000, len(f"{first}\n{rest}"))


def test_there_is_one_rule() -> None:
    packages = ("forebay", "forebay_contrib", "orchestration", "receiver_runtime", "tracker_store")
    modules = [path for package in packages for path in (ROOT / package).rglob("*.py") if "tests" not in path.parts]
    found = {str(path.relative_to(ROOT)): CUT.search(path.read_text("utf-8")) for path in modules}
    assert [name for name, cut in found.items() if cut is not None] == []
    assert CUT.search("Failure(kind, message[:LONGEST])")
