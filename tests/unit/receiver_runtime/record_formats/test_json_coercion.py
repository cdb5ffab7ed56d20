"""Test that `coerce=` takes what its table says and nothing else, by an oracle in plain Python."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json
from receiver_runtime.sources.records.registry import parse_records
from tests.support.searches import examples

COLUMNS = {"i": "BIGINT", "y": "TINYINT", "d": "DOUBLE", "b": "BOOLEAN", "s": "STRING", "t": "TIMESTAMP"}
OTHERS = ("assume_utc", "booleans", "empty_as_null", "numbers", "text")
EPOCHS = {"epoch_s": 10**6, "epoch_ms": 10**3, "epoch_us": 1}
FAULT = object()
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
LOCAL = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?)?")
# Tokens of JSON, as they are written.
TOKENS = [
    *("null", "true", "false", '""', '"true"', '"False"', '"TRUE"', '"yes"', '" "'),
    *("0", "1", "-0", "1.0", "1.5", "1e2", "1e-2", "100", "128", "-128", "9223372036854775807", "9223372036854775808"),
    *("1.0000000000000000000000000", "1e400", "-1e400", "1e99999999999999999999", "0e99999999999999999999", "1e19"),
    *("1700000000", "1700000000.25", "1700000000000", "1.7e9", "0.0000001", "-62135596801", "253402300800", "-1"),
    *('"2026-01-02T03:04:05Z"', '"2026-01-02T03:04:05"', '"2026-01-02 03:04"', '"2026-01-02"', '"2026-02-30"'),
    *('"2026-01-02T03:04:05+02:00"', '"x"', '"NaN"', '"1_0"', '"\\u0661"', '"+1"', '"01"', '"1."', '"\\u00e9"'),
    *("[]", "{}", "[1]", '{"i": 1}'),
]
_numbers = st.builds(
    "{}{}".format, st.integers(-(10**19), 10**19), st.sampled_from(["", ".0", ".5", "e0", "E2", "e-1"])
)
_tokens = st.sampled_from(TOKENS) | _numbers | _numbers.map('"{}"'.format)
_coerce = st.tuples(st.sets(st.sampled_from(OTHERS)), st.none() | st.sampled_from(sorted(EPOCHS))).map(
    lambda drawn: frozenset(drawn[0] | ({drawn[1]} if drawn[1] else set()))
)


class Token(str):
    __slots__ = ()


def expected(kind: str, token: str, coerce: frozenset[str]) -> object:
    """Return the value that a column has of a token; FAULT if it is none."""
    value = json.loads(token, parse_int=Token, parse_float=Token)
    if value is None or (value == "" and "empty_as_null" in coerce and kind != "STRING"):
        return None
    if kind == "STRING":
        is_near = "text" in coerce and isinstance(value, (Token, bool))
        return token if is_near else value if type(value) is str else FAULT
    if kind == "BOOLEAN":
        taken = {"true": True, "1": True, "false": False, "0": False} if "booleans" in coerce else {}
        return value if isinstance(value, bool) else taken.get(str(value).lower(), FAULT)
    is_quoted = "numbers" in coerce and isinstance(value, str) and NUMBER.fullmatch(value)
    number = value if isinstance(value, Token) or is_quoted else None
    if kind == "TIMESTAMP":
        return time_of(value, number, coerce)
    return FAULT if number is None else number_of(kind, number, coerce)


def number_of(kind: str, number: str, coerce: frozenset[str]) -> object:
    if kind == "DOUBLE":
        return float(number) if abs(float(number)) != float("inf") else FAULT
    if "numbers" not in coerce and not re.fullmatch("-?[0-9]+", number):
        return FAULT
    try:
        exact = Decimal(number)
    except ArithmeticError:
        return FAULT
    most = 2 ** (7 if kind == "TINYINT" else 63)
    return int(exact) if -most <= exact < most and exact == int(exact) else FAULT


def time_of(value: object, number: str | None, coerce: frozenset[str]) -> object:
    unit = next((EPOCHS[name] for name in coerce if name in EPOCHS), None)
    try:
        if number is not None:
            if unit is None or Decimal(number) * unit != int(Decimal(number) * unit):
                return FAULT
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(Decimal(number) * unit))
        if not isinstance(value, str):
            return FAULT
        if LOCAL.fullmatch(value):
            return datetime.fromisoformat(value).replace(tzinfo=UTC) if "assume_utc" in coerce else FAULT
        return datetime.fromisoformat(value) if re.match(r"\d{4}-\d\d-\d\d[ T]", value) else FAULT
    except (ValueError, OverflowError, ArithmeticError):
        return FAULT


@settings(max_examples=examples(3000))
@given(st.dictionaries(st.sampled_from(sorted(COLUMNS)), _tokens, min_size=1, max_size=3), _coerce)
@pytest.mark.search
def test_what_a_record_becomes_is_what_the_table_says(record: dict[str, str], coerce: frozenset[str]) -> None:
    row = {name: expected(COLUMNS[name], token, coerce) for name, token in record.items()}
    ddl = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    reader = JsonReader(Json(ddl, coerce=coerce))
    text = "".join(["{", ", ".join(f'"{name}": {token}' for name, token in record.items()), "}"]).encode()
    # Beside records that fit, that fit if they are coerced, that don't fit, and that are no JSON.
    for beside in ([], [b'{"i": 1}'], [b'{"i": "1"}'], [b'{"i": []}', b"{"], [b'{"b": 1}'] * 2):
        parsed = reader.read(pa.array([*beside, text, *beside], pa.binary()))
        fits = FAULT not in row.values()
        assert (len(beside) in [fault.row for fault in parsed.faults]) is not fits
        if fits:
            before = len(beside) - sum(fault.row < len(beside) for fault in parsed.faults)
            assert parsed.batch.slice(before, 1).to_pylist() == [dict.fromkeys(COLUMNS) | row]


@settings(max_examples=examples(400))
@given(_tokens, _coerce)
@pytest.mark.search
def test_values_within_others_are_coerced_as_those_of_columns(token: str, coerce: frozenset[str]) -> None:
    inner = ", ".join(f"{name}: {kind}" for name, kind in COLUMNS.items())
    reader = JsonReader(Json(f"l ARRAY<STRUCT<{inner}>>, m MAP<STRING, STRUCT<{inner}>>", coerce=coerce))
    for name, kind in COLUMNS.items():
        value = expected(kind, token, coerce)
        for record in (f'{{"l": [{{"{name}": {token}}}]}}', f'{{"m": {{"k": {{"{name}": {token}}}}}}}'):
            parsed = reader.read(pa.array([record.encode(), b"{"], pa.binary()))
            if value is FAULT:
                assert [fault.row for fault in parsed.faults] == [0, 1]
                continue
            assert [fault.row for fault in parsed.faults] == [1]
            found = parsed.batch.to_pylist()[0]
            assert (found["l"][0] if found["l"] else found["m"][0][1])[name] == value


@pytest.mark.parametrize(
    ("ddl", "coerce", "record", "value"),
    [
        ("a BIGINT", ["numbers"], b'"1.5"', FAULT),
        ("a BIGINT", ["numbers"], b'"1e2"', 100),
        ("a ARRAY<INT>", ["empty_as_null"], b'""', None),
        ("a DECIMAL(5, 2)", ["empty_as_null"], b'""', None),
        ("a STRING", ["text"], b"1.50", "1.50"),
        ("a STRING", ["text"], b'{"b": 1}', FAULT),
        ("a TIMESTAMP_NTZ", ["epoch_s"], b"1", FAULT),
        ("a BIGINT NOT NULL", ["empty_as_null"], b'""', FAULT),
        ("a BIGINT", ["numbers"], b'"1", "a": "2"', FAULT),
        ("a BIGINT", ["numbers"], b'"1", "b": NaN', FAULT),
        ("a BIGINT", ["numbers"], b'"1", "b": "\\ud800"', FAULT),
        ("a BIGINT", ["numbers"], b'"1", "b": ' + b"[" * 5000 + b"]" * 5000, FAULT),
        ("a BIGINT", ["numbers"], b'"1%s"' % (b"0" * 100_000), FAULT),
        ("a BIGINT", ["numbers"], b'"1e-999999999"', FAULT),
        ("a BIGINT", ["numbers"], b'"1" } {', FAULT),
    ],
)
def test_no_digit_is_lost_and_nothing_else_is_taken(ddl: str, coerce: list[str], record: bytes, value: object) -> None:
    parsed = JsonReader(Json(ddl, coerce=coerce)).read(pa.array([b'{"a": %s}' % record], pa.binary()))
    if value is FAULT:
        assert [fault.row for fault in parsed.faults] == [0]
    else:
        assert parsed.batch.to_pylist() == [{"a": value}]


def test_the_reason_is_of_what_is_left_after_coercion() -> None:
    reader = JsonReader(Json("a BIGINT, b BIGINT", coerce="numbers"))
    parsed = reader.read(pa.array([b'{"a": "1", "b": "x"}'], pa.binary()))
    assert parsed.faults[0].why == "Expected `int | null`, got `str` - at `$.b`"


def test_a_member_without_a_column_is_seen_where_it_is_refused() -> None:
    reader = JsonReader(Json("a BIGINT", coerce="numbers", closed=True))
    parsed = reader.read(pa.array([b'{"a": "1", "b": 1}', b'{"a": "2"}'], pa.binary()))
    assert parsed.batch.to_pylist() == [{"a": 2}]
    assert [(fault.row, "`b`" in fault.why) for fault in parsed.faults] == [(0, True)]


def test_many_records_keep_their_order() -> None:
    records = [b'{"i": %d}' % row if row % 3 else b'{"i": "%d"}' % row for row in range(5000)]
    records[4000] = b"{"
    parsed = JsonReader(Json("i INT", coerce=["numbers"])).read(pa.array(records, pa.binary()))
    assert [fault.row for fault in parsed.faults] == [4000]
    assert parsed.batch["i"].to_pylist() == [row for row in range(5000) if row != 4000]


def test_a_declaration_names_its_coercions_once_in_order() -> None:
    declared = Json("a INT", coerce={"text", "numbers"})
    stored = json.loads(json.dumps(declared.model_dump(mode="json")))
    assert stored["coerce"] == ["numbers", "text"]
    assert parse_records(stored) == declared == Json("a INT", coerce=["text", "numbers", "text"])
    assert Json("a INT", coerce="text").coerce == ("text",)


@pytest.mark.parametrize(
    ("coerce", "said"), [(["number"], "'numbers'"), (["epoch_s", "epoch_ms"], "epoch_ms, epoch_s"), (5, "tuple")]
)
def test_other_coercions_are_refused(coerce: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Json.model_validate({"columns": [("a", "int32")], "coerce": coerce})
