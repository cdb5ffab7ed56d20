"""Test that text becomes exactly the decimal, bytes or time that it is, or a fault."""

from __future__ import annotations

import base64
import re
from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.record_formats.text_values import typed
from tests.support.searches import examples

_types = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda drawn: drawn[1] <= drawn[0])
WHOLE = re.compile(r"[+-]?([0-9]{1,38}(\.[0-9]{0,38})?|\.[0-9]{1,38})")
WITH_EXPONENT = re.compile(r"[+-]?([0-9]{1,29}(\.[0-9]{0,38})?|\.[0-9]{1,38})[eE][+-]?[0-9]")
_decimals = (
    st.from_regex(WHOLE, fullmatch=True)
    | st.from_regex(WITH_EXPONENT, fullmatch=True)
    | st.sampled_from(
        [
            "",
            ".",
            "1e-999999999",
            "1e-41",
            "1e36",
            "340282366920938463463374607431768211457",
            "1_0",
            "٣",
            " 1",
            "nan",
            ".5",
        ]
    )
)


@settings(max_examples=examples(1000))
@given(st.lists(_decimals, min_size=1, max_size=4), _types)
@pytest.mark.search
def test_a_decimal_is_exact_or_a_fault(texts: list[str], kind: tuple[int, int]) -> None:
    made, faults = typed(pa.array(texts), pa.decimal128(*kind))
    for row, text in enumerate(texts):
        expected = None
        if WHOLE.fullmatch(text) or WITH_EXPONENT.fullmatch(text):
            with localcontext(prec=200):
                expected = Decimal(text).quantize(Decimal((0, (1,), -kind[1])))
            if expected != Decimal(text) or len(expected.as_tuple().digits) > kind[0]:
                expected = None
        assert made[row].as_py() == expected
        assert (row in faults) is (expected is None)


@settings(max_examples=examples(400))
@given(st.lists(st.binary(max_size=9).map(base64.b64encode) | st.binary(max_size=5), min_size=1, max_size=5))
@pytest.mark.search
def test_bytes_are_base64_or_a_fault(texts: list[bytes]) -> None:
    column = [text.decode("latin-1") for text in texts]
    made, faults = typed(pa.array(column), pa.binary())
    for row, text in enumerate(column):
        try:
            expected = base64.b64decode(text, validate=True)
        except ValueError:
            expected = None
        assert made[row].as_py() == expected
        assert (row in faults) is (expected is None)


@pytest.mark.parametrize(
    ("kind", "first", "last", "before", "after"),
    [
        (pa.date32(), "0001-01-01", "9999-12-31", "0000-12-31", None),
        (pa.timestamp("us"), "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999", "0000-12-31T23:59:59.999999", None),
        (
            pa.timestamp("us", "UTC"),
            "0001-01-01T02:00:00+02:00",
            "9999-12-31T23:59:59.999999Z",
            "0001-01-01T01:59:59+02:00",
            "9999-12-31T23:00:00-01:00",
        ),
    ],
)
def test_times_are_of_the_years_that_readers_have(
    kind: pa.DataType, first: str, last: str, before: str, after: str | None
) -> None:
    made, faults = typed(pa.array([first, before, last, after]), kind)
    assert sorted(faults) == ([1] if after is None else [1, 3])
    assert made.null_count == 2
    # A reader of Python has no such times.
    assert len(made.to_pylist()) == 4
