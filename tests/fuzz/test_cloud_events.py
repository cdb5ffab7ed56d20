"""Fuzz CloudEvents in their three modes."""

from __future__ import annotations

import base64
import json

from forebay_contrib.cloud_events.events import (
    BATCHED,
    STRUCTURED,
    is_cloud_event,
    parse_cloud_events,
)
from receiver_runtime.receivers.http.requests.pushed import Pushed
from tests.fuzz.http_bodies import MOST_BYTES, check_taken, limits, refused
from tests.fuzz.target import fuzzed
from tests.fuzz.test_heads import headers_of

_EVENT = {
    "specversion": "1.0",
    "id": "a-1",
    "source": "/things/é",
    "type": "com.example.made",
    "time": "2026-01-31T12:00:00.5Z",
    "subject": "s",
    "count": 3,
    "isnew": True,
    "datacontenttype": "application/json",
    "data": {"a": [1, "x"]},
}
_ENCODED = {
    **{k: v for k, v in _EVENT.items() if k != "data"},
    "id": "a-2",
    "data_base64": base64.b64encode(b"\0\xff").decode(),
}
_TEXT = {**_EVENT, "id": "a-3", "datacontenttype": "text/plain", "data": "hello"}
_EVENTS = [json.dumps(event).encode() for event in (_EVENT, _ENCODED, _TEXT)]
_WORDS = (
    *(
        b'"id":',
        b'"data":',
        b'"data_base64":"AA=="',
        b'"time":"x"',
        b'"specversion":"0.3"',
        b'"\\ud800"',
        b'"\\u0000"',
        b"null",
    ),
    *(b"NaN", b"{", b"}", b"[", b"]", b",", b'"', b'"ID":1', b'"":1', b'"a\\n":1', b"\\u0085"),
)
_HEADS = (
    b"ce-id: 1\nce-source: /a%20b\nce-type: t\nce-specversion: 1.0\nce-more: x\ncontent-type: text/plain\n\nbody",
    b'ce-id: "quoted \\" id"\nce-source: %C3%A9\nce-type: t\nce-specversion: 1.0\nce-more: x\n\n',
)


def _taken(headers: list[tuple[bytes, bytes]], body: bytes) -> Pushed | None:
    found = refused(parse_cloud_events, headers, body, most_bytes=MOST_BYTES, limits=limits())
    if found is None:
        return None
    assert isinstance(found, Pushed)
    check_taken(headers, found, max(1, len(body)))
    keys = [record.key for record in found.records]
    assert len(set(keys)) == len(keys)
    for record in found.records:
        assert record.key is not None
        source, _, name = record.key.partition("\n")
        assert source
        assert name == record.id
        assert "\n" not in name
        assert record.body is None or len(record.body) <= MOST_BYTES
        for value in (record.content_type or "", *(record.attributes or {}).values()):
            assert "\0" not in value
            value.encode()
    return found


def _headers(kind: str) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", kind.encode())]


@fuzzed(
    "cloud_event_structured",
    valid=_EVENTS,
    words=_WORDS,
    attacks=[
        _EVENTS[0].replace(b"com.example", b"\\u0001" * 5000),
        b'{"time":"' + b"x" * 50_000 + b'",' + _EVENTS[2][1:],
        b'{"' + b"\xf0\x9f\x98\x80" * 20_000 + b'":1,' + _EVENTS[2][1:],
        b'{"data":' + b"[" * 90_000,
    ],
)
def test_a_structured_event_is_the_same_in_a_batch(body: bytes) -> None:
    found = _taken(_headers(STRUCTURED), body)
    batch = _taken(_headers(BATCHED), b"[" + body.strip(b" \t\r\n") + b"]")
    if found is not None:
        assert len(found.records) == 1
        assert batch == found


@fuzzed(
    "cloud_event_batched",
    valid=[b"[" + b",".join(_EVENTS) + b"]", b" [ ] "],
    words=_WORDS,
    attacks=[b"[" + b"{}," * 9000 + b"{}]", b"[" + b",".join([_EVENTS[0]] * 300) + b"]"],
)
def test_each_event_of_a_batch_is_taken_or_kept_aside(body: bytes) -> None:
    found = _taken(_headers(BATCHED), body)
    if found is not None:
        try:
            sent = json.loads(body)
        except (ValueError, RecursionError):
            # One bad event refuses no other.
            assert found.rejected
            assert all(one.data in body for one in found.rejected)
            return
        assert isinstance(sent, list)
        assert len(found.records) + len(found.rejected) <= len(sent)
        aside = [json.loads(one.data) for one in found.rejected]
        assert all(one in sent for one in aside)
        taken = [event for event in sent if event not in aside]
        assert {record.id for record in found.records} == {event["id"] for event in taken}


@fuzzed(
    "cloud_event_binary",
    valid=_HEADS,
    words=[
        b"\nce-",
        b"ce-id: 1",
        b"%",
        b"%ff",
        b"%00",
        b'"',
        b"\\",
        b"content-type: application/cloudevents+xml\n",
        b"ce-data: x\n",
        b"ce-datacontenttype: a\n",
    ],
    attacks=[
        b"ce-time: " + b"\xf0\x9f\x98\x80" * 9000 + b"\n" + _HEADS[0],
        b"ce-" + b"x" * 60_000 + b": 1\n" + _HEADS[0],
    ],
)
def test_an_event_in_headers_is_taken_or_refused(request: bytes) -> None:
    lines, _, body = request.partition(b"\n\n")
    headers = list(headers_of(lines))
    if is_cloud_event(headers):
        found = _taken(headers, body)
        is_binary = not any(name == b"content-type" and b"cloudevents" in value.lower() for name, value in headers)
        if found is not None and is_binary:
            [record] = found.records
            assert (record.body or b"") == body
