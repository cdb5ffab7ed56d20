"""Test how reasons are told: each cause once and counted, on one line that ends with the root cause."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestration.status_page.reasons import causes, one_line


def test_causes_that_differ_in_values_are_one_and_the_first_row_stands_for_it() -> None:
    rows = [
        (5, "PythonException: invalid literal for int(): 'line 000049'\nTraceback"),
        (4, ""),
        (3, "the store is away"),
        (2, "PythonException: invalid literal for int(): 'line 000034'\nTraceback"),
        (1, "PythonException: invalid literal for int(): 'line 7'"),
    ]
    found = causes(rows, lambda row: row[1])
    assert [(cause.row[0], cause.and_more, cause.line) for cause in found] == [
        (5, " and 2 more", "PythonException: invalid literal for int(): 'line 000049'"),
        (3, "", "the store is away"),
    ]


def test_each_listener_s_own_address_is_shown() -> None:
    rows = ["listening on 127.0.0.1:8080", "listening on 127.0.0.1:8081", "listening on 127.0.0.1:8080"]
    assert [(cause.line, cause.more) for cause in causes(rows, str)] == [(rows[0], 1), (rows[1], 0)]


@given(st.lists(st.text("abc.:", min_size=1, max_size=30), min_size=1, max_size=200))
def test_a_long_line_keeps_its_first_and_its_last_word_and_cuts_none(words: list[str]) -> None:
    line = one_line(" ".join(words) + "\nmore")
    assert len(line) <= 400
    assert (line.split()[0], line.split()[-1]) == (words[0], words[-1])
    assert {word for word in line.split() if word != "…"} <= set(words)
