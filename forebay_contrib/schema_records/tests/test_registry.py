"""Test records whose schemas are in a registry, as confluent-kafka's own serializers write them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    SchemaRegistryClient,
)
from confluent_kafka.schema_registry.avro import AvroSerializer

from forebay.cli.commands.records.stored_letters import whys
from forebay_contrib.schema_records.avro import Avro
from forebay_contrib.schema_records.avro_reader import AvroReader
from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.block_store.frames.columns import ColumnsError, arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.record_formats.registries.registry_client import NoSuchSchemaError, RegistryClient
from receiver_runtime.record_formats.typed_rows import TypedRows
from receiver_runtime.sources.fields.schema_registry import Registry
from receiver_runtime.sources.fields.secret import EnvVar
from receiver_runtime.sources.records.registry import RecordsError, parse_records
from tests.support.servers.registry_records import CONTEXT, check_records_are_rows, read, strategies
from tracker_store.connection.errors import SchemaConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from receiver_runtime.block_store.frames.columns import Columns
    from tests.support.servers.schema_registry import RegistryServer

CLIENT = "receiver_runtime.record_formats.registries.registry_client"


def record(**types: object) -> str:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})


def serializer(server: RegistryServer, schema: str | Schema, **options: object) -> Any:  # noqa: ANN401  untyped
    return AvroSerializer(SchemaRegistryClient({"url": server.url}), schema, conf=options or None)


def reader(server: RegistryServer, known: Mapping[str, str] | None = None, **fields: Any) -> AvroReader:  # noqa: ANN401
    made = AvroReader(Avro(registry=Registry(server.url), **fields))
    made.grow(lambda: known or {}, lambda _: None)
    return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time that readers and clients have."""
    now = [1000.0]
    for module in (CLIENT, "receiver_runtime.record_formats.registries.schema_reader"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def typed_rows(server: RegistryServer, known: Callable[[], Columns], register: Callable[[Columns], None]) -> TypedRows:
    made = TypedRows(Avro(registry=Registry(server.url), keep=()), arrow_schema(Http.columns), Http.record_column)
    made.grow(known, register)
    return made


def nested(levels: int) -> object:
    kind: object = "int"
    for _ in range(levels):
        kind = {"type": "array", "items": kind}
    return kind


@strategies
def test_records_of_confluents_serializer_are_rows_whatever_names_its_subjects(
    server: RegistryServer, strategy: object
) -> None:
    serialize = serializer(server, record(item="string", pieces="long"), **{"subject.name.strategy": strategy})
    rows = [{"item": "tea", "pieces": 2}, {"item": "pot", "pieces": 1}]
    check_records_are_rows(server, serialize, reader(server), rows)


def test_named_types_of_references_are_found(server: RegistryServer) -> None:
    server.register("place", {"schema": '{"type": "enum", "name": "shop.Place", "symbols": ["HERE", "THERE"]}'})
    client = SchemaRegistryClient({"url": server.url})
    to = '{"type": "record", "name": "shop.To", "fields": [{"name": "place", "type": "shop.Place"}]}'
    client.register_schema("to", Schema(to, "AVRO", [SchemaReference("shop.Place", "place", 1)]))
    schema = Schema(record(to="shop.To", back="shop.Place"), "AVRO", [SchemaReference("shop.To", "to", 1)])
    data = serializer(server, schema)({"to": {"place": "HERE"}, "back": "THERE"}, CONTEXT)
    assert read(reader(server), data).batch.to_pylist() == [{"to": {"place": "HERE"}, "back": "THERE"}]


def test_a_schema_that_only_adds_is_registered_before_its_rows_are_returned(server: RegistryServer) -> None:
    old = serializer(server, record(item="string", pieces="int"))
    new = serializer(server, record(item="string", price=["null", "double"], pieces="int"))
    registered: list[Columns] = []
    made = AvroReader(Avro(registry=Registry(server.url)))
    made.grow(lambda: {"pieces": "int64"}, lambda columns: registered.append(list(columns)))
    first = old({"item": "tea", "pieces": 2}, CONTEXT)
    second = new({"item": "pot", "price": 1.5, "pieces": 1}, CONTEXT)
    assert read(made, first).batch.schema.names == ["item", "pieces"]
    parsed = read(made, first, second, None, first)
    # The stream had wider numbers before.
    assert registered == [
        [("item", "string"), ("pieces", "int64")],
        [("item", "string"), ("pieces", "int64"), ("price", "double")],
    ]
    assert parsed.batch.to_pylist() == [
        {"item": "tea", "pieces": 2, "price": None},
        {"item": "pot", "pieces": 1, "price": 1.5},
        {"item": None, "pieces": None, "price": None},
        {"item": "tea", "pieces": 2, "price": None},
    ]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"item": "long"}, "item is int64, and the stream has string"),
        ({"Item": "string"}, "one name in Spark"),
        ({"pieces": "double"}, "pieces is double, and the stream has int64"),
    ],
)
def test_a_schema_that_does_not_fit_the_stream_makes_dead_letters_with_the_reason(
    server: RegistryServer, other: Mapping[str, str], why: str
) -> None:
    good = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    bad = serializer(server, record(**other))(
        dict.fromkeys(other, 1 if "string" not in other.values() else "a"), CONTEXT
    )
    made = reader(server, {"pieces": "int64"})
    parsed = read(made, good, bad, good)
    [fault] = parsed.faults
    assert (fault.row, fault.reason) == (1, DeadLetterReason.DOES_NOT_FIT)
    assert why in fault.why
    assert parsed.batch["item"].to_pylist() == ["tea", "tea"]


