"""Check message properties that senders may use but pika can't decode."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pika import BasicProperties
from pika.adapters.select_connection import SelectConnection

from forebay_contrib.amqp.client import DecodedProperties, TolerantConnection
from forebay_contrib.amqp.records import Message, batch_of

HEADERS = (1 << 13).to_bytes(2, "big")


def sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def decoded(table: bytes) -> DecodedProperties:
    return DecodedProperties().decode(HEADERS + sized(table))


def frame(properties: bytes, *, size: int = 0, channel: int = 1) -> bytes:
    content = struct.pack(">HHQ", 60, 0, size) + properties
    return struct.pack(">BHL", 2, channel, len(content)) + content + b"\xce"


def test_properties_that_pika_writes_are_decoded_unchanged() -> None:
    """Check each property, and each kind of value that pika knows."""
    headers: dict[str, Any] = {
        "text": "ü",
        "bytes": b"\xff",
        "true": True,
        "whole": 7,
        "large": 2**40,
        "decimal": Decimal("1.25"),
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "none": None,
        "list": [1, "a", {"b": None}],
        "table": {"a": {"b": [[]]}},
    }
    given: dict[str, Any] = {
        "content_type": "text/plain",
        "content_encoding": "gzip",
        "headers": headers,
        "delivery_mode": 2,
        "priority": 9,
        "correlation_id": "c",
        "reply_to": "r",
        "expiration": "1000",
        "message_id": "ü" * 100,
        "timestamp": 1_700_000_000,
        "type": "t",
        "user_id": "u",
        "app_id": "a",
        "cluster_id": "i",
    }
    found = DecodedProperties().decode(b"".join(BasicProperties(**given).encode()))
    assert not found.undecodable
    assert {name: getattr(found, name) for name in given} == given


@pytest.mark.parametrize(
    ("table", "value"),
    [
        # This sender writes milliseconds, although the protocol has seconds.
        (b"\x01aT" + struct.pack(">Q", 1_700_000_000_000), 1_700_000_000_000),
        (b"\x01aT" + struct.pack(">Q", 2**64 - 1), 2**64 - 1),
        (b"\x01ad" + struct.pack(">d", 1.5), 1.5),
        (b"\x01af" + struct.pack(">f", -0.25), -0.25),
        (b"\x01as" + struct.pack(">h", -2), -2),
        (b"\x01aD\xff\0\0\0\1", Decimal(1).scaleb(-255)),
    ],
)
def test_values_that_pika_refuses_or_truncates_are_decoded(table: bytes, value: object) -> None:
    found = decoded(table)
    assert not found.undecodable
    assert found.headers == {"a": value}


@pytest.mark.parametrize("depth", [1, 300])
def test_names_and_nested_tables_become_a_row(depth: int) -> None:
    table = b"\x01\xffS" + sized(b"\xfe")
    for _ in range(depth):
        table = b"\x01tF" + sized(table)
    properties = decoded(table)
    batch = batch_of([Message(1, "q", "", "q", False, properties, b"body")])  # noqa: FBT003  a field
    [[pair]] = batch.column("headers").to_pylist()
    assert pair["key"] == "t"
    assert pair["value"] == '{"t": ' * (depth - 1) + '{"\\\\xff": "/g=="}' + "}" * (depth - 1)


@pytest.mark.parametrize(
    "table",
    [
        b"\x01a?",
        b"\x05a",
        b"\x01aS\0\0\0\x09abc",
        b"\x01aI\0",
        b"\x01aF" + b"\xff\xff\xff\xff",
        b"\x01a",
        b"\x01tF" * 3 + b"\0\0",
    ],
)
def test_invalid_tables_are_marked_undecodable_without_an_error(table: bytes) -> None:
    assert decoded(table).undecodable


def test_tables_that_are_nested_too_deeply_are_marked_undecodable() -> None:
    table = b""
    for _ in range(5000):
        table = b"\x01tF" + sized(table)
    assert decoded(table).undecodable


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> TolerantConnection:
    """Return a connection that is not connected."""
    monkeypatch.setattr(SelectConnection, "__init__", lambda self: setattr(self, "_frame_buffer", b""))
    return TolerantConnection()


def test_frames_are_taken_one_by_one_once_they_are_whole(connection: TolerantConnection) -> None:
    first = frame(HEADERS + sized(b"\x01aT" + b"\xff" * 8), size=5, channel=3)
    body = struct.pack(">BHL", 3, 3, 5) + b"hello\xce"
    for end in range(len(first)):
        connection._frame_buffer = first[:end]
        assert connection._read_frame() == (0, None)
    connection._frame_buffer = first + body
    read, found = connection._read_frame()
    assert read == len(first)
    assert (found.channel_number, found.body_size) == (3, 5)
    assert found.properties.headers == {"a": 2**64 - 1}
    connection._frame_buffer = body
    read, found = connection._read_frame()
    assert (read, found.fragment) == (len(body), b"hello")


@pytest.mark.parametrize("name", ["_read_frame", "_frame_buffer"])
def test_a_pika_with_other_internals_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    buffer = "_frame_buffer" if name == "_read_frame" else "_buffer"
    monkeypatch.setattr(SelectConnection, "__init__", lambda self: setattr(self, buffer, b""))
    if name == "_read_frame":
        monkeypatch.delattr("pika.connection.Connection._read_frame")
    with pytest.raises(ImportError, match=name):
        TolerantConnection()
