"""Fuzz Elasticsearch's bulk requests, and the answers to them."""

from __future__ import annotations

import json

from forebay_contrib.elasticsearch.bulk import parse_bulk
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, TARGET_QUERY
from receiver_runtime.receivers.http.requests.route import Answered, AnsweredRows
from tests.fuzz.http_bodies import MOST_BYTES, check_rows, limits, refused
from tests.fuzz.target import fuzzed

_SOURCE = Http(listen="127.0.0.1:0", max_record_bytes=MOST_BYTES)
_HEADERS = [(TARGET_PATH, b"/i/_bulk"), (TARGET_QUERY, b"pipeline=p")]
_PAIR = b'{"create":{"_index":"a"}}\n{"message":"x","n":1}\n'


@fuzzed(
    "elasticsearch",
    valid=[
        _PAIR,
        _PAIR * 60,
        b'{"index":{"_id":"1","routing":"r","version":3}}\n{"a":{}}\n' * 3 + b'{"delete":{"_id":"1"}}\n',
        b'{"update":{"_id":1}}\n{"doc":{}}\n' + _PAIR,
    ],
    words=[b"\n", b"\r\n", b'{"delete":{"_id":"2"}}\n', b'"\\ud800"', b"null", b"\xff", b'"_id":', b"[" * 500, b"{}"],
    attacks=[b"{}\n" * 200_000, b'{"index":{}}\n' * 100_001, b'{"index":{}}\n' + b"[" * 1_000_000],
)
def test_any_bulk_request_is_refused_or_answered_item_by_item(body: bytes) -> None:
    found = refused(parse_bulk, _HEADERS, body, _SOURCE, limits())
    if found is None:
        return
    assert isinstance(found, AnsweredRows)
    rows = check_rows(found, body)
    assert all(isinstance(json.loads(row["body"]), dict) for row in rows)
    misfits = {0: "does not fit"} if rows else {}
    count = found.batch.num_rows
    answered = json.loads(found.answer(Answered(count, 0, len(found.rejected), misfits=misfits)).body)
    statuses = [item["status"] for one in answered["items"] for item in one.values()]
    assert set(statuses) <= {201, 400}
    assert answered["errors"] is (400 in statuses)
    # Rows that have a key of another one are answered too.
    assert statuses.count(201) >= count - len(misfits) - statuses.count(400)
    assert len(statuses) >= count + len(found.rejected)
