"""Test that Avro becomes what fastavro makes of it, and that no record affects another one."""

# ruff: noqa: ANN401, PLR0911  schemas and values of any type, which is what is tested
from __future__ import annotations

import io
import json
import string
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.schema_records.avro import Avro
from forebay_contrib.schema_records.avro_reader import AvroReader
from forebay_contrib.schema_records.avro_schema import AvroSchemaError, parse_avro_schema
from forebay_contrib.schema_records.cursor import Cursor
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.sources.records.registry import parse_records
from tests.support.searches import examples

if TYPE_CHECKING:
    from pathlib import Path

    from forebay_contrib.schema_records.cursor import Numbers
    from receiver_runtime.record_formats.record_reader import Parsed

ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "item", "type": "string"},
        {"name": "pieces", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
_times = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))  # noqa: DTZ001  without a zone
_VALUE = {"array": "items", "map": "values"}
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_WHOLE = timedelta(milliseconds=1)


def _logical(kind: str, logical: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": logical, **more}


def _millis(time: datetime) -> datetime:
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


# Types without others inside, each with its values, which are those of its column too.
_LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("boolean", st.booleans()),
    ("int", st.integers(-(2**31), 2**31 - 1) | st.integers(-70, 70)),
    ("long", st.integers(-(2**63), 2**63 - 1) | st.integers(-70, 70)),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False)),
    ("bytes", st.binary(max_size=8)),
    ("string", _text),
    (_logical("int", "date"), st.dates(date(1900, 1, 1))),
    (_logical("long", "timestamp-millis"), _times.map(lambda time: _millis(time).replace(tzinfo=UTC))),
    (_logical("long", "timestamp-micros"), _times.map(lambda time: time.replace(tzinfo=UTC))),
    (_logical("long", "local-timestamp-millis"), _times.map(_millis)),
    (_logical("long", "local-timestamp-micros"), _times),
    (_logical("bytes", "decimal", precision=9, scale=2), st.decimals(-(10**7) + 1, 10**7 - 1, places=2)),
    (_logical("bytes", "decimal", precision=38, scale=0), st.integers(1 - 10**38, 10**38 - 1).map(Decimal)),
]


class _Names:
    """Give each named type a name of its own."""

    def __init__(self) -> None:
        self.given = 0

    def next(self) -> str:
        self.given += 1
        return f"Name{self.given}"


