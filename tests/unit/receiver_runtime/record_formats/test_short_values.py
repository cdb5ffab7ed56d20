"""Test that values which are read as words of the processor are what Arrow's casts make of their texts."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from receiver_runtime.record_formats.short_values import short_values
from tests.support.searches import examples

_KINDS = [pa.int64(), pa.int32(), pa.int8(), pa.uint8(), pa.float64(), pa.float32(), pa.bool_()]
_NUMBER = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_INTEGER = re.compile(rb"-?(0|[1-9][0-9]*)")
_ALPHABET = [*"0123456789.-", "00", "+", "e", " ", "/", ":", "true", "false", "null", "\x00", "\x80", "\xb0", "\xff"]


def read(texts: list[bytes], kind: pa.DataType, before: bytes = b'{"pieces": ') -> pa.Array | None:
    octets = np.frombuffer(before + b", ".join(texts), np.uint8)
    ends = np.cumsum([len(text) + 2 for text in texts]) - 2 + len(before)
    return short_values(octets, ends - [len(text) for text in texts], ends, kind)


def usual(text: bytes, kind: pa.DataType) -> bool:
    if pa.types.is_boolean(kind):
        return text in (b"true", b"false")
    return (_INTEGER if pa.types.is_integer(kind) else _NUMBER).fullmatch(text) is not None


@st.composite
def texts(draw: st.DrawFn) -> list[bytes]:
    """Draw texts, most of them plain numbers or truths."""
    number = st.from_regex(r"\A-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,6})?\Z")
    odd = st.lists(st.sampled_from(_ALPHABET), max_size=9).map("".join)
    found = draw(st.lists(st.one_of(number, number, number, st.sampled_from(["true", "false"]), odd), min_size=1))
    return [text.encode("latin-1") for text in found]


@settings(max_examples=examples(1500))
@given(texts(), st.sampled_from(_KINDS))
@example([b"-0", b"-0.0", b"0", b"12345678"], pa.float64())
@example([b"-128", b"127"], pa.int8())
@pytest.mark.search
def test_values_are_those_of_arrows_casts(drawn: list[bytes], kind: pa.DataType) -> None:
    found = read(drawn, kind)
    # Each alone too: what is beside it may be why it is not taken.
    for text, value in [
        *zip(drawn, found or [], strict=False),
        *((text, (read([text], kind) or [None])[0]) for text in drawn),
    ]:
        if value is None:
            continue
        assert usual(text, kind), (text, value)
        expected = pa.array([text.decode()]).cast(kind)
        # Zero has a sign.
        assert np.array([value.as_py()]).tobytes() == np.array(expected.to_pylist()).tobytes(), (text, value)
    assert found is None or (found.type == kind and len(found) == len(drawn))


@pytest.mark.parametrize(
    ("given_texts", "kind"),
    [
        ([b"0", b"7", b"-12", b"12345678", b"-1234567"], pa.int64()),
        ([b"1", b"-128", b"127"], pa.int8()),
        ([b"0.5", b"-0.25", b"10", b"1234.678", b"-123.456", b"-0.0"], pa.float64()),
        ([b"true", b"false", b"true"], pa.bool_()),
    ],
)
def test_usual_values_are_taken(given_texts: list[bytes], kind: pa.DataType) -> None:
    found = read(given_texts, kind)
    assert found is not None
    assert found.equals(pa.array([text.decode() for text in given_texts]).cast(kind))


@pytest.mark.parametrize(
    ("given_texts", "kind"),
    [
        ([b"123456789"], pa.int64()),
        ([b"128"], pa.int8()),
        ([b"1"], pa.uint8()),
        ([b"1.0"], pa.int64()),
        ([b"01"], pa.int64()),
        ([b"-"], pa.int64()),
        ([b""], pa.int64()),
        ([b"00.5"], pa.float64()),
        ([b".5"], pa.float64()),
        ([b"-.5"], pa.float64()),
        ([b"5."], pa.float64()),
        ([b"1.2.3"], pa.float64()),
        ([b"1..2"], pa.float64()),
        ([b"1e5"], pa.float64()),
        ([b"null"], pa.bool_()),
        ([b"True"], pa.bool_()),
        ([b"1.5"], pa.float32()),
    ],
)
def test_others_are_left_to_arrow(given_texts: list[bytes], kind: pa.DataType) -> None:
    assert read(given_texts, kind) is None


def test_a_value_at_the_beginning_of_the_bytes_is_left_to_arrow() -> None:
    assert read([b"1", b"22"], pa.int64(), before=b'{"a":') is None
    assert read([b"1", b"22"], pa.int64(), before=b'{"abc":') is not None
