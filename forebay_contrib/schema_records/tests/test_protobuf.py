"""Test that Protobuf becomes what its own library makes of it, and that no record affects another one."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_contrib.schema_records.proto_schema import ProtoError, ProtoSchema
from forebay_contrib.schema_records.protobuf import Protobuf
from forebay_contrib.schema_records.protobuf_reader import ProtobufReader
from forebay_contrib.schema_records.tests.proto_messages import FIELDS, TEXT, Order, Place
from receiver_runtime.sources.fields.schema_registry import Registry
from receiver_runtime.sources.records.registry import parse_records
from tests.support.searches import examples
from tests.support.servers.schema_registry import registry_server

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.record_formats.record_reader import Parsed

READER = ProtobufReader(Protobuf(TEXT))
# Each message uses the next one twice: 2 to the power of 30 fields.
DOUBLING = (
    "".join(f"message M{n} {{ M{n + 1} a = 1; M{n + 1} b = 2; }} " for n in range(30)) + "message M30 { bool a = 1; }"
)
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def _int(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) | st.integers(-70, 70)


_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": _text,
    "bytes": st.binary(max_size=8),
    "bool": st.booleans(),
    "double": st.floats(allow_nan=False),
    "float": st.floats(width=32, allow_nan=False),
    "State": st.sampled_from([0, 1, -1, 7]),
    "Place": st.builds(
        lambda city, zip_, seen: Place(city=city, zip=zip_, seen=seen),
        _text,
        st.none() | _int(32),
        st.lists(_int(32), max_size=3),
    ),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), _int(32)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), _int(64)),
    **dict.fromkeys(("uint32", "fixed32"), st.integers(0, 2**32 - 1)),
    **dict.fromkeys(("uint64", "fixed64"), st.integers(0, 2**64 - 1)),
}


@st.composite
def orders(draw: st.DrawFn) -> Any:  # noqa: ANN401  Protobuf has no types
    order = Order()
    for name, _, kind, label in FIELDS:
        if not draw(st.booleans()):
            continue
        if kind.startswith("map<string"):
            for word, value in draw(st.dictionaries(_text, _int(64), max_size=3)).items():
                order.counts[word] = value
        elif kind.startswith("map<"):
            for key, place in draw(st.dictionaries(_int(32), _VALUES["Place"], max_size=2)).items():
                order.stops[key].CopyFrom(place)
        elif label == "repeated":
            getattr(order, name).extend(draw(st.lists(_VALUES[kind], max_size=draw(st.sampled_from([3, 90])))))
        elif kind == "Place":
            order.place.CopyFrom(draw(_VALUES[kind]))
        elif kind.endswith("Timestamp"):
            order.at.FromMicroseconds(draw(st.integers(-(2**50), 2**50)))
        else:
            setattr(order, name, draw(_VALUES[kind]))
    return order


def _place(place: Any) -> dict[str, Any]:  # noqa: ANN401  Protobuf has no types
    return {"city": place.city, "zip": place.zip if place.HasField("zip") else None, "seen": list(place.seen)}


def _state(number: int) -> str:
    return {0: "NEW", 1: "SENT", -1: "LOST"}.get(number, str(number))


def row_of(order: Any) -> dict[str, Any]:  # noqa: ANN401  Protobuf has no types
    row: dict[str, Any] = {}
    for name, _, kind, label in FIELDS:
        value = getattr(order, name)
        if kind.startswith("map<"):
            row[name] = {key: _place(one) if "Place" in kind else one for key, one in value.items()}
        elif label == "repeated":
            row[name] = [_place(one) if kind == "Place" else _state(one) if kind == "State" else one for one in value]
        elif (label or kind in {"Place", "google.protobuf.Timestamp"}) and not order.HasField(name):
            row[name] = None
        elif kind.endswith("Timestamp"):
            row[name] = value.ToDatetime(UTC)
        elif kind == "Place":
            row[name] = _place(value)
        else:
            row[name] = _state(value) if kind == "State" else Decimal(value) if name in {"large", "f64"} else value
    return row


def rows_of(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    return [
        {name: dict(value) if name in {"counts", "stops"} else value for name, value in row.items()}
        for row in batch.to_pylist()
    ]


def read(*values: bytes | None, reader: ProtobufReader = READER) -> Parsed:
    return reader.read(pa.array(values, pa.binary()))


@settings(max_examples=examples(400))
@given(st.lists(orders(), max_size=5))
@pytest.mark.search
def test_messages_have_the_values_that_protobuf_gives(drawn: list[Any]) -> None:
    data = [one.SerializeToString() for one in drawn]
    parsed = read(*data)
    assert [fault.why for fault in parsed.faults] == []
    parsed.batch.validate(full=True)
    assert rows_of(parsed.batch) == [row_of(Order.FromString(one)) for one in data]


@settings(max_examples=examples(400))
@given(st.lists(orders(), min_size=1, max_size=4), st.data())
@pytest.mark.search
def test_a_message_is_taken_or_not_whatever_stands_beside_it(drawn: list[Any], data: st.DataObject) -> None:
    records: list[bytes | None] = [one.SerializeToString() for one in drawn]
    bad = bytearray(records[0] or b"\x08")
    bad[data.draw(st.integers(0, len(bad) - 1))] = data.draw(st.integers(0, 255))
    records.insert(data.draw(st.integers(0, len(records))), bytes(bad[: data.draw(st.integers(0, len(bad)))]))
    # Fields in another order, some of them twice.
    records.insert(data.draw(st.integers(0, len(records))), None)
    parsed = read(*records)
    parsed.batch.validate(full=True)
    alone = [read(one) for one in records]
    assert [fault.row for fault in parsed.faults] == [row for row, one in enumerate(alone) if one.faults]
    assert [fault.why for fault in parsed.faults] == [fault.why for one in alone for fault in one.faults]
    assert repr(parsed.batch.to_pylist()) == repr([row for one in alone for row in one.batch.to_pylist()])


def test_fields_in_any_order_and_more_than_once_are_as_protobuf_has_them() -> None:
    parts = [
        Order(card="1", small=1, numbers=[1, 2]),
        Order(cash=0.5, small=-2, numbers=[3], tags=["a"]),
        Order(item="tea", tags=["b"]),
    ]
    together = [b"".join(one.SerializeToString() for one in some) for some in (parts, parts[::-1], parts[1:])]
    # A number without packing, and a field that the schema has not.
    together.append(b"\xa0\x01\x05" + b"\xa2\x01\x02\x06\x07" + b"\xf2\x3f\x01x" + b"\xf8\x3f\x01" + b"\xa0\x01\x08")
    assert rows_of(read(*together).batch) == [row_of(Order.FromString(one)) for one in together]
    assert read(together[3]).batch["numbers"].to_pylist() == [[5, 6, 7, 8]]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x0a", "within a value"),
        (b"\x0a\x05tea", "larger than what is left"),
        (b"\x0a\x02\xff\xff", "not UTF-8"),
        (b"\x00", "no number"),
        (b"\x0b", "no number, or a type"),
        (b"\x10" + b"\xff" * 11, "longer than 64 bits"),
        (b"\x49\0\0\0", "within a value"),
        (b"\xaa\x01\x07" + bytes(7), "larger than what is left"),
        (b"\xa2\x01\x01\x80", "within a value"),
        (b"\x92\x01\x02\x0a\x05", "larger than what is left"),
        (b"\x8a\x01\x07\x08\x80\x80\x80\x80\x80\x7f", "out of range"),
        (b"\x92\x01\0\x92\x01\0", "there twice"),
        (b"\x0a\x01x" * 100 + b"\x0a", "within a value"),
    ],
)
def test_bytes_that_are_no_message_are_a_fault(data: bytes, why: str) -> None:
    good = Order(item="tea").SerializeToString()
    parsed = read(good, data, good)
    [fault] = parsed.faults
    assert (fault.row, fault.reason.label) == (1, "unparsable")
    assert why in fault.why
    assert parsed.batch["item"].to_pylist() == ["tea", "tea"]


def test_messages_of_confluents_serializer_are_rows() -> None:
    context = SerializationContext("orders", MessageField.VALUE)
    with registry_server() as server, SchemaRegistryClient({"url": server.url}) as client:
        conf = {"skip.known.types": True}
        data = ProtobufSerializer(Order, client, conf)(Order(item="tea"), context)
        other = ProtobufSerializer(Place, client, conf)(Place(city="x"), context)
        server.rewrite("PROTOBUF", TEXT)
        for message, rows, why in (("", ["tea"], "shop.Place, and"), ("Place", ["x"], "shop.Order, and")):
            reader = ProtobufReader(Protobuf(registry=Registry(server.url), message=message))
            reader.grow(dict, lambda _: None)
            # The place of the message: none, too far, too deep.
            parsed = read(data, other, data[:5] + b"\x02\x20", data[:5] + b"\x80\x01", data[:5], reader=reader)
            assert parsed.batch.column(0).to_pylist() == rows
            assert [why in fault.why for fault in parsed.faults] == [True, False, False, False]
            assert "no message at [16]" in parsed.faults[1].why
            assert "the place of its message" in parsed.faults[2].why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("message A {", "it ends within a message"),
        ("message A { int32 = 1; }", "is expected"),
        ("message A { int32 a = b; }", "a number"),
        ("message A { B b = 1; }", "there is no type B"),
        ("message A { A a = 1; }", "contains itself"),
        (DOUBLING, "more than 5,000 fields in all"),
        ("message A { }", "no field"),
        ("message A { int32 a = 1; int32 b = 1; }", "one number"),
        ("message A { repeated group B = 1 { } }", "groups"),
        ("message A { map<B, int32> b = 1; }", "the key of a map"),
        ("message A { int32 a = 1; } message A { int32 a = 1; }", "there twice"),
        ("enum A { B = 0; }", "no message"),
        ("message A { int32 a = 1; } @", "no .proto"),
        ("message A {" * 100, "levels deep"),
    ],
)
def test_what_is_no_proto_is_refused(text: str, why: str) -> None:
    with pytest.raises(ProtoError, match=why):
        Protobuf(text)


def test_proto2_has_presence_and_required_fields() -> None:
    reader = ProtobufReader(Protobuf('message A { required int32 a = 1; optional string b = 2 [default = "x"]; }'))
    parsed = read(b"\x08\x01", b"\x12\x01y", reader=reader)
    assert parsed.batch.to_pylist() == [{"a": 1, "b": None}]
    assert "a is required, and missing" in parsed.faults[0].why


def test_a_file_brings_those_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "b.proto").write_text('syntax = "proto3"; package b; message B { int32 x = 1; }')
    (tmp_path / "a.proto").write_text(
        'syntax = "proto3"; import "b/b.proto"; import "google/protobuf/wrappers.proto"; '
        "message A { b.B b = 1; google.protobuf.Int64Value c = 2; } message C { .b.B b = 1; }"
    )
    declared = Protobuf(tmp_path / "a.proto")
    assert declared.columns == (("b", "struct<x: int32>"), ("c", "struct<value: int64>"))
    assert parse_records(declared.model_dump(mode="json")) == declared
    assert read(b"\x0a\x02\x08\x05", reader=ProtobufReader(declared)).batch["b"].to_pylist() == [{"x": 5}]
    assert Protobuf(tmp_path / "a.proto", message="C").columns == (("b", "struct<x: int32>"),)


def test_messages_are_found_by_their_place() -> None:
    schema = ProtoSchema(
        "package p; message A { message B { int32 a = 1; } message C { int32 a = 1; } B b = 1; } "
        "message D { A.C c = 1; }"
    )
    assert [schema.at(path) for path in ((0,), (1,), (0, 1))] == ["p.A", "p.D", "p.A.C"]
    assert schema.message("D").columns == (("c", "struct<a: int32>"),)


def test_a_time_is_that_of_its_message() -> None:
    order = Order()
    order.at.FromDatetime(datetime(2026, 1, 2, 3, 4, 5, 678901, UTC))
    assert read(order.SerializeToString()).batch["at"].to_pylist() == [datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)]