@st.composite
def _types(draw: st.DrawFn, names: _Names, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a schema, and the strategy of its values."""
    kind = draw(st.sampled_from(["leaf", "leaf", "enum", "fixed", "record", "array", "map", "optional", "union"]))
    if not depth or kind == "leaf":
        leaf: tuple[Any, st.SearchStrategy[Any]] = draw(st.sampled_from(_LEAVES))
        return leaf
    if kind == "enum":
        symbols = draw(st.lists(st.text(string.ascii_uppercase, min_size=1, max_size=3), min_size=1, unique=True))
        return {"type": "enum", "name": names.next(), "symbols": symbols}, st.sampled_from(symbols)
    if kind == "fixed":
        size = draw(st.integers(0, 5))
        return {"type": "fixed", "name": names.next(), "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "record":
        return draw(_records(names, depth - 1))
    inner, values = draw(_types(names, depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    if kind == "map":
        return {"type": "map", "values": inner}, st.dictionaries(_text, values, max_size=3)
    if isinstance(inner, list):
        return inner, values
    if kind == "optional":
        return draw(st.sampled_from([["null", inner], [inner, "null"]])), st.none() | values
    return ["null", "boolean", "string"], st.none() | st.booleans() | _text


@st.composite
def _records(draw: st.DrawFn, names: _Names, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    fields = {f"f{number}": draw(_types(names, depth)) for number in range(draw(st.integers(1, 4)))}
    schema = {
        "type": "record",
        "name": names.next(),
        "fields": [{"name": name, "type": inner} for name, (inner, _) in fields.items()],
    }
    return schema, st.fixed_dictionaries({name: values for name, (_, values) in fields.items()})


@st.composite
def _data(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    schema, values = draw(_records(_Names()))
    return schema, draw(st.lists(values, max_size=5))


def doubling(levels: int) -> str:
    """Return a record whose fields use the next record twice: in all, 2 to the power of the levels."""
    kind: object = "int"
    for level in reversed(range(levels)):
        again = f"r{level + 1}" if level + 1 < levels else "int"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"r{level}", "fields": fields}
    return json.dumps(kind)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return out.getvalue()


def decoded(schema: Any, data: bytes) -> Any:
    return fastavro.schemaless_reader(io.BytesIO(data), fastavro.parse_schema(json.loads(json.dumps(schema))), None)


def column_value(schema: Any, value: Any) -> Any:
    """Return a value as Arrow gives it."""
    if isinstance(schema, list):
        if "boolean" in schema and "string" in schema:
            if value is None:
                return None
            is_text = isinstance(value, str)
            return {"member0": None if is_text else value, "member1": value if is_text else None}
        [inner] = [one for one in schema if one != "null"]
        return None if value is None else column_value(inner, value)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return {one["name"]: column_value(one["type"], value[one["name"]]) for one in schema["fields"]}
    if kind == "array":
        return [column_value(schema["items"], one) for one in value]
    if kind == "map":
        return [(key, column_value(schema["values"], one)) for key, one in value.items()]
    return value


def read(schema: Any, *values: bytes | None) -> Parsed:
    return AvroReader(Avro(schema)).read(pa.array(values, pa.binary()))


@settings(max_examples=examples(600))
@given(_data())
@pytest.mark.search
def test_records_have_the_values_that_fastavro_gives(drawn: tuple[Any, list[Any]]) -> None:
    schema, values = drawn
    data = [encoded(schema, value) for value in values]
    parsed = read(schema, *data)
    assert [fault.why for fault in parsed.faults] == []
    parsed.batch.validate(full=True)
    assert parsed.batch.to_pylist() == [column_value(schema, decoded(schema, one)) for one in data]


@st.composite
def _long_data(draw: st.DrawFn) -> tuple[Any, list[Any]]:
    """Draw records of arrays or maps with many items, some of them in the arrays of records of arrays."""
    inner, value = draw(_types(_Names(), 1))
    schema: dict[str, Any] = {"type": "array", "items": inner}
    values = st.lists(value, max_size=4)
    item = draw(value)
    long = [item] * draw(st.integers(60, 70))
    drawn: list[Any] = [draw(values) + long, draw(values)]
    if draw(st.booleans()):
        schema, drawn = (
            {"type": "array", "items": schema},
            [[one] * draw(st.sampled_from([1, 2, 3, 66])) for one in drawn],
        )
    elif draw(st.booleans()):
        schema = {"type": "map", "values": inner}
        drawn = [dict(zip(map(str, range(len(one))), one, strict=True)) for one in drawn]
    return {"type": "record", "name": "r", "fields": [{"name": "a", "type": schema}]}, [{"a": one} for one in drawn]


@settings(max_examples=examples(200))
@given(_long_data(), st.data())
@pytest.mark.search
def test_many_items_are_read_as_few_are(drawn: tuple[Any, list[Any]], data: st.DataObject) -> None:
    schema, values = drawn
    records = [encoded(schema, value) for value in values]
    parsed = read(schema, *records)
    parsed.batch.validate(full=True)
    assert [fault.why for fault in parsed.faults] == []
    assert parsed.batch.to_pylist() == [column_value(schema, decoded(schema, one)) for one in records]
    bad = bytearray(records[0])
    bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(bad[: data.draw(st.integers(0, len(bad)))])
    alone, beside = read(schema, broken), read(schema, records[1], broken, records[0])
    assert [fault.why for fault in beside.faults] == [fault.why for fault in alone.faults]
    assert repr(beside.batch.to_pylist()[1:-1]) == repr(alone.batch.to_pylist())


@settings(max_examples=examples(600))
@given(_data(), st.data())
@pytest.mark.search
def test_a_record_is_taken_or_not_whatever_stands_beside_it(drawn: tuple[Any, list[Any]], data: st.DataObject) -> None:
    schema, values = drawn
    records: list[bytes | None] = [encoded(schema, value) for value in values]
    for _ in range(data.draw(st.integers(1, 3))):
        bad = bytearray(data.draw(st.sampled_from([one for one in records if one is not None] or [b"\0"])))
        if bad:
            bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
        records.insert(data.draw(st.integers(0, len(records))), bytes(bad[: data.draw(st.integers(0, len(bad)))]))
    records.insert(data.draw(st.integers(0, len(records))), None)
    parsed = read(schema, *records)
    parsed.batch.validate(full=True)
    alone = [read(schema, one) for one in records]
    assert [fault.row for fault in parsed.faults] == [row for row, one in enumerate(alone) if one.faults]
    assert [fault.why for fault in parsed.faults] == [fault.why for one in alone for fault in one.faults]
    # NaN is not equal to itself.
    assert repr(parsed.batch.to_pylist()) == repr(pa.concat_batches([one.batch for one in alone]).to_pylist())


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "within a value"),
        (b"\x06ab", "larger than what is left"),
        (b"\x01", "negative"),
        (b"\x02a\x04\x02", "no branch of this number"),
        (b"\x02a\0\x02more", "4 bytes are left"),
        (b"\x02\xff\0\x02", "not UTF-8"),
        (b"\x02a\x02" + b"\xff" * 11, "longer than 64 bits"),
        (b"\x02a\x02" + b"\xff" * 9 + b"\x02", "longer than 64 bits"),
        (b"\x02a\0" + b"\xfe" + b"\xff" * 8 + b"\x01", "out of range"),
    ],
)
def test_bytes_that_are_no_record_are_a_fault(data: bytes, why: str) -> None:
    good = encoded(ORDER, {"item": "tea", "pieces": 2, "at": 1})
    parsed = read(ORDER, good, data, good)
    [fault] = parsed.faults
    assert (fault.row, fault.reason) == (1, DeadLetterReason.UNPARSABLE)
    assert why in fault.why
    assert parsed.batch["item"].to_pylist() == ["tea", "tea"]


def test_a_number_of_items_without_bytes_is_bounded() -> None:
    many = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}]}
    with pytest.raises(AvroSchemaError, match="only nulls"):
        Avro(many)
    empty = {"type": "fixed", "name": "empty", "size": 0}
    many["fields"] = [{"name": "a", "type": {"type": "array", "items": empty}}]
    # 2^40 items of no bytes.
    assert "fewer bytes" in read(many, b"\x80\x80\x80\x80\x80\x80\x01\0").faults[0].why


def test_more_rows_than_one_piece_keep_their_order() -> None:
    rows = 40_000
    one = encoded(ORDER, {"item": "tea", "pieces": None, "at": 1})
    data: list[bytes | None] = [one] * rows
    data[20_000] = b"?"
    data[39_999] = None
    parsed = read(ORDER, *data)
    assert [fault.row for fault in parsed.faults] == [20_000]
    assert parsed.batch.num_rows == rows - 1
    assert parsed.batch["item"].null_count == 1
    assert read(ORDER).batch.num_rows == 0


def test_items_in_several_blocks_with_sizes_are_one_array() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": "string"}}]}
    # Two items by their number, one by a negative number and its size, then the end.
    assert read(schema, b"\x04\x02x\x02y\x01\x04\x02z\0").batch.to_pylist() == [{"a": ["x", "y", "z"]}]


@pytest.mark.parametrize("kind", ["array", "map"])
@pytest.mark.parametrize("size", [1, 65])
def test_blocks_cost_no_step_each(kind: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": kind, _VALUE[kind]: "long"}}]}
    item, value = (b"\x02k\x06", ("k", 3)) if kind == "map" else (b"\x06", 3)
    block = (b"\x02" if size == 1 else b"\x82\x01") + item * size
    steps: list[object] = []
    only = Cursor.only

    def counted(cursor: Cursor, which: Numbers) -> Cursor:
        steps.append(which)
        return only(cursor, which)

    monkeypatch.setattr(Cursor, "only", counted)
    data = block * 1000 + b"\0"
    parsed = read(schema, b"\0", data, b"\x02" + item + b"\0")
    assert parsed.batch["a"].to_pylist() == [[], [value] * 1000 * size, [value]]
    assert len(steps) < 500
    # What is wrong in a later block is a fault of its record.
    [fault] = read(schema, data[:-1], b"\0").faults
    assert (fault.row, fault.why) == (0, "no Avro: it ends within a value")


@pytest.mark.parametrize(
    ("kind", "logical", "factor"),
    [
        ("int", "date", 1),
        ("long", "timestamp-millis", 86_400 * 1000),
        ("long", "timestamp-micros", 86_400 * 10**6),
        ("long", "local-timestamp-millis", 86_400 * 1000),
        ("long", "local-timestamp-micros", 86_400 * 10**6),
    ],
)
def test_times_out_of_the_years_1_to_9999_are_a_fault(kind: str, logical: str, factor: int) -> None:
    plain, of = {"type": "array", "items": kind}, {"type": "array", "items": _logical(kind, logical)}
    # Alone, as one of two, and as one of many, which are read in other ways.
    types = {"one": (kind, of["items"]), "some": (plain, of), "many": (plain, of)}
    written, declared = (
        {"type": "record", "name": "r", "fields": [{"name": name, "type": two[n]} for name, two in types.items()]}
        for n in (0, 1)
    )
    maps = {**of, "type": "map", "values": of["items"]}
    first, last = -719_162 * factor, 2_932_897 * factor - 1
    good = {"one": first, "some": [last, first], "many": [first] * 70}
    bad = [{**good, **more} for more in ({"one": last + 1}, {"some": [0, first - 1]}, {"many": [last + 1] * 70})]
    parsed = read(declared, *(encoded(written, one) for one in (good, *bad, good)))
    assert [fault.row for fault in parsed.faults] == [1, 2, 3]
    assert {fault.why.rpartition(": ")[2] for fault in parsed.faults} == {"it is not in the years 1 to 9999"}
    assert [row["some"][0].year for row in parsed.batch.to_pylist()] == [9999, 9999]
    # Values of many that are in a map are read one by one.
    late = encoded({"type": "map", "values": kind}, dict.fromkeys(map(str, range(70)), last + 1))
    assert "years 1 to 9999" in read(maps, late).faults[0].why


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (["null", "int", "long"], "int64"),
        (["float", "null", "double"], "double"),
        (["int", "string"], "struct<member0: int32, member1: string>"),
        ({"type": "int", "logicalType": "time-millis"}, "int32"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "int64"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 39}, "binary"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": {"type": "string", "avro.java.string": "String"}}, "string"),
    ],
)
def test_columns_are_those_of_spark(schema: object, columns: str) -> None:
    text = json.dumps({"type": "record", "name": "r", "fields": [{"name": "a", "type": schema}]})
    assert parse_avro_schema(text).columns == (("a", columns),)


def test_a_union_of_numbers_is_the_wider_one() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": ["null", "int", "long"]}]}
    assert read(schema, b"\0", b"\2\4", b"\4\6").batch["a"].to_pylist() == [None, 2, 3]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ('{"type": "record"', "no Avro schema"),
        ("[" * 100_000, "no Avro schema"),
        ('"order"', "no type of this name"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b", "type": "a"}]}', "contains itself"),
        (doubling(30), "has more than 262,144 letters"),
        ('{"type": "record", "name": "a", "fields": []}', "no field"),
        ('{"type": "record", "name": "a", "fields": [{"name": "b"}]}', "no type"),
        ('{"type": "array"}', "items"),
        ('["int", "int"]', "once"),
        ('["int", ["null"]]', "no union"),
        ('{"type": "fixed", "name": "a"}', "size"),
        ('{"type": "enum", "name": "a"}', "symbols"),
        ('{"type": "enum"}', "no name"),
    ],
)
def test_what_is_no_schema_is_refused(schema: str, why: str) -> None:
    with pytest.raises(AvroSchemaError, match=why):
        parse_avro_schema(schema)


def test_names_are_found_in_their_namespace() -> None:
    schema = """{"type": "record", "name": "a", "namespace": "n", "fields": [
        {"name": "b", "type": {"type": "enum", "name": "e", "symbols": ["X"]}}, {"name": "c", "type": "n.e"},
        {"name": "d", "type": {"type": "record", "name": "m.r", "fields": [{"name": "e", "type": "n.e"}]}},
        {"name": "f", "type": "f"}]}"""
    other = '{"type": "fixed", "name": "n.f", "size": 2}'
    found = parse_avro_schema(schema, [other]).columns
    assert found == (("b", "string"), ("c", "string"), ("d", "struct<e: string>"), ("f", "binary"))


def test_a_declaration_has_the_schema_and_not_its_file(tmp_path: Path) -> None:
    path = tmp_path / "order.avsc"
    path.write_text(json.dumps(ORDER))
    by_path = Avro(path, raw=True)
    path.unlink()
    assert by_path == Avro(ORDER, raw=True) == parse_records(by_path.model_dump(mode="json"))
    assert by_path.columns == (("item", "string"), ("pieces", "int64"), ("at", "timestamp[us, tz=UTC]"))
    with pytest.raises(FileNotFoundError):
        Avro(str(path))


def test_a_schema_that_is_no_record_has_one_column() -> None:
    parsed = read('"string"', b"\x02a", None, b"\x02bc")
    assert parsed.batch.to_pylist() == [{"value": "a"}, {"value": None}]
    assert [fault.row for fault in parsed.faults] == [2]
