"""Test that JSON becomes what Python's parser makes of it, and that no record affects another one."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.json_reader import JsonReader
from receiver_runtime.sources.records.json_records import Json
from tests.support.searches import examples

if TYPE_CHECKING:
    from receiver_runtime.record_formats.record_reader import Parsed

DDL = (
    "item STRING, pieces BIGINT, small TINYINT, price DOUBLE, paid BOOLEAN, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "day DATE, tags ARRAY<STRING>, place STRUCT<city: STRING, seen: TIMESTAMP>, "
    "near FLOAT, rates ARRAY<DOUBLE>, cost DECIMAL(12, 2)"
)
READER = JsonReader(Json(DDL))
# Of one record each: what does not fit, and a part of what is said of it.
BAD = {
    b"": "no JSON",
    b"{": "no JSON",
    b"null": "null",
    b"[]": "array",
    b"{}{}": "no JSON",
    b'{"item": "a"} {"item": "b"}': "no JSON",
    b'{"item": "a",}': "no JSON",
    b'{"item": "\xff"}': "no UTF-8",
    b'{"item": "\\ud800"}': "no JSON",
    b'{"item": "a\nb"}': "no JSON",
    b'{"price": NaN}': r"Number out of range.*\$\.price",
    b'{"rates": [1, -Infinity]}': r"Number out of range.*\$\.rates",
    b'{"near": 1e39}': r"\$\.near",
    b'{"cost": 0.123}': r"\$\.cost",
    b'{"price": 1e999}': "",
    b'{"item": 1}': r"\$\.item",
    b'{"pieces": "1"}': r"\$\.pieces",
    b'{"pieces": 1.5}': "",
    b'{"pieces": 9223372036854775808}': "",
    b'{"small": 128}': r"\$\.small",
    b'{"paid": 1}': r"\$\.paid",
    b'{"at": "yesterday"}': r"'yesterday' is no time - at `\$\.at`",
    b'{"at": "2026-01-02T03:04:05"}': r"expected a zone offset - at `\$\.at`",
    b'{"local": "2026-01-02T03:04:05Z"}': r"expected no zone.* - at `\$\.local`",
    b'{"day": "2026-02-30"}': r"\$\.day",
    b'{"tags": ["a", 1]}': r"\$\.tags",
    b'{"place": {"seen": "now"}}': r"\$\.place",
    b'{"item": "a", "item": "b"}': "twice",
    b'{"item": "a", "\\u0069tem": "b"}': "twice",
    b'{"place": {"city": "a", "city": "b"}}': "twice",
    b'{"place": {"seen": "0000-01-01T00:00:00Z"}}': r"years 1 to 9999 - at `\$\.place`",
    b'{"item": "\0"}': "no JSON",
    b'\0{"item": "a"}': "no JSON",
    b'{"item": "a"}\0': "no JSON",
    b'{"item": "a"} // note': "no JSON",
    b'{"item": "\xed\xa0\x80"}': "no UTF-8",
    b'{"item": "\xc0\x80"}': "no UTF-8",
    b"{'item': 1}": "no JSON",
    b'{"pieces": 01}': "no JSON",
    b'{"pieces": 1.}': "no JSON",
    b'{"price": .5}': "no JSON",
    b'{"price": ' + b"1" * 400 + b"}": r"\$\.price",
    b" ": "no JSON",
    b"[" * 100_000: "",
}

_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_times = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001  without a zone
_members = st.fixed_dictionaries(
    {},
    optional={
        "item": st.none() | _text,
        "pieces": st.none() | st.integers(-(2**63), 2**63 - 1),
        "small": st.integers(-128, 127),
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60),
        "paid": st.none() | st.booleans(),
        "at": _times.map(lambda time: time.isoformat() + "Z"),
        "local": _times.map(lambda time: time.isoformat(sep=" ")),
        "day": st.dates(date(1, 1, 1)).map(date.isoformat),
        "tags": st.none() | st.lists(st.none() | _text, max_size=3),
        "place": st.none() | st.fixed_dictionaries({}, optional={"city": st.none() | _text, "other": st.integers()}),
        "rates": st.none() | st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=2),
        "cost": st.none() | st.decimals(-(10**9), 10**9, places=2).map(str),
        "unknown": st.recursive(st.none() | _text | st.integers(), lambda inner: st.lists(inner, max_size=2)),
    },
)


@st.composite
def records(draw: st.DrawFn) -> tuple[bytes, dict[str, Any]]:
    """Draw a record that fits, as text, and as Python's parser has it."""
    members = draw(_members)
    text = json.dumps(members, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    return text.encode(), expected(json.loads(text))


def expected(found: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {name: found.get(name) for name in READER.schema.names}
    if row["price"] is not None:
        row["price"] = float(row["price"])
    for name in ("at", "local"):
        if row[name] is not None:
            row[name] = datetime.fromisoformat(row[name])
    if row["cost"] is not None:
        row["cost"] = Decimal(row["cost"])
    if row["day"] is not None:
        row["day"] = date.fromisoformat(row["day"])
    if row["place"] is not None:
        row["place"] = {"city": row["place"].get("city"), "seen": None}
    return row


def read(*values: bytes, reader: JsonReader = READER) -> Parsed:
    return reader.read(pa.array(values, pa.binary()))


@settings(max_examples=examples(400))
@given(st.lists(records(), max_size=6))
@pytest.mark.search
def test_records_have_the_values_that_pythons_parser_gives(drawn: list[tuple[bytes, dict[str, Any]]]) -> None:
    parsed = read(*(text for text, _ in drawn))
    assert not parsed.faults
    assert parsed.batch.schema.equals(READER.schema)
    assert parsed.batch.to_pylist() == [row for _, row in drawn]


@settings(max_examples=examples(400))
@given(st.lists(records() | st.sampled_from(sorted(BAD)), min_size=1, max_size=12))
@pytest.mark.search
def test_a_bad_record_never_affects_a_neighbour(drawn: list[tuple[bytes, dict[str, Any]] | bytes]) -> None:
    parsed = read(*(one if isinstance(one, bytes) else one[0] for one in drawn))
    assert parsed.batch.to_pylist() == [one[1] for one in drawn if not isinstance(one, bytes)]
    assert [fault.row for fault in parsed.faults] == [row for row, one in enumerate(drawn) if isinstance(one, bytes)]
    for fault in parsed.faults:
        alone = drawn[fault.row]
        assert isinstance(alone, bytes)
        assert read(alone).faults[0].why == fault.why


_any_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _text | st.sampled_from(["2026-01-02", "NaN", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["city", "seen"]), inner, max_size=2),
    max_leaves=4,
)
_any_record = st.dictionaries(st.sampled_from(READER.schema.names), _any_value, max_size=3).map(
    lambda members: json.dumps(members).encode()
) | st.binary(max_size=12)


@settings(max_examples=examples(2000))
@given(_any_record, records())
@pytest.mark.search
def test_a_record_is_taken_or_not_whatever_stands_beside_it(one: bytes, other: tuple[bytes, dict[str, Any]]) -> None:
    alone, beside_good, beside_bad = read(one), read(one, other[0]), read(b"{", one, other[0])
    rows = [fault.row for fault in alone.faults]
    assert rows in ([], [0])
    assert [fault.row for fault in beside_good.faults] == rows
    assert [fault.row for fault in beside_bad.faults] == [0, *(row + 1 for row in rows)]
    assert beside_good.batch.to_pylist() == [*alone.batch.to_pylist(), other[1]]
    assert beside_bad.batch.to_pylist() == [*alone.batch.to_pylist(), other[1]]


# Records whose edges look like a neighbour's, or that stop in the middle of a value that a neighbour could end.
HOSTILE = [
    b'{"item":"}',
    b'{"}',
    b'{"item":"good"}',
    b"{}{}",
    b"{}",
    b"{} {}",
    b"{}null{}",
    b'{"}null{}',
    b'{"}{}{"item":"}',
    b'{"item":"}\\}',
    b'{"item":"}\n{"}',
    b'{\n"item":\t"a"}',
    b"{}{}\0}",
    b'{"item":{}',
    b'{"tags":["a"}',
    b'{"rates":[1,NaN]}',
    b'{"other":NaN}',
    b'{"other":Inf}',
    b'{"other":-Infinity, "item":"Inf"}',
    b'{"item":"\xff"}',
    b'{"other":"}\xc3}',
    b'{"other":"\\ud83d"}',
]


def told(parsed: Parsed) -> list[tuple[int, DeadLetterReason, str]]:
    return [(fault.row, fault.reason, fault.why) for fault in parsed.faults]


@pytest.mark.parametrize(
    "together",
    [
        [b'{"item":"}', b'{"}', b'{"item":"good"}', b"{}{}"],
        [b'{"item":"}', b'{"}', b'{"item":"good"}', b"{}{}", b'{"other":NaN}'],
        [b'{"item":"}', b"{}", b'{"}null{}'],
        [b'{"item":"a"}', b"{}{}\0}", b'{"item":"b"}'],
    ],
)
def test_braces_at_the_edges_of_records_move_no_value_to_another_row(together: list[bytes]) -> None:
    by_themselves(together)


# Two halves of one object, and two objects in one record: both together are as many objects as records.
_groups = st.sampled_from([(b'{"item":"}', b'{"}'), (b"{}{}",), (b"{}null{}",)]) | st.tuples(st.sampled_from(HOSTILE))


@settings(max_examples=examples(1000))
@given(st.lists(_groups, min_size=2, max_size=5))
@pytest.mark.search
def test_hostile_records_are_read_as_each_by_itself(groups: list[tuple[bytes, ...]]) -> None:
    by_themselves([record for group in groups for record in group])


def by_themselves(together: list[bytes]) -> None:
    parsed, alone = read(*together), [read(one) for one in together]
    assert parsed.batch.to_pylist() == [row for one in alone for row in one.batch.to_pylist()]
    assert told(parsed) == [(row, *fault[1:]) for row, one in enumerate(alone) for fault in told(one)]


# What Arrow refuses and msgspec does not, or can't read, and a sender could send at will.
REFUSED = [
    b'{"item":"a","item":null}',
    b'{"place":{"city":"a","c\\u0069ty":"b"}}',
    b'{"other":NaN,"pieces":"x"}',
    b'{"pieces":NaN}',
    b'{"cost":-Inf}',
    b'{"item":NaN}',
    b'{"other":1NaN}',
    b'{"other":NaN,}',
    b'{"other":"NaN}',
    b'{"price":NaN,"other":"\\ud83d"}',
    b'{"price":NaN,"other":"\\ude00"}',
    b'{"price":NaN,"other":"\\q"}',
    b'{"other":1e309}',
    b'{"other":0.01e99999}',
    b'{"cost":"1_0"}',
    b'{"cost":1.%s}' % (b"0" * 60),
]


@pytest.mark.parametrize("record", REFUSED)
def test_many_records_that_arrow_refuses_cost_few_calls(record: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, calls = JsonReader(Json(DDL)), []
    parse = reader._parsed

    def counted(text: bytes) -> pa.RecordBatch:
        calls.append(text)
        return parse(text)

    monkeypatch.setattr(reader, "_parsed", counted)
    good = b'{"item":"good"}'
    parsed = read(*[record] * 1023, good, reader=reader)
    assert len(calls) < 50
    assert [row["item"] for row in parsed.batch.to_pylist()] == ["good"]
    [(_, reason, why)] = told(read(record))
    assert told(parsed) == [(row, reason, why) for row in range(1023)]


_numbers = ["NaN", "Inf", "-Infinity", "1", "1.5", "1.0", "1e2", "1e309", "0.1e309", "10e308"]
_texts = ["Inf", "1_0", " 1", "\\ud83d", "\\ud83d\\ude00", "\\ude00", "\\n", "item", "pieces", "cost", "place", "city"]
_parts = st.sampled_from([*"{}[]:,", '"', "null", *_numbers, *(f'"{text}"' for text in _texts)])
_values = st.recursive(_parts, lambda inner: st.lists(inner, max_size=2).map(lambda some: f"[{','.join(some)}]"))
_names = st.sampled_from([*READER.schema.names, "other"])
_built = st.lists(st.builds('"{}":{}'.format, _names, _values), max_size=3).map(lambda pairs: f"{{{','.join(pairs)}}}")


@settings(max_examples=examples(3000))
@given(_built | st.lists(_parts, max_size=8).map(lambda parts: f"{{{''.join(parts)}}}"))
@pytest.mark.search
def test_arrow_refuses_by_itself_what_the_closer_look_refuses(text: str) -> None:
    record = text.encode()
    judge = READER._judge
    if judge.fault_of(0, record) is None and judge.refusal_of(0, record) is not None:
        with pytest.raises(pa.ArrowInvalid):
            READER._parsed(pa.array([record], pa.binary())[0].as_buffer())


@pytest.mark.parametrize(("record", "said"), BAD.items())
def test_a_record_that_does_not_fit_says_why(record: bytes, said: str) -> None:
    parsed = read(b'{"item": "before"}', record, b'{"item": "after"}')
    assert [row["item"] for row in parsed.batch.to_pylist()] == ["before", "after"]
    (fault,) = parsed.faults
    assert fault.row == 1
    assert re.search(said, fault.why), fault.why
    wrong_text = {"no JSON", "no UTF-8"}
    assert (fault.reason is DeadLetterReason.UNPARSABLE) is (said in wrong_text)


def test_times_have_their_zone_applied() -> None:
    parsed = read(b'{"at": "2026-01-02T03:04:05.123456+02:00"}', b'{"at": "2026-01-02T03:04Z"}')
    first, second = parsed.batch["at"].to_pylist()
    assert first == datetime(2026, 1, 2, 1, 4, 5, 123456, tzinfo=UTC)
    assert second == datetime(2026, 1, 2, 3, 4, tzinfo=UTC)


def test_a_decimal_keeps_every_digit_and_refuses_more_than_it_has() -> None:
    reader = JsonReader(Json("cost DECIMAL(12, 2)"))
    parsed = read(b'{"cost": 1234567890.12}', b'{"cost": "0.1"}', b'{"cost": 0.123}', b'{"cost": "x"}', reader=reader)
    assert parsed.batch["cost"].to_pylist() == [Decimal("1234567890.12"), Decimal("0.10")]
    assert [fault.row for fault in parsed.faults] == [2, 3]


def test_a_required_member_is_there_and_not_null() -> None:
    reader = JsonReader(Json("item STRING, pieces BIGINT NOT NULL"))
    parsed = read(b'{"pieces": 1}', b'{"item": "a"}', b'{"pieces": null}', reader=reader)
    assert parsed.batch.to_pylist() == [{"item": None, "pieces": 1}]
    assert [(fault.row, "pieces" in fault.why) for fault in parsed.faults] == [(1, True), (2, True)]


def test_names_are_those_of_json_whatever_they_are() -> None:
    reader = JsonReader(Json("`a b` INT, `größe` INT, `class` INT, A_B INT"))
    parsed = read(b'{"a b": 1, "gr\\u00f6\\u00dfe": 2, "class": 3, "a_b": 9, "A_B": 4}', b"{", reader=reader)
    assert [*parsed.batch.to_pylist()[0].values()] == [1, 2, 3, 4]


def test_many_records_with_some_bad_ones_keep_their_order() -> None:
    values = [b'{"pieces": %d}' % number for number in range(5000)]
    bad = [0, 1023, 1024, 3000, 4999]
    for row in bad:
        values[row] = b'{"pieces": "x"}'
    parsed = read(*values)
    assert [fault.row for fault in parsed.faults] == bad
    assert parsed.batch["pieces"].to_pylist() == [number for number in range(5000) if number not in bad]


def test_a_slice_is_read_as_its_own_rows() -> None:
    values = pa.array([b"{", b'{"pieces": 1}', b'{"pieces": 2}', b"{"], pa.binary())
    parsed = READER.read(values.slice(1, 2))
    assert parsed.faults == ()
    assert parsed.batch["pieces"].to_pylist() == [1, 2]


def test_a_thousand_columns_are_read_as_few_are() -> None:
    reader = JsonReader(Json(", ".join(f"c{number} INT" for number in range(1000))))
    record = json.dumps({f"c{number}": number for number in range(1000)}).encode()
    parsed = read(record, record.replace(b": 999", b": []"), record, reader=reader)
    assert [row["c999"] for row in parsed.batch.to_pylist()] == [999, 999]
    assert [fault.why for fault in parsed.faults] == ["Expected `int | null`, got `array` - at `$.c999`"]


def test_a_byte_order_mark_and_blanks_around_a_record_are_no_part_of_it() -> None:
    parsed = read(b'\xef\xbb\xbf {"item": "\xef\xbb\xbfa"}\r\n', b"\xef\xbb\xbf", b'\xfe\xff{"item": "a"}')
    assert parsed.batch["item"].to_pylist() == ["\ufeffa"]
    assert [fault.row for fault in parsed.faults] == [1, 2]


def test_nothing_is_no_row() -> None:
    assert read().batch.num_rows == 0


def test_a_declaration_is_the_same_when_it_is_read_back() -> None:
    declared = Json(DDL, raw=True)
    stored = json.loads(json.dumps(declared.model_dump(mode="json")))
    assert Json.model_validate(stored) == declared
