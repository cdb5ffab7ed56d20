from __future__ import annotations

import pytest

pytest.importorskip("paho.mqtt.client")

import pyarrow as pa
from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from forebay_contrib.mqtt.records import SCHEMA, batch_of, keys_of, pieces


def message(payload: bytes, **properties: object) -> MQTTMessage:
    made = MQTTMessage(topic=b"a/b")
    made.payload = payload
    made.qos = 1
    if properties:
        made.properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        for name, value in properties.items():
            setattr(made.properties, name, value)
    return made


def test_a_message_of_mqtt_3_has_no_properties() -> None:
    [row] = batch_of([message(b"\xff")]).to_pylist()
    assert row == {
        "topic": "a/b",
        "value": b"\xff",
        "qos": 1,
        "retain": False,
        "content_type": None,
        "response_topic": None,
        "correlation_data": None,
        "user_properties": None,
    }


@pytest.mark.parametrize(
    ("payload", "path", "key"),
    [
        (b'{"id": "a"}', "id", "a"),
        (b'{"id": 7}', "id", "7"),
        (b'{"id": true}', "id", "true"),
        (b'{"a": {"b": "c"}}', "a.b", "c"),
        (b'{"id": "\\ud800"}', "id", "\\ud800"),
        (b'{"id": ""}', "id", None),
        (b'{"id": null}', "id", None),
        (b'{"id": {}}', "id", None),
        (b'{"a": 1}', "a.b", None),
        (b"[1]", "id", None),
        (b"", "id", None),
        (b"\xff", "id", None),
        (b"[" * 100_000, "id", None),
    ],
)
def test_a_key_in_the_payload(payload: bytes, path: str, key: str | None) -> None:
    keys = keys_of([message(payload)], f"json:{path}")
    assert keys is not None
    assert keys.to_pylist() == [key]


def test_a_key_in_properties() -> None:
    messages = [
        message(b"", CorrelationData=b"\0a", UserProperty=[("k", "v"), ("k", "w"), ("l", "x")]),
        message(b"", ContentType="t"),
        message(b""),
    ]
    for key, expected in (("correlation_data", "0061"), ("user_property:k", "v"), ("user_property:l", "x")):
        keys = keys_of(messages, key)
        assert keys is not None
        assert keys.to_pylist() == [expected, None, None]
    assert keys_of(messages, None) is None


def test_pieces_contain_all_rows_in_order() -> None:
    batch = batch_of([message(b"x" * size) for size in (10, 5000, 10, 10, 10)])
    assert batch.schema.equals(SCHEMA)
    ranges = list(pieces(batch, 1000))
    assert [row for first, end in ranges for row in range(first, end)] == list(range(5))
    assert all(end - first == 1 or batch.slice(first, end - first).nbytes <= 1000 for first, end in ranges)
    assert len(ranges) > 1
    assert pa.Table.from_batches([batch]).num_rows == 5
