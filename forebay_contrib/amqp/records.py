"""Turn AMQP messages into one Arrow batch and its keys. Knows no connection and no driver log."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from forebay_contrib.amqp.declaration import Amqp
from receiver_runtime.block_path.records import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay_contrib.amqp.client import DecodedProperties

SCHEMA = schema_of(Amqp.columns)
_HEADER = "header:"
_MORE_PROPERTIES = ("content_encoding", "type", "app_id", "reply_to")
# Seconds since 1970: the end of the year 9999. Python can't hold later times of Arrow.
_LAST_SECOND = 253_402_300_799


@dataclass(slots=True)
class Message:
    """One delivery of a message."""

    tag: int
    queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    properties: DecodedProperties
    body: bytes


def batch_of(messages: Sequence[Message]) -> pa.RecordBatch:
    """Return the messages as rows."""
    properties = [message.properties for message in messages]
    columns: list[Sequence[Any]] = [
        [message.queue for message in messages],
        [message.body for message in messages],
        [message.exchange for message in messages],
        [message.routing_key for message in messages],
        [message.redelivered for message in messages],
        [text_of(found.message_id) for found in properties],
        [text_of(found.correlation_id) for found in properties],
        [text_of(found.content_type) for found in properties],
        [_second(found.timestamp) for found in properties],
        [None if found.headers is None else _pairs(found.headers) for found in properties],
        *([text_of(getattr(found, name)) for found in properties] for name in _MORE_PROPERTIES),
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def keys_of(messages: Sequence[Message], key: str | None) -> pa.StringArray | None:
    """Return the messages' keys, null for a message without one; None for a source without keys."""
    if key is None:
        return None
    if key.startswith(_HEADER):
        name = key.removeprefix(_HEADER)
        found = [text_of((message.properties.headers or {}).get(name)) for message in messages]
    else:
        found = [text_of(message.properties.message_id) for message in messages]
    return pa.array([value or None for value in found], pa.string())


def _pairs(headers: Mapping[str, object]) -> list[dict[str, str | None]]:
    return [{"key": key, "value": text_of(value)} for key, value in headers.items()]


def text_of(value: object) -> str | None:
    """Return text as it is, bytes that are no text in base64, and anything else as JSON."""
    if value is None:
        return None
    if isinstance(value, str):
        # Bytes that are not UTF-8 have been decoded to lone surrogates.
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return json.dumps(value, default=_other)


def _other(value: object) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return text_of(value) if isinstance(value, bytes) else str(value)


def _second(timestamp: object) -> int | None:
    """Return the time in seconds; None if there is none, or the value is no time."""
    return timestamp if isinstance(timestamp, int) and 0 <= timestamp <= _LAST_SECOND else None
