"""Test that decimals in JSON are exact or refused: Arrow alone crashes at some, and makes other numbers of others."""

from __future__ import annotations

from decimal import Decimal, localcontext

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json
from tests.support.searches import examples

# Each of them crashed the process, or was taken as another number than it is.
POISON = [
    b"1e-999999999",
    b"0e-999999999",
    b'"1e-999999999"',
    b'"1\\u0065-999999999"',
    b'"1e\\u002d999999999"',
    b'"1E-99999999\\u0039"',
    b"1e-41",
    b"1e-040",
    b"0." + b"1" * 47,
    b"0." + b"1" * 47 + b"e-29",
    b"0." + b"1" * 75 + b"e-29",
    b"1e999999999",
    b'"1e999999999"',
    b'"NaN"',
    b'"Infinity"',
    b"-" + b"9" * 400,
    b"1" + b"0" * 100_000,
]
_tokens = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.integers(0, 10**20) | st.integers(0, 10**38) | st.sampled_from([10**n for n in range(39)]),
    st.just("") | st.text("0123456789", min_size=1, max_size=12).map(".{}".format),
    st.just("") | st.integers(-50, 50).map("e{}".format) | st.sampled_from(["E-1", "e+2", "e-9999", "E400"]),
)
_types = st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda drawn: drawn[1] <= drawn[0])


def exactly(token: str, precision: int, scale: int) -> Decimal | None:
    """Return the decimal that a column has of a number; None if it would lose a digit."""
    number = Decimal(token)
    if not -400 <= number.adjusted() <= 400:
        return None
    with localcontext(prec=2000):
        found = number.quantize(Decimal((0, (1,), -scale)))
    return found if found == number and len(found.as_tuple().digits) <= precision else None


@settings(max_examples=examples(2000))
@given(_tokens, _types, st.booleans(), st.booleans())
@pytest.mark.search
def test_a_decimal_is_what_python_makes_of_it_or_a_fault(
    token: str, kind: tuple[int, int], quoted: bool, nested: bool
) -> None:
    ddl = f"DECIMAL({kind[0]}, {kind[1]})"
    reader = JsonReader(Json(f"a ARRAY<{ddl}>" if nested else f"a {ddl}"))
    text = f'"{token}"' if quoted else token
    record = f'{{"a": [{text}]}}' if nested else f'{{"a": {text}}}'
    expected = exactly(token, *kind)
    for beside in (b"{}", b"{"):
        parsed = reader.read(pa.array([record.encode(), beside], pa.binary()))
        if any(not fault.row for fault in parsed.faults):
            # Zeros are taken in as many ways as Arrow has.
            assert expected is None or not expected
        else:
            found = parsed.batch["a"][0].as_py()
            assert (found[0] if nested else found) == expected


@pytest.mark.parametrize("ddl", ["a DECIMAL(10, 2)", "a DECIMAL(38, 36)", "a DECIMAL(38, 0)"])
@pytest.mark.parametrize("value", POISON)
def test_a_number_that_no_decimal_can_be_is_a_fault(value: bytes, ddl: str) -> None:
    reader = JsonReader(Json(f"{ddl}, b ARRAY<STRUCT<c: {ddl.removeprefix('a ')}>>"))
    deep = b"[" * 3000 + b"]" * 3000
    records = [
        b'{"a": %s}' % value,
        b'{"b": [{"c": %s}]}' % value,
        # What the judge can't read.
        b'{"a": %s, "x": NaN}' % value,
        b'{"a": %s, "x": %s}' % (value, deep),
        b'{"a": %s, "a": 1}' % value,
    ]
    for record in records:
        parsed = reader.read(pa.array([b'{"a": 1}', record], pa.binary()))
        assert [fault.row for fault in parsed.faults] == [1]


def test_more_digits_than_the_column_has_are_a_fault_whatever_stands_beside_them() -> None:
    reader = JsonReader(Json("a DECIMAL(10, 2)"))
    for beside in (b'{"a": 99999999.99}', b"{"):
        parsed = reader.read(pa.array([b'{"a": 100000000}', beside], pa.binary()))
        assert parsed.faults[0].row == 0
    assert parsed.faults[0].why == "100000000 is no decimal128(10, 2) - at `$.a`"


def test_text_with_signs_of_exponents_is_read_as_any_other() -> None:
    reader = JsonReader(Json("id STRING, a DECIMAL(10, 2)"))
    assert not reader.read(pa.array([b'{"a": 0.%se-29}' % (b"0" * 44)], pa.binary())).faults
    parsed = reader.read(pa.array([b'{"id": "1e-999", "a": 1.5}', b'{"id": "\\u0031", "a": 1e-2}'], pa.binary()))
    assert parsed.batch.to_pylist() == [{"id": "1e-999", "a": Decimal("1.50")}, {"id": "1", "a": Decimal("0.01")}]
