"""Test that a terminal of 80 columns shows every name whole, in a table if it fits, and in paragraphs if not."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.checks.findings import Finding, Health, findings_table
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table

LONG = "departures_by_carrier_and_origin_of_each_hour"


def shown(headings: list[str], rows: list[list[str]], *, width: int = 80, title: str = "") -> list[str]:
    out = io.StringIO()
    print_table(Console(file=out, highlight=False, width=width), headings, rows, title=title)
    return out.getvalue().splitlines()


def test_rows_that_fit_are_a_table() -> None:
    lines = shown(["pipeline", "state"], [["words", "RUNNING"]])
    assert [line.split() for line in lines if "words" in line] == [["words", "RUNNING"]]
    assert any("─" in line for line in lines)


def test_rows_that_do_not_fit_are_paragraphs_with_every_name_whole() -> None:
    headings = ["receiver", "state", "host", "last block", "rate"]
    rows = [[f"{LONG}/1", "ACTIVE", "host.of.this.long.name.example", "2026-01-01 12:00:00", "-"]]
    lines = shown(headings, rows, title="Receivers")
    assert [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] == [
        "Receivers",
        f"{LONG}/1",
        "  state ACTIVE, host host.of.this.long.name.example,",
        "  last block 2026-01-01 12:00:00",
    ]
    assert "rate" not in " ".join(lines), "a cell without a value is left out"


@pytest.mark.parametrize("width", [80, 20])
def test_no_part_of_a_name_becomes_an_emoji(width: int) -> None:
    assert "a:key:b" in "".join(shown([":x:", "state", "c"], [["a:key:b", "d:ok:", "e:no:"]], width=width))
    out = io.StringIO()
    Console(file=out).print("Key (item)=(a:key:b) already exists")
    assert out.getvalue() == "Key (item)=(a:key:b) already exists\n"


def test_no_rows() -> None:
    assert any(line.split() == ["none"] for line in shown(["pipeline", *[LONG] * 3], [], width=300))


@given(
    st.lists(
        st.lists(st.text("abc_/.:-0123", min_size=1, max_size=50), min_size=4, max_size=4), min_size=1, max_size=5
    ),
    st.integers(40, 120),
)
def test_no_cell_is_broken_or_cut_off_at_any_width(rows: list[list[str]], width: int) -> None:
    text = "\n".join(shown(["name", "state", "host", "queue"], rows, width=width))
    for row in rows:
        assert row[0] in text
        assert [cell for cell in row[1:] if cell != "-" and cell not in text] == []
    assert "…" not in text


@pytest.mark.parametrize("width", [80, 100])
def test_a_line_is_only_longer_than_the_terminal_if_one_cell_is(width: int) -> None:
    rows = [["words", *["x" * 25] * 3], [LONG, *["y" * 9] * 3]]
    assert max(map(len, shown(["name", "a", "b", "c"], rows, width=width))) <= width


@pytest.mark.parametrize("size", range(9, 20))
def test_the_comma_at_the_end_of_a_line_has_room(size: int) -> None:
    lines = shown(["name", "a", "b", "c"], [["words", "x" * 9, "y" * size, "z" * 20]], width=30)
    assert max(map(len, lines)) <= 30


def test_findings_are_below_each_other_with_the_way_out_on_a_line_of_its_own() -> None:
    """Check 80 columns: in columns, a path and its advice were broken into shards."""
    path = "/srv/forebay/of-this-department/blocks"
    found = [
        Finding("ports", Health.OK, "port 3000 is free for Dagster's UI", "not shown"),
        Finding(
            "block store", Health.FAILED, f"{path} can't be written: [Errno 13]", "Name another in FOREBAY_BLOCK_STORE."
        ),
    ]
    out = io.StringIO()
    Console(file=out, highlight=False, width=80).print(findings_table(found))
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "ok      ports: port 3000 is free for Dagster's UI",
        f"failed  block store: {path} can't be written:",
        "        [Errno 13]",
        "        Name another in FOREBAY_BLOCK_STORE.",
    ]
