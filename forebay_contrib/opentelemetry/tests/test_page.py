"""Check that the page lists each signal's columns, with their types, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay_contrib.opentelemetry.otlp_columns import LOG_COLUMNS, METRIC_COLUMNS, SHARED, SPAN_COLUMNS, Columns

PAGE = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
_SQL = {
    "int64": "BIGINT",
    "int32": "INT",
    "bool": "BOOLEAN",
    "timestamp[us, tz=UTC]": "TIMESTAMP",
    "map<string, string>": "MAP<STRING, STRING>",
}


def spark_type(text: str) -> str:
    if inner := re.fullmatch(r"list<item: (.*)>", text):
        return f"ARRAY of {spark_type(inner[1])}"
    return "STRUCT" if text.startswith("struct<") else _SQL.get(text, text.upper())


@pytest.mark.parametrize(
    ("title", "columns"),
    [
        ("Logs", LOG_COLUMNS[: -len(SHARED)]),
        ("Traces", SPAN_COLUMNS[: -len(SHARED)]),
        ("Metrics", METRIC_COLUMNS[: -len(SHARED)]),
        ("In each", SHARED),
    ],
)
def test_the_page_lists_the_columns(title: str, columns: Columns) -> None:
    table = PAGE.split(f"\n### {title}\n")[1].split("\n#")[0]
    assert re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE) == [
        (name, spark_type(kind)) for name, kind in columns
    ]