def test_columns_that_the_driver_log_refuses_make_dead_letters(server: RegistryServer) -> None:
    def refuse(_: Columns) -> None:
        raise ColumnsError("column item is string, the stream has int64 since version 1")

    made = AvroReader(Avro(registry=Registry(server.url)))
    made.grow(dict, refuse)
    [fault] = read(made, serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)).faults
    assert fault.why == "schema 1: column item is string, the stream has int64 since version 1"
    assert made.schema.names == []


def test_a_refusal_of_the_driver_log_is_tried_again(server: RegistryServer, clock: list[float]) -> None:
    asked: list[Columns] = []

    def refuse_once(columns: Columns) -> None:
        asked.append(columns)
        if len(asked) == 1:
            raise ColumnsError("no")

    made = AvroReader(Avro(registry=Registry(server.url)))
    made.grow(dict, refuse_once)
    data = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    for _ in range(2):
        assert [fault.why for fault in read(made, data).faults] == ["schema 1: no"]
    clock[0] += 31
    assert not made.is_ready(pa.array([data]))
    assert read(made, data).batch.to_pylist() == [{"item": "tea"}]
    assert len(asked) == 2


def test_a_column_that_another_receiver_was_first_with_has_its_type(server: RegistryServer) -> None:
    stored = [("_body", "binary")]

    def register(columns: Columns) -> None:
        """Let another receiver be first."""
        if dict(columns)["pieces"] != "int64":
            stored.append(("pieces", "int64"))
            raise SchemaConflictError("column pieces is int32, the stream has int64")

    rows = typed_rows(server, lambda: stored, register)
    data = serializer(server, record(pieces="int"))({"pieces": 2}, CONTEXT)
    other = serializer(server, record(pieces="string"))({"pieces": "2"}, CONTEXT)
    checked = rows.check(rows.rows_of([data, other]))
    assert checked.batch["pieces"].to_pylist() == [2]
    assert rows.schema.field("pieces").type == pa.int64()
    assert [letter.why for letter in checked.letters] == ["schema 2: pieces is string, and the stream has int64"]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (nested(70), "column 'a': there are more than 60 types in one another: flatten them"),
        (nested(400), "there are more than 60 types in one another"),
        (json.loads(record(b="int", B="int")), "column 'a': the fields 'b' and 'B' have one name in Spark: rename one"),
        ({"type": "record", "name": "r", "fields": [{"name": [], "type": "int"}]}, "unhashable"),
    ],
)
def test_a_schema_that_no_block_can_have_makes_dead_letters(server: RegistryServer, kind: object, why: str) -> None:
    registered: list[Columns] = []
    rows = typed_rows(server, tuple, registered.append)
    schema = {"type": "record", "name": "o", "fields": [{"name": "a", "type": kind}]}
    server.register("a", {"schema": json.dumps(schema)})
    good = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    for _ in range(2):
        checked = rows.check(rows.rows_of([good, b"\0\0\0\0\1" + bytes(8), good]))
        [letter] = checked.letters
        assert (letter.reason, why in letter.why) == (DeadLetterReason.DOES_NOT_FIT, True)
        assert checked.batch["item"].to_pylist() == ["tea", "tea"]
    assert [columns[0] for columns in registered] == [("item", "string")]


