"""Check how bodies become records: the fast path and the slow path agree, and sent data is not changed."""

from __future__ import annotations

import json
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE
from typing import TYPE_CHECKING, NoReturn, cast

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from receiver_runtime.receivers.http.acknowledgement import WaitingRequest, batch_of
from receiver_runtime.receivers.http.requests import records as http_records
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED, ParsingLimits
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.records import (
    _COMPRESSED,
    _are_objects,
    _one_by_one,
    lines_at_once,
    lines_column,
    parse_plain,
)
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

LINES = [(b"content-type", b"application/x-ndjson")]
ARRAY = [(b"content-type", b"application/json")]
MOST = 2**20

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=5), values, max_size=4)
# Random sequences of pieces of JSON and of almost-JSON.
scraps = st.lists(
    st.sampled_from([b"{", b"}", b"[", b"]", b'"', b"a", b'"a"', b":", b",", b"1", b" ", b"\n", b"\\", b"\xff", b"{}"]),
    max_size=12,
).map(b"".join)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def is_json(line: bytes) -> bool:
    """Check strictly: Python accepts NaN and Infinity as JSON."""
    try:
        json.loads(line.decode(), parse_constant=_refuse)
    except ValueError:
        return False
    return True


def are_objects(lines: Sequence[bytes], body: bytes) -> bool:
    return all(line[:1] == b"{" and line[-1:] == b"}" for line in lines) and _are_objects(len(lines), body)


@settings(deadline=None)
@given(st.lists(objects, min_size=1, max_size=8), st.booleans())
def test_objects_are_parsed_at_once(found: Sequence[object], ascii_only: bool) -> None:
    lines = [json.dumps(value, ensure_ascii=ascii_only).encode() for value in found]
    body = b"\n".join(lines)
    # What the parser of bodies does not accept, such as half of a surrogate pair, is parsed line by line.
    if are_objects(lines, body):
        assert all(is_json(line) for line in lines)
    assert parse_plain(LINES, body, most_bytes=MOST).bodies == lines


@pytest.mark.search
@settings(max_examples=examples(500), deadline=None)
@given(st.lists(scraps, min_size=1, max_size=6))
@example([b'{"a":', b"{}}", b"{}{}"])
@example([b'{"a":{}', b'{"b":1}}', b"{}{}"])
@example([b'{"a":"}', b'{"}'])
@example([b'{"a": NaN}', b'{"b": -Infinity}'])
@example([b'{"a":[{}', b"{}]}", b"{},{}"])
@example([b'{"a": "\xff"}'])
@example([b'{"a":' * 100_000 + b"{}" + b"}" * 100_000])
def test_the_fast_path_takes_only_lines_that_are_valid_json(scrap: Sequence[bytes]) -> None:
    lines = [stripped for line in b"\n".join(scrap).split(b"\n") if (stripped := line.strip(b" \t\r\n"))]
    if lines and are_objects(lines, b"\n".join(lines)):
        assert all(is_json(line) for line in lines)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30) | values.map(lambda value: json.dumps(value).encode()), min_size=1, max_size=8))
@example([BOM_UTF8, b"null"])
@example([BOM_UTF8 + b"null", BOM_UTF8 + b"1"])
def test_each_line_is_a_record_or_rejected(lines: Sequence[bytes]) -> None:
    body = b"\n".join(lines)
    # What begins so is of another encoding, or refused as a whole: tests of their own.
    assume(not body.startswith((BOM_UTF16_LE, BOM_UTF16_BE, BOM_UTF32_BE)) and not _COMPRESSED.match(body))
    text = body.removeprefix(BOM_UTF8)
    wanted = [stripped for line in text.split(b"\n") if (stripped := line.strip(b" \t\r\n"))]
    good = [line for line in wanted if is_json(line)]
    if not good:
        with pytest.raises(PushRefusedError) as raised:
            parse_plain(LINES, body, most_bytes=MOST)
        assert raised.value.status == 400
        return
    found = parse_plain(LINES, body, most_bytes=MOST)
    assert found.bodies == good
    assert [one.data for one in found.rejected] == [line for line in wanted if not is_json(line)]


