"""Test the reader of records on a real registry, which is killed while schemas are still to be asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer

from forebay_contrib.schema_records.avro import Avro
from forebay_contrib.schema_records.avro_reader import AvroReader
from receiver_runtime.block_path.text_check import RowsWaitError
from receiver_runtime.sources.fields.schema_registry import Registry
from tests.support.servers.registry_records import CONTEXT

if TYPE_CHECKING:
    from tests.support.servers.apicurio import ApicurioServer

pytestmark = [pytest.mark.catalogs, pytest.mark.timeout(600)]
PLACE = '{"type": "enum", "name": "shop.Place", "symbols": ["HERE", "THERE"]}'


def avro(
    client: SchemaRegistryClient, references: list[SchemaReference] | None = None, **types: object
) -> AvroSerializer:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    text = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
    made: AvroSerializer = AvroSerializer(client, Schema(text, "AVRO", references or []))
    return made


def test_avro_of_a_real_registry(registry: ApicurioServer) -> None:
    with SchemaRegistryClient({"url": registry.url}) as client:
        made = AvroReader(Avro(registry=Registry(registry.url)))
        made.grow(dict, lambda _: None)
        client.register_schema("place", Schema(PLACE, "AVRO"))
        first = avro(client, item="string")({"item": "tea"}, CONTEXT)
        place = SchemaReference("shop.Place", "place", 1)
        second = avro(client, [place], item="string", to=["null", "shop.Place"])({"item": "pot", "to": "HERE"}, CONTEXT)
        unknown = b"\0\x7f\xff\xff\xff\6tea"
        parsed = made.read(pa.array([first, unknown, second, None, b"\1"], pa.binary()))
        assert parsed.batch.to_pylist() == [
            {"item": "tea", "to": None},
            {"item": "pot", "to": "HERE"},
            {"item": None, "to": None},
        ]
        assert [(fault.row, fault.reason.label) for fault in parsed.faults] == [(1, "does_not_fit"), (4, "unparsable")]
        third = avro(client, item="string", pieces="long")({"item": "cup", "pieces": 2}, CONTEXT)
        registry.kill()
        assert made.read(pa.array([first, second])).batch.num_rows == 2
        with pytest.raises(RowsWaitError, match="does not answer"):
            made.read(pa.array([third]))
