"""Check that every test named in docs/parity.md exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
DRIVER_LOG = [
    *("T01", "T02", "T03", "T04", "T05", "T06", "T07", "T08"),
    *("K07", "K08", "K09"),
    *("M05", "M06"),
    *("W01", "W02", "W03", "W04", "W06", "W07", "W08", "W09", "W10", "W11", "W14", "W21"),
    "J05",
]
POINTS = 36


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) > len(DRIVER_LOG)
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file()
        or not re.search(rf"^ *def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_every_row_of_the_driver_log_has_its_line_and_a_test() -> None:
    lines = {match[1]: match[0] for match in re.finditer(r"^\| ([TKMJW]\d\d) \|.*$", PAGE, re.MULTILINE)}
    assert [row for row in DRIVER_LOG if row not in lines] == []
    assert [row for row in DRIVER_LOG if "::test_" not in lines[row]] == []


def test_every_point_has_its_line() -> None:
    numbers = [int(number) for number in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, POINTS + 1))