def is_too_deep(text: bytes) -> bool:
    """Return whether this Python's parser finds it nested too deeply: from 3.12 on its limit is another one."""
    try:
        json.loads(text)
    except RecursionError:
        return True
    return False


DEEP = b"[" * 1500 + b"]" * 1500
# Elements that are no record, and where their parser would leave the array.
ODD = {
    b'{"a": [NaN]}': "no JSON: NaN is no JSON",
    b"-Infinity": "no JSON: -Infinity is no JSON",
    b'"caf\xe9"': "no UTF-8 at byte 4",
    b'"\xed\xa0\x80"': "no UTF-8 at byte 1",
    **({DEEP: "nested too deeply"} if is_too_deep(DEEP) else {}),
    b'{"a": }': "no JSON: Expecting value",
    b'{"a" 1}': "no JSON: Expecting ':'",
    b"nul": "no JSON: Expecting value",
    b'"\t"': "no JSON: Invalid control character",
    b'"' + b"x" * MOST + b'"': "max_record_bytes is",
    b"[" + b"1," * 2000 + b"1]": "max_body_values is 2000",
}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: repr(odd[:12]))
def test_an_element_that_is_no_record_is_rejected_without_its_neighbours(odd: bytes) -> None:
    good = [b'{"a": "],[\\"{"}', b"null", b'"\\ud800"', b"9" * 5000, b"[{}, 1.50]"]
    body = b" [" + good[0] + b" ,\n" + odd + b" , " + b",".join(good[1:]) + b"] "
    found = parse_plain(ARRAY, body, most_bytes=MOST, limits=ParsingLimits(most_values=2000))
    assert found.bodies == good
    assert [one.data for one in found.rejected] == [odd]
    assert found.rejected[0].why.startswith("element 2: ")
    assert ODD[odd] in found.rejected[0].why


@pytest.mark.parametrize(
    "whole", [b"[NaN]", b'[{"a": NaN}, {"a": }]', b"[" + b"NaN," * 10_001 + b"1]", b"[1,,2]", b"[1,]", b"[1", b'["a]']
)
def test_an_array_without_a_record_or_an_end_of_one_is_refused(whole: bytes) -> None:
    with pytest.raises(PushRefusedError) as raised:
        parse_plain(ARRAY, whole, most_bytes=MOST)
    assert raised.value.status == 400


@settings(deadline=None)
@given(st.lists(values, min_size=1, max_size=6), st.sampled_from([None, 1]), st.booleans())
def test_elements_of_an_array_are_kept_unchanged(found: Sequence[object], indent: int | None, ascii_only: bool) -> None:
    body = json.dumps(found, indent=indent, ensure_ascii=ascii_only)
    try:
        encoded = body.encode()
    except UnicodeEncodeError:
        return
    records = parse_plain(ARRAY, encoded, most_bytes=MOST).bodies
    assert [json.loads(record or b"") for record in records] == list(found)
    assert all(record is not None and record in encoded for record in records)


@settings(max_examples=100, deadline=None)
@given(st.lists(scraps | st.binary(max_size=8), max_size=4), st.sampled_from([b"", b"\n", b"\r\n", b"\n\n", b" "]))
@example([b"{}\n" * 9 + b"{\n}"], b"")
@example([b'{"a": Inf}'], b"")
@example([b"{}\r"], b"\n")
@example([], b"\n")
@pytest.mark.parametrize("of_json", [False, True])
def test_lines_cut_at_once_equal_lines_cut_one_by_one(of_json: bool, odd: Sequence[bytes], end: bytes) -> None:
    usual = [b'{"a": 1}', b"{}", b'{"text": "NaN"}'] * 20
    body = b"\n".join([*usual, *odd, *usual]) + end
    lines = [line.removesuffix(b"\r") for line in body.split(b"\n")]
    found = lines_column(body, 100, is_json=of_json)
    one_by_one = _one_by_one(lines, None, 100, UNLIMITED, is_json=of_json)
    if found is not None:
        assert (found.to_pylist(), one_by_one.rejected) == (one_by_one.bodies, [])
    else:
        assert odd or end not in {b"", b"\n"}


