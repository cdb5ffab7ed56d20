"""Test that records which are read by their layout become what Arrow's parser makes of each of them alone."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.record_formats.flat_objects import FlatObjects
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json
from tests.support.searches import examples

READER = JsonReader(Json("item STRING, pieces BIGINT, small TINYINT, price DOUBLE, near FLOAT, paid BOOLEAN"))
SCHEMA = READER.schema
# Values of a member: of the usual form, and such as a parser takes or not.
_usual = {
    "item": ['"a"', '""', '"b, c"', '"x: {y}"', '"caf\u00e9"'],
    "pieces": ["0", "7", "-12", "123456789012345678"],
    "small": ["1", "-128"],
    "price": ["1.5", "-0.25", "10", "1e5", "0.1"],
    "near": ["0.5", "3"],
    "paid": ["true", "false"],
    "more": ["1", '"text"', "null"],
}
_ODD = """
    00 01 -01 - -0 -0.0 +1 1. .5 1.e1 0x10 1_0 1-2 1.2.3 1e 1e5 1E+5 1e-5 1e5e5 1e5.5 1e999 1e-999 NaN Inf -Infinity
    null true True tru nul 128 9223372036854775807 9223372036854775808 -9223372036854775808 1234567890123456789 0.1e1
    00.5 0e0 --1 1- 1,2 1: 0.5f 123456789012345678901234567890.5 5e-324 1.7976931348623159e308 16777217 3.5e38
    "1" "true" "\\" "\\\\" "\\u0061" "" {} [] [1] {"a":1} 0.00000000000000000000000000000000000001
"""
_BYTES = [bytes([code]) for code in b'",:{}[]\\ 019.-+eEtn\0\n\t\x7f\x80\xc3'] + [b"\xc3\xa9", b"\xed\xa0\x80", b'\\"']


@st.composite
def texts(draw: st.DrawFn) -> list[bytes]:
    """Draw records that are alike, some of which are a little different."""
    names = draw(st.lists(st.sampled_from(sorted(_usual)), min_size=1, max_size=5, unique=True))
    colon, comma, begin, end = draw(
        st.sampled_from([(":", ",", "{", "}"), (": ", ", ", "{", "}"), (" : ", " , ", "{ ", " }")])
    )
    found = []
    for _ in range(draw(st.integers(1, 6))):
        values = [draw(st.sampled_from(_usual[name])) for name in names]
        if draw(st.integers(0, 3)) == 0:
            values[draw(st.integers(0, len(names) - 1))] = draw(st.sampled_from(_ODD.split()))
        members = comma.join(f'"{name}"{colon}{value}' for name, value in zip(names, values, strict=True))
        text = f"{begin}{members}{end}".encode()
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(1, len(text) - 1))
            text = text[:at] + draw(st.sampled_from([b"", *_BYTES])) + text[at + draw(st.integers(0, 1)) :]
        found.append(text)
    return [text for text in found if text[:1] == b"{" and text[-1:] == b"}" and len(text) > 1]


@settings(max_examples=examples(800))
@given(st.lists(texts(), min_size=1, max_size=2), st.booleans(), st.sampled_from([1, 100, 2**20]))
@pytest.mark.search
def test_records_have_the_values_that_arrows_parser_gives_each_alone(
    drawn: list[list[bytes]], closed: bool, piece_bytes: int
) -> None:
    reader = JsonReader(Json("item STRING, pieces BIGINT, small TINYINT, price DOUBLE, near FLOAT, paid BOOLEAN"))
    flat = FlatObjects(reader.schema, closed=closed, piece_bytes=piece_bytes)
    for records in drawn:
        if not records or (found := flat.read(pa.array([b"{", *records], pa.binary())[1:])) is None:
            continue
        members, are_alike = found
        taken = [record for record, is_alike in zip(records, are_alike, strict=True) if is_alike]
        assert 2 * len(taken) >= len(records)
        for row, record in enumerate(taken):
            alone = reader._members(pa.array([record], pa.binary()), judged=False)
            assert alone is not None, record
            assert (record, members.slice(row, 1).equals(alone)) == (record, True)
            assert not closed or set(json.loads(record)) <= set(SCHEMA.names)


def read(*records: bytes, closed: bool = False) -> list[bool] | None:
    found = FlatObjects(SCHEMA, closed=closed).read(pa.array(records, pa.binary()))
    return None if found is None else found[1].tolist()


@pytest.mark.parametrize("blank", ["", " "])
def test_records_of_the_usual_form_are_all_taken(blank: str) -> None:
    records = [
        f'{{"item":{blank}"tea {number}",{blank}"pieces":{blank}{number - 50},{blank}"price":{blank}{number / 8}}}'
        for number in range(100)
    ]
    assert read(*(record.encode() for record in records)) == [True] * 100


def test_only_records_of_another_form_are_left_out() -> None:
    usual = [b'{"item": "a", "pieces": %d}' % number for number in range(8)]
    odd = [
        b'{"item": "a\\"b", "pieces": 1}',
        b'{"pieces": 1, "item": "a"}',
        b'{"item": null, "pieces": 1}',
        b'{"item": "a", "pieces": 1.0}',
        b'{"item": "a", "pieces":  1}',
        b'{"item": "a\t", "pieces": 1}',
        b'{"item": "a", "pieces"; 1}',
        b'{"item"; "a", "pieces": 1}',
    ]
    beside = [record for both in zip(usual, odd, strict=True) for record in both]
    assert read(*beside) == [True, False] * 8


def test_a_null_is_one_beside_values_without_quotes() -> None:
    values = pa.array([b'{"pieces": 1, "paid": true}', b'{"pieces": null, "paid": null}'], pa.binary())
    found = FlatObjects(SCHEMA, closed=False).read(values)
    assert found is not None
    assert found[0].select(["pieces", "paid"]).to_pylist() == [
        {"pieces": 1, "paid": True},
        {"pieces": None, "paid": None},
    ]


def test_a_record_with_others_members_has_no_layout_where_there_may_be_none() -> None:
    record = b'{"item": "a", "more": 1}'
    assert read(record) == [True]
    assert read(record, closed=True) is None


def test_records_of_several_forms_are_left_to_arrow() -> None:
    assert read(b'{"item": "a"}', b'{"pieces": 1}', b'{"paid": true}', b'{"item": "a"}', b'{"near": 1}') is None


@pytest.mark.parametrize(
    "record", [b'{"%s": 1}' % (b"n" * 5000), b"{%s}" % b",".join(b'"m%d":1' % n for n in range(300))]
)
def test_records_of_many_members_or_with_long_names_are_left_to_arrow(record: bytes) -> None:
    assert read(record) is None


def test_the_reader_gives_both_kinds_in_order() -> None:
    lines = [b'{"item": "a%d", "pieces": %d}' % (number, number) for number in range(3000)]
    for row in range(0, 3000, 7):
        lines[row] = b'{"pieces": %d, "item": "a%d"}' % (row, row)
    lines[9] = b'{"item": "a9", "pieces": "9"}'
    parsed = READER.read(pa.array(lines, pa.binary()))
    assert [fault.row for fault in parsed.faults] == [9]
    assert parsed.batch.column("pieces").to_pylist() == [row for row in range(3000) if row != 9]
    assert parsed.batch.column("item").to_pylist() == [f"a{row}" for row in range(3000) if row != 9]
