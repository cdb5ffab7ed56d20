"""Fuzz push requests to Loki, in JSON and in protobuf, and the labels within them."""

from __future__ import annotations

from forebay_contrib.loki.push import _MESSAGES, labels_in, parse_push
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.pushed import TARGET_PATH, PushedRows
from tests.fuzz.http_bodies import MOST_BYTES, check_rows, limits, refused
from tests.fuzz.target import fuzzed

_SOURCE = Http(listen="127.0.0.1:0", max_record_bytes=MOST_BYTES)
_IN_JSON = b'{"streams":[{"stream":{"job":"a"},"values":[["17","line",{"t":"x"}],["18","caf\\u00e9"]]}]}'
_LABELS = b'{job="web", path="a\\"b\\\\c\\n\\u00e9\\x41"}'


def _message() -> bytes:
    made = _MESSAGES["PushRequest"]()
    for labels in (_LABELS, b"{}"):
        stream = made.streams.add(labels=labels)
        entry = stream.entries.add(line=b"caf\xc3\xa9")
        entry.timestamp.seconds, entry.timestamp.nanos = 1_700_000_000, 5
        entry.metadata.add(name=b"trace", value=b"x")
    data: bytes = made.SerializeToString()
    return data


def _check(kind: bytes, body: bytes) -> None:
    # A Content-Encoding says that the body is decompressed already.
    headers = [(b"content-type", kind), (b"content-encoding", b"snappy"), (TARGET_PATH, b"/loki/api/v1/push")]
    found = refused(parse_push, headers, body, _SOURCE, limits())
    if found is not None:
        assert isinstance(found, PushedRows)
        for row in check_rows(found, body):
            assert dict(row["attributes"])["timestamp"].removeprefix("-").isdecimal()


@fuzzed(
    "loki_json",
    valid=[_IN_JSON, b'{"streams":[]}', b'{"streams":[{"stream":{},"values":[[1,"a"]]}]}'],
    words=[b'"\\ud800"', b"null", b"\xff", b'["1","x"],', b"[" * 500, b"{}", b'"streams":'],
    attacks=[b'{"streams":[' + b"[]," * 200_000 + b"[]]}", b'{"streams":' + b"[" * 500_000],
)
def test_any_json_is_rows_dead_letters_or_refused(body: bytes) -> None:
    _check(b"application/json", body)


@fuzzed(
    "loki_protobuf",
    valid=[_message(), _message() * 2, b""],
    words=[b"\x0a\x00", b"\x12\x00", b"\xff" * 9 + b"\x01", b"\x1a\x04\x0a\x00\x12\x00", b'{a="', b"\\"],
    attacks=[b"\x0a\x00" * 300_000, b"\x0a\xff\xff\x7f", b"\x0a" * 100_000],
)
def test_any_protobuf_is_rows_dead_letters_or_refused(body: bytes) -> None:
    _check(b"application/x-protobuf", body)


@fuzzed(
    "loki_labels",
    valid=[_LABELS, b"{}", b'{ "a b" = "\\U0001F600\\101" , }'],
    words=[b"\\", b'"', b"\\x", b"\\u", b"\\U", b",", b"=", b"{", b"}", b"\xff"],
    attacks=[b'{a="' + b"\\" * 100_000 + b'"}', b"{" + b"a" * 100_000 + b"}", b"{" + b'a="",' * 30_000 + b"}"],
)
def test_any_labels_are_text_or_an_error(text: bytes) -> None:
    try:
        found = labels_in(text)
    except ValueError:
        return
    for name, value in found.items():
        (name + value).encode()
