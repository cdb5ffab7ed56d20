"""Test how reasons are told: each cause once and counted, on one line."""

from __future__ import annotations

from orchestration.status_page.reasons import causes


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
