"""Fuzz requests to Splunk's HTTP Event Collector."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forebay_contrib.splunk_hec.events import parse_events, parse_raw
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY, PushedRows
from tests.fuzz.http_bodies import MOST_BYTES, check_rows, limits, refused
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from typing import Any

_SOURCE = Http(listen="127.0.0.1:0", max_record_bytes=MOST_BYTES, query_parameters="time")
_HEADERS = [(TARGET_PATH, b"/services/collector"), (TARGET_QUERY, b"host=h&time=1")]
_EVENT = b'{"event":{"a":[1,"}{"]},"time":1.5,"host":"h","fields":{"r":"x","n":[1]}}'


def _rows(found: object, body: bytes) -> list[dict[str, Any]]:
    assert isinstance(found, PushedRows)
    # No byte is in two events.
    assert sum(len(one.data) for one in found.rejected) <= len(body)
    return check_rows(found, body)


@fuzzed(
    "splunk_events",
    valid=[
        _EVENT,
        _EVENT * 3,
        b'{"event":"caf\\u00e9"}\n{"event":null}\r\n{"event":5,"fields":null}',
        b'{"event":""}{}',
    ],
    words=[b"}{", b'"', b"\\", b'"\\ud800"', b"null", b"\xff", b'"event":', b"[" * 500, b"NaN", b",", b'"time":"'],
    attacks=[b"{}" * 300_000, b'{"event":1}' * 100_000, b'{"event":' * 100_000, b"}" * 500_000, b'"' * 500_001],
)
def test_any_events_are_rows_dead_letters_or_refused(body: bytes) -> None:
    found = refused(parse_events, _HEADERS, body, _SOURCE, limits())
    for row in () if found is None else _rows(found, body):
        if row["content_type"] == "application/json":
            json.loads(row["body"])
        row["body"].decode()


@fuzzed(
    "splunk_raw",
    valid=[b"line 1\nline 2\r\n\nline 3", b"x" * 300 + b"\n" * 60, b"\xef\xbb\xbfx\ny"],
    words=[b"\n", b"\xff", b"\0", b"\x1f\x8b\x08"],
    attacks=[b"\n" * 500_000, b"x\n" * 400_000],
)
def test_any_lines_are_rows_dead_letters_or_refused(body: bytes) -> None:
    found = refused(parse_raw, _HEADERS, body, _SOURCE, limits())
    if found is not None:
        _rows(found, body)