def test_nested_values_fit_a_wider_type(server: RegistryServer) -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}]}
    types = {"one": ["null", inner], "many": {"type": "array", "items": "In"}, "by": {"type": "map", "values": "float"}}
    known = {
        "one": "struct<a: int64, b: string>",
        "many": "list<item: struct<a: int64, b: string>>",
        "by": "map<string, double>",
    }
    serialize = serializer(server, record(**types))
    data = [
        serialize({"one": {"a": 1}, "many": [{"a": 2}, {"a": 3}], "by": {"x": 0.5}}, CONTEXT),
        serialize({"one": None, "many": [], "by": {}}, CONTEXT),
    ]
    assert read(reader(server, known), *data).batch.to_pylist() == [
        {"one": {"a": 1, "b": None}, "many": [{"a": 2, "b": None}, {"a": 3, "b": None}], "by": [("x", 0.5)]},
        {"one": None, "many": [], "by": []},
    ]
    [fault] = read(reader(server, {"one": "struct<b: int32>"}), data[0]).faults
    assert "one.a is new within a column" in fault.why


@pytest.mark.parametrize(
    ("data", "reason", "why"),
    [
        (b"", "unparsable", "no header"),
        (b"\0\0\0\0", "unparsable", "no header"),
        (b"\1\0\0\0\1\6tea", "unparsable", "no header"),
        (b"\0\0\0\0\1\6te", "unparsable", "larger than what is left"),
        (b"\0\0\0\0\7\6tea", "does_not_fit", "no schema 7"),
        (b"\0\xff\xff\xff\xff\6tea", "does_not_fit", "no schema 4294967295"),
        (b"\0\0\0\0\2", "does_not_fit", "schema 2 is JSON"),
        (b"\0\0\0\0\3", "does_not_fit", "contains itself"),
    ],
)
def test_poison_is_a_dead_letter_beside_records_that_fit(
    server: RegistryServer, data: bytes, reason: str, why: str
) -> None:
    good = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    server.register("other", {"schema": "{}", "schemaType": "JSON"})
    itself = '{"type": "record", "name": "a", "fields": [{"name": "b", "type": ["null", "a"]}]}'
    server.register("other", {"schema": itself})
    made = reader(server)
    for _ in range(2):
        parsed = read(made, good, data, good)
        [fault] = parsed.faults
        assert (fault.row, fault.reason.label) == (1, reason)
        assert why in fault.why
        assert parsed.batch["item"].to_pylist() == ["tea", "tea"]
    assert len(server.requests) <= 2


@pytest.mark.parametrize("number", [0, 2**31, 2**32 - 1])
def test_an_id_that_no_registry_gives_is_not_asked_for(server: RegistryServer, number: int) -> None:
    # As Confluent's registry answers what is no int.
    server.fails = 404
    data = b"\0" + number.to_bytes(4) + b"\6tea"
    made = reader(server)
    assert made.is_ready(pa.array([data]))
    [fault] = read(made, data).faults
    assert fault.why == f"the schema registry gives no schema {number}: an id is from 1 to 2147483647"
    assert server.requests == []


def test_a_schema_that_the_user_may_not_read_makes_dead_letters(server: RegistryServer, clock: list[float]) -> None:
    made = reader(server)
    data = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    server.fails, server.body = 403, b'{"error_code": 40301, "message": "User is denied operation Read"}'
    for _ in range(2):
        [fault] = read(made, data).faults
        assert "no right to read it; grant it (User is denied operation Read)" in fault.why
    assert len(server.requests) == 1
    server.fails, server.body = 0, None
    clock[0] += 31
    assert read(made, data).batch["item"].to_pylist() == ["tea"]


