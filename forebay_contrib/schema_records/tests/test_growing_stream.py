"""Test a stream whose columns come with its records, in a receiver process: they grow, and records wait, never lost."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from forebay import Stream
from forebay.records import Avro, Registry
from forebay.sources import Http
from forebay.testing.receiver_processes import eventually
from orchestration.spark.reading.batch_reader import columns_of_stream
from tests.integration.receiver_runtime.applied_stream import applied, post, url_of
from tests.support.servers.schema_registry import registry_server

if TYPE_CHECKING:
    from pathlib import Path


def test_columns_are_added_while_the_receiver_runs_and_records_wait_for_the_registry(
    database_url: str, tmp_path: Path
) -> None:
    with registry_server() as server:
        client = SchemaRegistryClient({"url": server.url})

        def record(**values: object) -> bytes:
            kinds = {str: "string", int: "long", float: "double"}
            fields = [{"name": name, "type": kinds[type(value)]} for name, value in values.items()]
            schema = json.dumps({"type": "record", "name": "Order", "fields": fields})
            made = AvroSerializer(client, schema)(values, SerializationContext("orders", MessageField.VALUE))
            assert isinstance(made, bytes)
            return made

        rig = applied(
            database_url,
            tmp_path,
            Stream("orders", Http(listen="127.0.0.1:0"), records=Avro(registry=Registry(server.url))),
        )
        try:
            process = rig.start()
            url = url_of(rig, "orders")
            assert all(name.startswith("_") for name, _ in columns_of_stream(database_url, "orders"))
            assert post(url, record(item="tea"))[0] == 200
            assert columns_of_stream(database_url, "orders")[-1] == ("item", "string")
            assert post(url, record(item="pot", price=1.5))[0] == 200
            assert columns_of_stream(database_url, "orders")[-1] == ("price", "double")
            status, why = post(url, record(item=1))
            assert (status, "item is int64, and the stream has string" in why) == (422, True)
            # Its schema is new, and the registry says nothing of it.
            late = record(item="cup", pieces=2)
            server.fails = 503
            answered: list[tuple[int, str]] = []
            sending = threading.Thread(target=lambda: answered.append(post(url, late)))
            sending.start()
            eventually(lambda: "could not be stored" in rig.state()[1], "what operators see")
            assert answered == []
            server.fails = 0
            sending.join(60)
            assert answered == [(200, "")]
            assert "could not be stored" not in rig.state()[1]
            process.terminate()
            process.wait(60)
            # A receiver that starts again knows the types that the stream has.
            rig.assign(2)
            rig.start(2)
            status, why = post(url_of(rig, "orders"), record(price="dear"))
            assert (status, "price is string, and the stream has double" in why) == (422, True)
            assert rig.values() == ["tea", "pot", "cup"]
            assert [reason for reason, _ in rig.dead_letters()] == ["does_not_fit", "does_not_fit"]
        finally:
            rig.close()
