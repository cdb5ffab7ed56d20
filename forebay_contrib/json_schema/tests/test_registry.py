"""Test records of JSON whose schemas are in a registry, as confluent-kafka's own serializer writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
)
from confluent_kafka.schema_registry.json_schema import JSONSerializer

from forebay_contrib.json_schema.declaration import JsonSchema
from forebay_contrib.json_schema.registry_reader import JsonSchemaReader
from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.sources.fields.schema_registry import Registry
from receiver_runtime.sources.records.registry import parse_records
from tests.support.servers.registry_records import CONTEXT, check_records_are_rows, read, strategies

if TYPE_CHECKING:
    from receiver_runtime.block_store.frames.columns import Columns
    from tests.support.servers.schema_registry import RegistryServer

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


def document(**properties: object) -> str:
    return json.dumps({"title": "Order", "type": "object", "properties": properties})


def serializer(server: RegistryServer, schema: str | Schema, **options: object) -> Any:  # noqa: ANN401  untyped
    return JSONSerializer(schema, SchemaRegistryClient({"url": server.url}), conf=options or None)


def reader(server: RegistryServer, registered: list[Columns] | None = None, **fields: Any) -> JsonSchemaReader:  # noqa: ANN401
    declared = JsonSchema(registry=Registry(server.url), **fields)
    made = declared.load_reader()(declared)
    assert isinstance(made, JsonSchemaReader)
    columns_of_stream: list[Columns] = [] if registered is None else registered
    made.grow(dict, lambda columns: columns_of_stream.append(list(columns)))
    return made


@strategies
def test_records_of_confluents_serializer_are_rows_whatever_names_its_subjects(
    server: RegistryServer, strategy: object
) -> None:
    serialize = serializer(server, document(item=TEXT, pieces=NUMBER), **{"subject.name.strategy": strategy})
    rows = [{"item": "té", "pieces": 2}, {"item": "pot", "pieces": 1}]
    check_records_are_rows(server, serialize, reader(server), rows)


def test_documents_of_references_are_found_by_name_and_by_id(server: RegistryServer) -> None:
    client = SchemaRegistryClient({"url": server.url})
    city = {
        "$id": "http://shop/city.json",
        "type": "object",
        "properties": {"name": {"$ref": "#/$defs/name"}},
        "$defs": {"name": {"type": "string", "minLength": 2}},
    }
    client.register_schema("city", Schema(json.dumps(city), "JSON"))
    place = {"$id": "http://shop/place.json", "type": "object", "properties": {"city": {"$ref": "city.json"}}}
    city_of = SchemaReference("http://shop/city.json", "city", 1)
    client.register_schema("place", Schema(json.dumps(place), "JSON", [city_of]))
    order = {
        "title": "Order",
        "$id": "http://shop/order.json",
        "type": "object",
        "properties": {
            "to": {"$ref": "place.json"},
            "back": {"oneOf": [{"type": "null", "title": "Not included"}, {"$ref": "http://shop/city.json"}]},
            "name": {"$ref": "http://shop/city.json#/$defs/name"},
        },
    }
    references = [SchemaReference("http://shop/place.json", "place", 1), city_of]
    serialize = serializer(server, Schema(json.dumps(order), "JSON", references))
    row = {"to": {"city": {"name": "Bonn"}}, "back": None, "name": "tea"}
    good = serialize(row, CONTEXT)
    parsed = read(reader(server), good, good.replace(b"Bonn", b"B"))
    assert parsed.batch.to_pylist() == [row]
    assert [fault.why for fault in parsed.faults] == ["'B' has less than 2 - at `$.to.city.name`"]


def test_a_schema_that_only_adds_is_registered_before_its_rows_are_returned(server: RegistryServer) -> None:
    old = serializer(server, document(item=TEXT, pieces=NUMBER))
    new = serializer(server, document(item=TEXT, price={"type": "number"}, pieces=NUMBER))
    registered: list[Columns] = []
    made = reader(server, registered)
    first = old({"item": "tea", "pieces": 2}, CONTEXT)
    second = new({"item": "pot", "price": 1.5, "pieces": 1}, CONTEXT)
    assert read(made, first).batch.schema.names == ["item", "pieces"]
    parsed = read(made, first, second, None, first)
    assert registered == [
        [("item", "string"), ("pieces", "int64")],
        [("item", "string"), ("pieces", "int64"), ("price", "double")],
    ]
    assert [list(row.values()) for row in parsed.batch.to_pylist()] == [
        ["tea", 2, None],
        ["pot", 1, 1.5],
        [None, None, None],
        ["tea", 2, None],
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "object", "properties": {"a": {"type": "number", "minimum": 1' + "0" * 400 + "}}}",
        '{"type": "object", "properties": {"a": {"type": "string", "minLength": "2"}}}',
        '{"type": "object", "required": 5, "properties": {"a": {"type": "string"}}}',
        '{"type": [["x"]], "properties": {"a": {"type": "string"}}}',
        '{"$id": "http://[::1", "type": "object", "properties": {"a": {"$ref": "x"}}}',
        '{"a": ' * 3000 + "1" + "}" * 3000,
        "{",
    ],
    ids=range(7),
)
def test_no_schema_keeps_other_records_from_being_read(server: RegistryServer, text: str) -> None:
    good = serializer(server, document(item=TEXT))({"item": "tea"}, CONTEXT)
    server.register("other", {"schema": text, "schemaType": "JSON"})
    parsed = read(reader(server), good, b'\0\0\0\0\2{"a": "x"}', good)
    assert parsed.batch["item"].to_pylist() == ["tea", "tea"]
    [fault] = parsed.faults
    assert fault.why.startswith("schema 2: ")


@pytest.mark.parametrize(
    ("data", "reason", "why"),
    [
        (b"", "unparsable", "no header"),
        (b'{"item": "tea"}', "unparsable", "no header"),
        (b"\0\0\0\0\1", "unparsable", ""),
        (b'\0\0\0\0\1{"item": "te', "unparsable", ""),
        (b'\0\0\0\0\1{"item": "\xff"}', "unparsable", ""),
        (b'\0\0\0\0\1{"item": 1}', "does_not_fit", "`$.item`"),
        (b"\0\0\0\0\7{}", "does_not_fit", "no schema 7"),
        (b"\0\0\0\0\2{}", "does_not_fit", "schema 2 is AVRO"),
        (b"\0\0\0\0\3{}", "does_not_fit", "schema 3: #: [1] says no type"),
        (b"\0\0\0\0\4{}", "does_not_fit", "schema 4: #/properties/a: $ref 'other.json' is in no place"),
        (b"\0\0\0\0\5{}", "does_not_fit", "schema 5: #/properties/a: multipleOf"),
        (b'\0\0\0\0\6{"item": 1}', "does_not_fit", "item is int64, and the stream has string"),
    ],
)
def test_poison_is_a_dead_letter_beside_records_that_fit(
    server: RegistryServer, data: bytes, reason: str, why: str
) -> None:
    good = serializer(server, document(item=TEXT))({"item": "tea"}, CONTEXT)
    server.register("other", {"schema": '"string"', "schemaType": "AVRO"})
    for text in ("[1]", document(a={"$ref": "other.json"}), document(a={"type": "integer", "multipleOf": 2})):
        server.register("other", {"schema": text, "schemaType": "JSON"})
    server.register("other", {"schema": document(item=NUMBER), "schemaType": "JSON"})
    made = reader(server)
    read(made, good)
    for _ in range(2):
        parsed = read(made, good, data, good)
        [fault] = parsed.faults
        assert (fault.row, fault.reason.label) == (1, reason)
        assert why in fault.why
        assert parsed.batch["item"].to_pylist() == ["tea", "tea"]
    assert len(server.requests) <= 2


def test_records_wait_for_a_registry_that_does_not_say(server: RegistryServer) -> None:
    first = serializer(server, document(item=TEXT))({"item": "tea"}, CONTEXT)
    made = reader(server)
    server.fails = 503
    with pytest.raises(RowsWaitError, match="503"):
        read(made, first)
    server.fails = 0
    assert read(made, first).batch.num_rows == 1


def test_a_schema_beside_the_registry_declares_columns_and_no_rules(server: RegistryServer) -> None:
    strict = {"type": "object", "properties": {"item": {"type": "string", "maxLength": 1}}, "required": ["item"]}
    declared = JsonSchema(strict, registry=Registry(server.url))
    assert (declared.columns, declared.rules, declared.required) == ((("item", "string"),), (), ())
    assert parse_records(declared.model_dump(mode="json")) == declared
    made = declared.load_reader()(declared)
    made.grow(dict, lambda _: None)
    good = serializer(server, document(pieces=NUMBER))({"pieces": 2}, CONTEXT)
    assert made.read(pa.array([good])).batch.to_pylist() == [{"item": None, "pieces": 2}]


def test_what_is_near_enough_counts_behind_a_header_too(server: RegistryServer) -> None:
    data = serializer(server, document(pieces={}))({"pieces": "2"}, CONTEXT)
    server.rewrite("JSON", document(pieces=NUMBER))
    assert read(reader(server, coerce=["numbers"]), data).batch.to_pylist() == [{"pieces": 2}]


def test_records_keep_their_bytes_in_a_slice(server: RegistryServer) -> None:
    serialize = serializer(server, document(item=TEXT))
    values = pa.array([serialize({"item": text}, CONTEXT) for text in ("a", "bb", "", "ccc")], pa.binary())
    assert reader(server).read(values.slice(1, 3)).batch["item"].to_pylist() == ["bb", "", "ccc"]
