"""Test that records which are written at once are those that are written one by one."""

from __future__ import annotations

import contextlib
import itertools

from hypothesis import given
from hypothesis import strategies as st

from forebay.client.errors import RecordRefusedError
from forebay.client.framing import JsonLines, Record

FRAMING = JsonLines()
_PARTS = st.sampled_from([b"1", b"{}", b'"a"', b"x", b" ", b"\t", b"\r", b"\n", b"\xc3", b"\xa4", b"\xef\xbb\xbf", b""])
_BYTES = st.lists(_PARTS, max_size=3).map(b"".join)
_RECORDS = st.one_of(_BYTES, _BYTES.map(bytearray), st.text(max_size=3), st.just({"a": 1}), st.just([None]))


@given(st.lists(_RECORDS, min_size=1, max_size=4))
def test_many_are_as_one_by_one(records: list[Record]) -> None:
    one_by_one = many = None
    with contextlib.suppress(RecordRefusedError):
        one_by_one = b"".join(map(FRAMING.encode, records))
    with contextlib.suppress(RecordRefusedError):
        many = FRAMING.encode_many(records)
    assert one_by_one == many
    if many is not None:
        counts = list(range(len(records) + 1))
        ends = FRAMING.cut(many, counts)
        parts = [many[begin:end] for begin, end in itertools.pairwise(ends)]
        assert [FRAMING.record_of(part) + b"\n" for part in parts] == [FRAMING.encode(one) for one in records]
        assert ends[-1] == len(many)
