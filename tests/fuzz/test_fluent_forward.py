"""Fuzz the Forward protocol: streams of messages, however they are cut, and PINGs."""

from __future__ import annotations

import gzip
import json
import struct
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from forebay_contrib.fluent_forward.handshake import Handshake
from forebay_contrib.fluent_forward.messages import MessageSplitter
from forebay_contrib.fluent_forward.records import Limits, Origin, parse
from forebay_contrib.fluent_forward.scanning import NotMessagePackError, TooLongError
from forebay_contrib.fluent_forward.tests.forward_client import encode, entry, event_time, packed
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from forebay_contrib.fluent_forward.records import Parsed

_MOST_BYTES = 2**14
_LIMITS = Limits(message=_MOST_BYTES, record=2**12, rows=2**16)
_ORIGIN = Origin("203.0.113.7", 1_700_000_000_000_000)
_RECORD = {"log": "GET /", "n": [1, -2, 2**40, 1.5, True, None], "k": {"pod": "ü", "bytes": b"text"}}
_TWICE = b"\x82\xa1a\x01\xa1a\x02"
_MESSAGES = [
    encode(["app", event_time(1, 2), _RECORD, {"chunk": "c1"}]),
    encode(
        ["app", [entry(1), [5, {}], [[event_time(9), {"m": 1}], _RECORD], [None, {"t": event_time(3)}]], {"size": 4}]
    ),
    encode(["app", [[[event_time(7, 8), {}], _RECORD], [[event_time(9), {"m": 1}], {}]]]),
    encode(["app", packed(entry(1), entry(2)) + b"\x92\x01" + _TWICE, {"chunk": b"\xff", "compressed": "text"}]),
    encode(["app", gzip.compress(packed(entry(1), entry(2)), mtime=0), {"chunk": "c2", "compressed": "gzip"}]),
    encode(["app", 1.5, {"x": float("nan"), "y": msgspec.msgpack.Ext(-1, b"\0\0\0\1"), 7: "number"}]),
    b"\xc0\xc0",
    encode(["app", [[1e300, _RECORD], [[-1e300, {}], {}]], {"chunk": "c3"}]),
    encode({"no": "message"}),
]
_WORDS = [
    *(b"\xc1", b"\xd7\x00", b"\x92\xd7\x00", b"\xc7\x08\x00", b"\xd6\xff", b"\xc4\x01\xff", b"\xa1\xff", b"\x81\xa1a"),
    *(b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xdc\0\2"),
    *(b"\xca\x7f\xc0\0\0", b"\xcb\x7f\xf0\0\0\0\0\0\0", b"\x90" * 300, b"\x91" * 300, b"\x81\x01" * 150),
    b"\xcb" + struct.pack(">d", 1e300),
    *(encode({"chunk": "c"}), encode({"compressed": "gzip"}), _TWICE, encode(_RECORD)),
]


def _read(data: bytes, step: int) -> tuple[list[Parsed], str | None]:
    splitter = MessageSplitter(_MOST_BYTES)
    found: list[Parsed] = []
    try:
        for begin in range(0, len(data), step):
            splitter.take(data[begin : begin + step])
            while (message := splitter.next_message()) is not None:
                found.append(parse(message, _ORIGIN, _LIMITS))
            # Nothing is held that is longer than a message, and the read that showed it.
            assert splitter.held_bytes <= _MOST_BYTES + step
    except (NotMessagePackError, TooLongError) as error:
        return found, type(error).__name__
    return found, None


def _content(parsed: Parsed) -> tuple[Any, ...]:
    letters = [(letter.reason, letter.data) for letter in parsed.rows.letters]
    return parsed.ack, parsed.key, letters, parsed.rows.batch().to_pydict()


def _loaded(text: str) -> object:
    """Return the pairs of a JSON text, of names that are there twice too."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(text, object_pairs_hook=list, parse_constant=refuse)


@fuzzed(
    "fluent_forward_stream",
    valid=[*_MESSAGES, b"".join(_MESSAGES)],
    words=_WORDS,
    attacks=[
        b"\x93\xa1t" + b"\xdd\x00\x00\x2f\x00" + b"\xc0" * 0x2F00 + b"\x80",
        b"\x93\xa1t\x01\x81\xa1a" + b"\x91" * 4000 + b"\xc0",
        encode(["t", packed(*([1, {}] for _ in range(4000)))]),
        encode(["t" * 3000, [[1, {}] for _ in range(100)]]),
        encode(["t", gzip.compress(bytes(2**20)), {"compressed": "gzip", "chunk": "c"}]),
        encode(["t", 1, {"x": ["\0" * 3000]}]),
        encode(["t", 1, {"x": [[] for _ in range(4000)]}]),
    ],
)
def test_a_stream_becomes_rows_and_dead_letters_however_it_is_cut(data: bytes) -> None:
    found, ended = _read(data, len(data) or 1)
    contents = [_content(parsed) for parsed in found]
    cut, cut_ended = _read(data, 7)
    assert ([_content(parsed) for parsed in cut], cut_ended) == (contents, ended)
    for parsed in found:
        rows = parsed.rows
        assert parsed.fault is None
        assert rows.nbytes <= _LIMITS.rows or not rows.records
        assert len(rows.records) == sum(rows.counts)
        for text in rows.batch().column("record").to_pylist():
            assert len(text.encode()) <= _LIMITS.record
            _loaded(text)
        for letter in rows.letters:
            assert letter.why
            assert len(letter.data) <= len(data)


@fuzzed(
    "fluent_forward_ping",
    valid=[
        encode(["PING", "host", b"salt", "0" * 128, "user", "0" * 128]),
        encode(["PING", "host", "salt", "0" * 128, "", ""]),
    ],
    words=_WORDS,
)
def test_no_ping_without_the_key_is_accepted(data: bytes) -> None:
    splitter = MessageSplitter(_MOST_BYTES)
    splitter.take(data)
    with suppress(NotMessagePackError, TooLongError):
        if (message := splitter.next_message()) is not None:
            for passwords in ({}, {b"user": b"password"}):
                answer = Handshake([b"key", b"older key"], passwords, "forebay").answer(message.data)
                # Fluent Bit has room for 31 bytes.
                assert answer.refusal is not None
                assert len(answer.refusal) <= 31