def test_a_read_asks_for_some_new_ids_and_no_answer_is_forgotten_while_its_rows_wait(
    server: RegistryServer, clock: list[float]
) -> None:
    good = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    records = [good, *(b"\0" + number.to_bytes(4) + b"\6tea" for number in range(2, 122)), good]
    made = reader(server)
    for asked in (50, 100):
        with pytest.raises(RowsWaitError, match="more than 50 ids of schemas are new"):
            read(made, *records)
        assert len(server.requests) == asked
        clock[0] += 300
    parsed = read(made, *records)
    assert len(server.requests) == 121
    assert [fault.row for fault in parsed.faults] == list(range(1, 121))
    assert parsed.batch["item"].to_pylist() == ["tea", "tea"]
    # People who look at many records do not wait.
    found = whys(reader(server), records)
    assert (found[0], found[-1]) == (None, None)
    assert found[120] == "the schema registry gives no schema 121: Schema 121 not found"


def test_an_id_that_rows_need_stays_missing_beside_many_others(
    server: RegistryServer, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fails, server.body = 404, b'{"error_code": 40403, "message": "not found"}'
    client = RegistryClient(Registry(server.url))
    monkeypatch.setattr(f"{CLIENT}._MANY_MISSING", 3)
    for number in range(1, 6):
        with pytest.raises(NoSuchSchemaError):
            client.schema(number)
    assert all(client.refusal(number) for number in range(1, 6))
    client.hold([1, 2, 9])
    clock[0] += 31
    with pytest.raises(NoSuchSchemaError):
        client.schema(6)
    assert [number for number in range(1, 10) if client.refusal(number)] == [1, 2, 6]
    clock[0] += 600
    assert client.refusal(1) is None


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, None, "500"),
        (401, None, "401"),
        (429, None, "429"),
        # Of a wrong URL, which says nothing of a schema.
        (404, b"<html>", "404"),
        (404, b'{"error_code": 404}', "404"),
        (404, b'{"error_code": []}', "404"),
        (403, None, "403"),
        (403, b'{"error_code": 40403}', "403"),
        (302, None, "302"),
        (200, b"<html>", "answered no schema"),
        (200, b"[]", "answered no schema"),
        (200, b"{}", "answered no schema"),
        (200, b'{"schema": "{}", "references": [{}]}', "answered no schema"),
        (200, b'{"schema": "{}", "references": 5}', "answered no schema"),
        (200, b"[" * 100_000, "answered no schema"),
    ],
)
def test_records_wait_for_a_registry_that_does_not_say(
    server: RegistryServer, status: int, body: bytes | None, why: str
) -> None:
    first = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    second = serializer(server, record(item="string", more="int"))({"item": "pot", "more": 1}, CONTEXT)
    made = reader(server)
    read(made, first)
    server.fails, server.body = status, body
    # What is known goes on.
    assert read(made, first).batch.num_rows == 1
    assert made.is_ready(pa.array([first, None, b"x"]))
    assert not made.is_ready(pa.array([first, second]))
    with pytest.raises(RowsWaitError, match=why):
        read(made, first, second)
    server.fails, server.body = 0, None
    assert read(made, first, second).batch["item"].to_pylist() == ["tea", "pot"]
    assert made.is_ready(pa.array([first, second]))


def test_records_wait_for_a_registry_that_is_not_there() -> None:
    made = AvroReader(Avro(registry=Registry("http://127.0.0.1:1")))
    made.grow(dict, lambda _: None)
    with pytest.raises(RowsWaitError, match="does not answer"):
        read(made, b"\0\0\0\0\1\6tea")


