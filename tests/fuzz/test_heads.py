"""Fuzz what is read of a request's head: keys, framing, hosts, origins, and the query."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.app import _is_buffered, _parameters
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.framing_checks import body_framing, check_framing
from receiver_runtime.receivers.http.requests.idempotency_key import key_of
from receiver_runtime.receivers.http.requests.peer_checks import check_origin, missing_host
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from receiver_runtime.receivers.http.requests.web_hooks import permission
from receiver_runtime.receivers.storable_keys import _short, storable
from tests.fuzz.http_bodies import check_refusal
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.requests.pushed import Headers

_HEADS = (
    b"host: localhost:8080\norigin: http://localhost:8080\ncontent-length: 12\nexpect: 100-continue",
    b"host: [::1]:80\norigin: null\ntransfer-encoding: chunked",
    b"host: a\nwebhook-request-origin: events.example\nupgrade: websocket",
)
_HTTP = Http(listen="127.0.0.1:0", webhook_origins=("events.example",))


def headers_of(lines: bytes) -> Headers:
    """Return headers as a server hands them on: names in lower case, no line ends in values."""
    pairs = (line.partition(b":") for line in lines.split(b"\n"))
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs if name.strip()]


@fuzzed(
    "http_head",
    valid=_HEADS,
    words=[b"\nhost: b", b"\norigin: http://b", b"content-length:", b"[", b"]", b"://"],
    attacks=[b"content-length: " + b"9" * 60_000, b"origin: http://" + b"a" * 60_000],
)
def test_any_head_is_read_or_refused(lines: bytes) -> None:
    headers = headers_of(lines)
    framing = body_framing(headers)
    assert framing.length is None or framing.length >= 0
    missing_host(headers, "1.1")
    for check in (check_framing, lambda head: check_origin(head, _HTTP)):
        try:
            check(headers)
        except RefusedError as error:
            check_refusal(error, frozenset({400, 403, 501}))
    try:
        granted = permission(headers, _HTTP.webhook_origins)
    except PushRefusedError as error:
        check_refusal(error)
    else:
        for name, value in (granted or {}).items():
            assert not {"\r", "\n", "\0"} & {*name, *value}


@fuzzed(
    "idempotency_key",
    valid=[b'"8e03978e-40d5-43dd-bc93-6894a57f9324"', b"order 17", b'""', b'"a"b"'],
    attacks=[b"k" * 255, b"k" * 256, b"\xed\xa0\x80", b"a\x1fb", b"k" * 60_000],
)
def test_a_key_is_printable_and_bounded_or_refused(value: bytes) -> None:
    try:
        key = key_of(value.decode("latin-1").strip())
    except RefusedError as error:
        check_refusal(error)
        return
    assert key is not None
    assert 1 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    # Neither form of a key in the driver log can be another sender's.
    assert "\x1f" not in key


@fuzzed("stored_key", valid=[b"source\nid", b"otlp 1234", b"scope\x1fkey"], attacks=[b"\0", b"\x1f", b"k" * 501])
def test_any_text_is_stored_as_a_key_that_the_driver_log_takes(data: bytes) -> None:
    key = data.decode("utf-8", "replace")
    [stored] = storable([key]).to_pylist()
    assert stored == _short(key)
    assert "\0" not in stored
    assert not stored.startswith("\x1f")
    assert len(stored.encode()) <= 500


@fuzzed(
    "http_query",
    valid=[b"ack=buffered", b"ack=registered", b"", b"ack=buffered&ack="],
    words=[b"&", b"ack", b"%00"],
    attacks=[b"&" * 60_000, b"a=1&" * 15_000, b"ack=" + b"x" * 60_000],
)
def test_any_query_is_read_or_refused(query: bytes) -> None:
    try:
        _is_buffered(_parameters(query))
    except RefusedError as error:
        check_refusal(error)
