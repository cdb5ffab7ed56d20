"""Check that docs/parity.md has a line for each behaviour of the original, and that every test that it names exists."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
#: How many rows each group has: R01 to R05, S01 to S11 and so on. A row is a behaviour of Spark Streaming 3.2.
GROUPS = {
    "R": 5,
    "S": 11,
    "B": 8,
    "C": 6,
    "H": 5,
    "L": 10,
    "T": 8,
    "K": 13,
    "P": 3,
    "J": 8,
    "M": 8,
    "O": 5,
    "X": 11,
    "W": 22,
}
ROWS = [f"{group}{number:02}" for group, count in GROUPS.items() for number in range(1, count + 1)]
#: Rows of what Forebay does not have; their line says why.
WITHOUT_TEST = {"H03"}
POINTS = 36
POINTS_WITHOUT_TEST = {6}

_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
_LINE = re.compile(r"^\| (?P<rows>[A-Z]\d\d(?:, [A-Z]\d\d)*) \|(?P<cells>.*) \|$", re.MULTILINE)


def cells_of_rows() -> dict[str, list[str]]:
    """Return the cells after the first of each row's line: the original, Forebay, tests."""
    found = {}
    for line in _LINE.finditer(PAGE):
        for row in line["rows"].split(", "):
            found[row] = [cell.strip() for cell in line["cells"].split(" | ")]
    return found


def without_tests(cell: str) -> str:
    """Return what a cell of tests says beside them."""
    return _TEST.sub("", cell).replace("<br>", "").strip()


def test_every_test_that_is_named_exists() -> None:
    named = _TEST.findall(PAGE)
    assert len(named) > len(ROWS)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file()
        or not re.search(rf"^ *def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_every_row_of_every_group_has_one_line() -> None:
    lines = Counter(row for line in _LINE.finditer(PAGE) for row in line["rows"].split(", "))
    assert lines == Counter(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_a_line_says_what_both_do_and_names_its_tests_and_nothing_else(row: str) -> None:
    original, forebay, tests = cells_of_rows()[row]
    assert original.strip()
    assert forebay.strip()
    if row in WITHOUT_TEST:
        assert re.fullmatch(r"none: \w.*", tests)
    else:
        assert _TEST.search(tests)
        assert without_tests(tests) == ""


def test_a_line_names_no_test_twice() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert [line for line in lines if max(Counter(_TEST.findall(line)).values(), default=0) > 1] == []


def test_every_point_has_its_line_with_its_tests_and_nothing_else() -> None:
    points = {
        int(number): (hole, tests)
        for number, hole, tests in re.findall(r"^\| (\d+) \| (.*) \| (.*) \|$", PAGE, re.MULTILINE)
    }
    assert list(points) == list(range(1, POINTS + 1))
    for number, (hole, tests) in points.items():
        assert hole.strip()
        if number in POINTS_WITHOUT_TEST:
            assert re.fullmatch(r"none: \w.*", tests), number
        else:
            assert _TEST.search(tests), number
            assert without_tests(tests) == "", number