def test_a_login_is_sent_and_not_stored(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> None:
    data = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    monkeypatch.setenv("REGISTRY_SECRET", "s3cret")
    for login, header in (
        ({"username": "forebay", "password": EnvVar("REGISTRY_SECRET")}, "Basic Zm9yZWJheTpzM2NyZXQ="),
        ({"token": "env:REGISTRY_SECRET"}, "Bearer s3cret"),
    ):
        declared = Avro(registry=Registry(server.url, **login))
        stored = declared.model_dump(mode="json")
        assert "s3cret" not in json.dumps(stored)
        assert parse_records(stored) == declared
        made = AvroReader(declared)
        made.grow(dict, lambda _: None)
        assert read(made, data).batch.num_rows == 1
        assert server.authorizations[-1] == header
    monkeypatch.delenv("REGISTRY_SECRET")
    made = AvroReader(declared)
    made.grow(dict, lambda _: None)
    with pytest.raises(RowsWaitError, match="REGISTRY_SECRET is not set"):
        read(made, data)


@pytest.mark.parametrize(
    "declared",
    [
        {"kind": "avro"},
        {"kind": "avro", "registry": {"url": "registry:8081"}},
        {"kind": "avro", "registry": {"url": "http://me:pass@registry"}},
        {"kind": "avro", "registry": {"url": "http://registry", "username": "me"}},
        {"kind": "avro", "registry": {"url": "http://registry", "password": "me"}},
        {"kind": "avro", "registry": {"url": "http://registry", "timeout": 0}},
    ],
)
def test_a_declaration_that_can_not_be_is_refused(declared: Mapping[str, object]) -> None:
    with pytest.raises(RecordsError):
        parse_records(declared)


def test_keys_bring_columns_of_their_own_and_wait_for_the_registry_too(server: RegistryServer) -> None:
    registry = Registry(server.url)
    registered: list[Columns] = []
    source = arrow_schema((("key", "binary"), ("value", "binary"), ("offset", "int64")))
    rows = TypedRows(Avro(registry=registry, key=Avro(registry=registry), keep=["_offset"]), source, "value")
    rows.grow(lambda: [("_key_id", "int64"), ("item", "string")], registered.append)
    value = serializer(server, record(item="string"))({"item": "tea"}, CONTEXT)
    key = serializer(server, record(id="int"))({"id": 7}, CONTEXT)
    other = serializer(server, record(id="int", shop="string"))({"id": 8, "shop": "Bonn"}, CONTEXT)
    text = serializer(server, '"string"')("k", CONTEXT)

    def batch(*pairs: tuple[bytes | None, bytes | None]) -> pa.RecordBatch:
        columns = [pa.array(column, pa.binary()) for column in zip(*pairs, strict=True)]
        return pa.RecordBatch.from_arrays([*columns, pa.nulls(len(pairs), pa.int64())], schema=source)

    # Before the first schema there is no column, of the record or of its key.
    assert rows.check(batch((None, None), (None, None))).batch.num_rows == 2
    assert rows.check(batch((key, None), (None, None))).batch["_key_id"].to_pylist() == [7, None]
    server.fails = 503
    assert rows.is_ready(batch((key, None)))
    for new in (batch((key, value)), batch((other, None))):
        assert not rows.is_ready(new)
        with pytest.raises(RowsWaitError, match="503"):
            rows.check(new)
    server.fails = 0
    checked = rows.check(batch((key, value), (other, value), (text, None), (b"no", value)))
    assert checked.batch.drop_columns("_offset").to_pylist() == [
        {"item": "tea", "_key_id": 7, "_key_shop": None, "_key_value": None},
        {"item": "tea", "_key_id": 8, "_key_shop": "Bonn", "_key_value": None},
        {"item": None, "_key_id": None, "_key_shop": None, "_key_value": "k"},
    ]
    assert [letter.why for letter in checked.letters] == [
        "key: it has no header of a schema registry, which is a 0 and four bytes"
    ]
    assert [[name for name, _ in columns] for columns in registered] == [
        ["_key_id", "_offset"],
        ["item", "_key_id", "_offset"],
        ["item", "_key_id", "_key_shop", "_offset"],
        ["item", "_key_id", "_key_shop", "_key_value", "_offset"],
    ]
    assert dict(registered[-1])["_key_id"] == "int64"
    assert rows.schema.names == ["item", "_key_id", "_key_shop", "_key_value", "_offset"]
