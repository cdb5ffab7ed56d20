"""Test how a record is shown: text as text, and bytes that are none in a form that says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from forebay.cli.commands.records.record_lines import record_line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"id": 7}', '{"id": 7}'),
        ("é".encode(), "é"),
        (b"\xff\x00", {"base64": "/wA="}),
        (b"", ""),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01 00:00:00+00:00"),
        (None, None),
        ([b"a", b"\xff"], ["a", {"base64": "/w=="}]),
    ],
)
def test_bytes_are_shown_as_text_where_they_are_text(value: object, shown: object) -> None:
    assert json.loads(record_line({"body": value})) == {"body": shown}