@pytest.mark.parametrize("kind", [b"application/x-ndjson", b"text/plain"])
def test_many_lines_take_the_fast_path(monkeypatch: pytest.MonkeyPatch, kind: bytes) -> None:
    monkeypatch.setattr(http_records, "_one_by_one", None)
    for end in (b"", b"\n"):
        found = parse_plain([(b"content-type", kind)], b'{"a": 1}\n' * 999 + b"{}" + end, most_bytes=MOST).bodies
        assert list(found) == [pa.scalar(b'{"a": 1}')] * 999 + [pa.scalar(b"{}")]
    blank_ends = b'{"a": 1} \r\n\n' * 100
    monkeypatch.setattr(http_records, "fault_of", None)
    assert parse_plain(LINES, blank_ends, most_bytes=MOST).bodies == [b'{"a": 1}'] * 100


def test_column_and_record_requests_become_one_batch_in_order() -> None:
    """Mix requests with columns, which were cut at once, and requests with records; each has its request's fields."""

    def waiting(bodies: Sequence[bytes], number: int, *, at_once: bool) -> WaitingRequest:
        return WaitingRequest(
            pa.array(bodies, pa.binary()) if at_once else bodies,
            "/v1/s",
            number,
            content_type=None if number % 2 else "text/plain",
            request_key=f"k{number}" if number % 3 else None,
            request_attributes={"a": "b", "n": str(number)} if number % 4 else None,
        )

    requests = [([b"%d" % n, b"x"] * (n % 5 + 1), n) for n in range(24)]
    as_records = [waiting(bodies, n, at_once=False) for bodies, n in requests]
    as_either = [waiting(bodies, n, at_once=n % 7 > 2) for bodies, n in requests]
    batch = batch_of(as_either)
    assert batch.to_pylist() == batch_of(as_records).to_pylist()
    assert batch.schema == batch_of(as_records).schema
    assert [one.row_keys() for one in as_either] == [one.row_keys() for one in as_records]


def test_the_lines_of_a_request_that_is_alone_are_not_copied() -> None:
    lines = pa.array([b"one", b"two"], pa.binary())
    batch = batch_of([WaitingRequest(lines, "/v1/s", 1, content_type="text/plain")])
    assert batch.column(0).buffers()[-1].address == lines.buffers()[-1].address


@pytest.mark.parametrize("kind", [b"application/x-ndjson", b"text/plain"])
@pytest.mark.parametrize("lines", [1, 1000])
def test_a_byte_order_mark_at_the_start_belongs_to_no_record(kind: bytes, lines: int) -> None:
    records = [b'{"n": %d}' % number for number in range(lines)]
    body = b"\xef\xbb\xbf" + b"\n".join(records)
    headers = [(b"content-type", kind)]
    found = parse_plain(headers, body, most_bytes=MOST)
    assert [bytes(one) if isinstance(one, bytes) else one.as_py() for one in found.bodies] == records
    at_once = lines_at_once(headers, body, most_bytes=MOST)
    assert at_once is None or list(map(bytes, pa.array(at_once.bodies, pa.binary()).to_pylist())) == records


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("text", ['{"ü": 1}', '["ü"]', " 1"])
def test_json_in_an_encoding_that_nothing_names_is_refused_with_how_to_name_it(text: str, encoding: str) -> None:
    body = text.encode(encoding)
    with pytest.raises(PushRefusedError, match="charset=utf-16le, or send JSON in UTF-8") as refused:
        parse_plain([(b"content-type", b"application/json")], body, most_bytes=1000)
    assert refused.value.status == 400
    named = [(b"content-type", f"application/json; charset={encoding}".encode())]
    found = parse_plain(named, body, most_bytes=1000)
    expected = json.loads(text)
    expected = expected if isinstance(expected, list) else [expected]
    assert [json.loads(record) for record in cast("list[bytes]", found.bodies)] == expected


def test_a_byte_order_mark_of_another_body_is_kept() -> None:
    body = b"\xef\xbb\xbfa"
    assert parse_plain([(b"content-type", b"application/octet-stream")], body, most_bytes=MOST).bodies == [body]
