"""Test Avro on Kafka, with keys: columns that come later, tombstones, poison, and a kill. ``make kafka``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from forebay.testing.receiver_processes import eventually
from forebay_contrib.schema_records.avro import Avro
from orchestration.spark.reading.batch_reader import columns_of_stream
from receiver_runtime.sources.fields.schema_registry import Registry
from tests.conformance.conftest import any_kafka as any_kafka  # noqa: PLC0414  a fixture
from tests.conformance.kafka_source import KafkaTopic
from tests.support.servers.schema_registry import registry_server

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.kafka import AnyKafka

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
KINDS = {str: "string", int: "long", float: "double"}
PLACES = ("_partition", "_offset")
POISON = [(None, b"poison"), (b"poison", None), (b"\0\0\0\xff\xff", b"\0\0\0\xff\xff"), (None, b"\0\0\0\0\1\xff")]


def test_columns_come_while_receivers_run_and_poison_is_kept_aside_also_across_a_kill(
    any_kafka: AnyKafka, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    topic = KafkaTopic(any_kafka)
    with registry_server() as server, SchemaRegistryClient({"url": server.url}) as client:

        def encoded(field: MessageField, **values: object) -> bytes:
            fields = [{"name": name, "type": KINDS[type(value)]} for name, value in values.items()]
            schema = json.dumps({"type": "record", "name": field, "fields": fields})
            made = AvroSerializer(client, schema)(values, SerializationContext(topic.name, field))
            assert isinstance(made, bytes)
            return made

        def key(number: int) -> bytes:
            return encoded(MessageField.KEY, id=number)

        registry = Registry(server.url)
        rig = make_rig(topic.source(), records=Avro(registry=registry, key=Avro(registry=registry), keep=PLACES))
        wanted: list[dict[str, Any]] = []

        def send(partition: int, *values: dict[str, object] | None) -> None:
            pairs = []
            for value in values:
                number = len(wanted)
                wanted.append({"_key_id": number, **(value or {})})
                pairs.append((key(number), None if value is None else encoded(MessageField.VALUE, **value)))
            topic.send_pairs(pairs, partition=partition)

        send(0, None, {"item": "tea"}, None)
        process = rig.start()
        eventually(lambda: rig.registered() == len(wanted), "the first records", seconds=60)
        topic.send_pairs(POISON, partition=0)
        send(0, {"item": "pot", "price": 1.5}, None)
        eventually(lambda: rig.registered() == len(wanted), "records beside poison", seconds=60)
        eventually(lambda: rig.dead_letters() == len(POISON), "dead letters")
        assert ("price", "double") in columns_of_stream(database_url, "s0")
        # What is new waits for the registry, and the receiver is killed meanwhile.
        late: dict[str, object] = {"item": "cup", "pieces": 3}
        pair = (key(len(wanted)), encoded(MessageField.VALUE, **late))
        server.fails = 503
        wanted.append({"_key_id": len(wanted), **late})
        topic.send_pairs([pair], partition=0)
        eventually(lambda: "could not be stored" in rig.reason(), "what operators see", seconds=60)
        process.kill()
        process.wait(60)
        server.fails = 0
        rig.start(assignment=2)
        eventually(lambda: rig.registered() == len(wanted), "the record that waited", seconds=60)
        send(0, {"item": "mug", "pieces": 1, "price": 2.5})
        eventually(lambda: rig.registered() == len(wanted), "records behind it", seconds=60)

        def plain(row: dict[str, Any]) -> dict[str, Any]:
            return {
                name: value
                for name, value in row.items()
                if value is not None and name not in {"_partition", "_offset"}
            }

        assert [plain(row) for row in rig.rows()] == wanted
        offsets = [row["_offset"] for row in rig.rows()]
        assert offsets == sorted(set(offsets))
        assert len(offsets) + len(POISON) == len(topic.sent)
        assert rig.dead_letters() == len(POISON)
        assert rig.failed_checks() == []
