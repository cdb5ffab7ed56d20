"""Fuzz the bodies of plain requests: JSON, lines of JSON, and text."""

from __future__ import annotations

import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
from typing import TYPE_CHECKING, Any, NoReturn

from receiver_runtime.receivers.http.requests.records import Plain, parse_plain
from tests.fuzz.http_bodies import MOST_BYTES, MOST_VALUES, check_taken, limits, refused
from tests.fuzz.target import fuzzed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_BLANKS = b" \t\r\n"
WORDS = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b"[]",
        b"{}",
        b",",
        b"null",
        b"true",
        b"NaN",
        b"-Infinity",
        b"1.5e-3",
        b"01",
        b".5",
        b"1.",
    ),
    *(b'"\\ud800"', b'"\\ud83d\\ude00"', b'{"a":1}', b'{"a":1}\n', b"\n\n", b"\x0b", b"//", b"/**/", b"'", b'"a\tb"'),
)
VALUES = (b'{"a": [1, "x", null, -2.5e3], "b": {"c": "caf\xc3\xa9 \\u00e9"}}', b'{"a":"\\"}{\\\\"}', b"{}")
MANY_LINES = b"\n".join(b'{"n":%d,"t":"x"}' % n for n in range(60)) + b"\n"


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def is_json(data: bytes, constant: Callable[[str], object] = _refuse) -> bool:
    """Return whether bytes are one JSON text, by Python's own parser."""
    try:
        json.loads(data.decode(), parse_constant=constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


def parsed(kind: bytes, body: bytes) -> Plain | None:
    headers = [(b"content-type", kind), (b"x-tenant", b"caf\xe9")]
    found = refused(parse_plain, headers, body, most_bytes=MOST_BYTES, limits=limits())
    if found is None:
        return None
    assert isinstance(found, Plain)
    rows = check_taken(headers, found, len(body))
    assert rows is not None
    records = bodies(found)
    assert rows.column("body").to_pylist() == records
    assert all(0 < len(record) <= MOST_BYTES for record in records)
    assert sum(map(len, records)) + sum(len(one.data) for one in found.rejected) <= len(body)
    return found


def bodies(plain: Plain) -> list[bytes]:
    found: Any = plain.bodies
    return found.to_pylist() if hasattr(found, "to_pylist") else list(found)


def lines_of(body: bytes) -> Sequence[bytes]:
    return [line.removesuffix(b"\r") for line in body.split(b"\n")]


@fuzzed(
    "http_json",
    valid=[*VALUES, b' [1, {}, "a"] ', b"[" + b",".join(VALUES) + b"]"],
    words=WORDS,
    attacks=[b"[" + b"[]," * (MOST_VALUES * 2) + b"[]]", b"[" * 100_000, b'{"a":' * 50_000, b"9" * 100_000],
)
def test_json_is_taken_whole_or_refused(body: bytes) -> None:
    found = parsed(b"application/json", body)
    if found is None:
        return
    records = bodies(found)
    assert all(is_json(record) for record in records)
    body = body.removeprefix(BOM_UTF8)
    text = body.strip(_BLANKS)
    is_array = text.startswith(b"[")
    if is_array and not is_json(text):
        # One bad element refuses no other.
        assert found.rejected
        assert all(one.data in body and not is_json(one.data) for one in found.rejected)
        return
    if not is_array and not is_json(text):
        # Lines of JSON: one bad line among them refuses no other.
        check_lines(found, body)
        return
    if is_array:
        assert len(records) + len(found.rejected) == len(json.loads(text, parse_int=str, parse_float=str))
        again = parsed(b"application/json", b"[" + b",".join(records) + b"]")
        assert again is not None
        assert bodies(again) == records
    else:
        assert records == [text]


@fuzzed(
    "http_json_lines",
    valid=[MANY_LINES, b"\n".join(VALUES), b'1\r\n\r\n[2]\n"x"'],
    words=WORDS,
    attacks=[b"\n" * (MOST_VALUES * 2), b"x\n" * (MOST_VALUES - 1), b"{" * 5000 + b"\n" + MANY_LINES],
)
def test_each_line_of_json_is_taken_or_rejected_alone(body: bytes) -> None:
    found = parsed(b"application/x-ndjson", body)
    if not body.startswith((BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)):
        check_lines(found, body.removeprefix(BOM_UTF8))


def check_lines(found: Plain | None, body: bytes) -> None:
    """Check that each line of a body is a record, or rejected alone."""
    lines = [stripped for line in lines_of(body) if (stripped := line.strip(_BLANKS))]
    good = [line for line in lines if len(line) <= MOST_BYTES and is_json(line)]
    if found is None:
        assert not good or len(lines) - len(good) > 10_000 or body.count(b"\n") > MOST_VALUES
        return
    assert bodies(found) == good
    assert [one.data for one in found.rejected] == [line for line in lines if line not in good]


@fuzzed(
    "http_text_lines",
    valid=[b"one\ntwo\r\n\nthree", b"\n".join(b"line %d" % n for n in range(60))],
    words=[b" ", b"\n ", b"x" * (MOST_BYTES + 1) + b"\n"],
)
def test_each_line_of_text_is_a_record(body: bytes) -> None:
    found = parsed(b"text/plain", body)
    if body.startswith((BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)) or is_json(body):
        # It is in another encoding, or a document: tests/unit/…/http/test_forms.py.
        return
    body = body.removeprefix(BOM_UTF8)
    lines = [line for line in lines_of(body) if line.strip(_BLANKS)]
    good = [line for line in lines if len(line) <= MOST_BYTES]
    if found is None:
        assert not good
    else:
        assert bodies(found) == good


@fuzzed(
    "http_content_type",
    valid=[
        b"application/json; charset=utf-8",
        b'text/plain;charset="us-ascii"',
        b"a/b+json",
        b"application/x-ndjson",
        b"image/png; a=b; charset=latin-1",
    ],
    words=[b"charset=", b"+json", b";", b"application/json"],
    attacks=[b"a/b+json;charset=" + b"x" * 9000],
)
def test_any_content_type_is_read_as_one_of_the_forms(kind: bytes) -> None:
    found = parsed(kind, b'{"a": 1}')
    if found is not None:
        assert bodies(found) == [b'{"a": 1}']
