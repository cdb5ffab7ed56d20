"""Turn MQTT messages into one Arrow batch and its keys. Knows no client and no driver log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay_contrib.mqtt.declaration import Mqtt
from receiver_runtime.block_path.records import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties

SCHEMA = schema_of(Mqtt.columns)
_PROPERTY = "user_property:"
_JSON = "json:"


def batch_of(messages: Sequence[MQTTMessage]) -> pa.RecordBatch:
    """Return the messages as rows."""
    found = [message.properties for message in messages]
    pairs = [_property(properties, "UserProperty") for properties in found]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([message.topic for message in messages], pa.string()),
            pa.array([bytes(message.payload) for message in messages], pa.binary()),
            pa.array([message.qos for message in messages], pa.int32()),
            pa.array([message.retain for message in messages], pa.bool_()),
            pa.array([_property(properties, "ContentType") for properties in found], pa.string()),
            pa.array([_property(properties, "ResponseTopic") for properties in found], pa.string()),
            pa.array([_property(properties, "CorrelationData") for properties in found], pa.binary()),
            pa.array(
                [None if pair is None else [{"key": k, "value": v} for k, v in pair] for pair in pairs],
                SCHEMA.field("user_properties").type,
            ),
        ],
        schema=SCHEMA,
    )


def keys_of(messages: Sequence[MQTTMessage], key: str | None) -> pa.StringArray | None:
    """Return the messages' keys, null for a message without one; None for a source without keys."""
    if key is None:
        return None
    find: Callable[[MQTTMessage], str | None]
    if key.startswith(_PROPERTY):
        name = key.removeprefix(_PROPERTY)

        def find(message: MQTTMessage) -> str | None:
            pairs = _property(message.properties, "UserProperty") or ()
            return next((value for found, value in pairs if found == name), None)
    elif key.startswith(_JSON):
        path = key.removeprefix(_JSON).split(".")

        def find(message: MQTTMessage) -> str | None:
            return _json_field(message.payload, path)
    else:

        def find(message: MQTTMessage) -> str | None:
            data = _property(message.properties, "CorrelationData")
            return None if data is None else data.hex()

    return pa.array([find(message) or None for message in messages], pa.string())


def pieces(batch: pa.RecordBatch, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with at most ``most`` bytes each, in order; a larger record has a range of its own."""
    return _pieces(batch, 0, batch.num_rows, most)


def _pieces(batch: pa.RecordBatch, first: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    if end - first <= 1 or batch.slice(first, end - first).nbytes <= most:
        yield first, end
        return
    middle = (first + end) // 2
    yield from _pieces(batch, first, middle, most)
    yield from _pieces(batch, middle, end, most)


def _property(properties: Properties | None, name: str) -> Any:  # noqa: ANN401  by name
    """Return a property of MQTT 5; None if the message does not have it."""
    return getattr(properties, name, None)


def _json_field(payload: bytes | bytearray, path: Sequence[str]) -> str | None:
    try:
        found: object = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    for name in path:
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    if isinstance(found, str):
        # JSON may contain a lone surrogate, which no other encoding allows: escape it.
        return found.encode("utf-8", "backslashreplace").decode()
    return None if found is None or isinstance(found, dict | list) else json.dumps(found)
