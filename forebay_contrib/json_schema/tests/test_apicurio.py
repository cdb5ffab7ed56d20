"""Test JSON Schema on a real registry: references, columns that come later, and what checks say. ``make catalogs``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONSerializer

from forebay.cli.checks.source_checks import check_registries
from forebay_contrib.json_schema.declaration import JsonSchema
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.sources.fields.schema_registry import Registry
from tests.support.servers.registry_records import CONTEXT

if TYPE_CHECKING:
    from tests.support.servers.apicurio import ApicurioServer

pytestmark = [pytest.mark.catalogs, pytest.mark.timeout(600)]
CITY = {"type": "object", "properties": {"name": {"type": "string", "minLength": 2}}}


def test_json_schema_of_a_real_registry(registry: ApicurioServer) -> None:
    declared = JsonSchema(registry=Registry(registry.url))
    made = declared.load_reader()(declared)
    made.grow(dict, lambda _: None)
    kafka = Kafka(bootstrap_servers="127.0.0.1:1", topics=["orders"], group="g")

    def said(source: Kafka | Http) -> list[tuple[str, str]]:
        return [(str(one.health), one.found) for one in check_registries("orders", source, declared, [("to", "int64")])]

    assert said(Http(listen="127.0.0.1:0")) == [("ok", f"the schema registry {registry.url} answers")]
    [(health, found)] = said(kafka)
    assert (health, "no subject orders-value" in found) == ("warning", True)
    with SchemaRegistryClient({"url": registry.url}) as client:
        client.register_schema("city", Schema(json.dumps(CITY), "JSON"))

        def encoded(row: dict[str, object], **properties: object) -> bytes:
            text = json.dumps({"title": "Order", "type": "object", "properties": properties})
            city = [SchemaReference("city.json", "city", 1)]
            value = JSONSerializer(Schema(text, "JSON", city), client)(row, CONTEXT)
            assert isinstance(value, bytes)
            return value

        item, to = {"type": "string"}, {"$ref": "city.json"}
        first = encoded({"item": "tea", "to": {"name": "Bonn"}}, item=item, to=to)
        second = encoded({"item": "pot", "pieces": 2}, item=item, to=to, pieces={"type": "integer"})
    parsed = made.read(pa.array([first, None, second, first.replace(b"Bonn", b"B")], pa.binary()))
    assert parsed.batch.to_pylist() == [
        {"item": "tea", "to": {"name": "Bonn"}, "pieces": None},
        {"item": None, "to": None, "pieces": None},
        {"item": "pot", "to": None, "pieces": 2},
    ]
    assert [(fault.row, fault.why) for fault in parsed.faults] == [(3, "'B' has less than 2 - at `$.to.name`")]
    [(health, found)] = said(kafka)
    assert (health, "to is struct<name: string>, and the stream has int64" in found) == ("failed", True)
    registry.kill()
    [(health, found)] = said(kafka)
    assert (health, "does not answer" in found) == ("failed", True)
