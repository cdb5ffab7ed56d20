from __future__ import annotations

from typing import Any

import pika
import pytest

from forebay_contrib.amqp.records import Message, batch_of, keys_of
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "amqp", "host": "a", "queues": ["orders"]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"queues": []}, "no queue is named"),
        ({"queues": [""]}, "no name of a queue"),
        ({"queues": ["a", "a"]}, "named twice"),
        ({"key": "id"}, "use 'message_id' or 'header:NAME'"),
        ({"username": "forebay"}, "without a password"),
        ({"password": "hunter2", "username": "u"}, "given by reference"),
        ({"prefetch": 0}, "prefetch"),
    ],
)
def test_invalid_fields_are_named(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SourceError, match=words) as raised:
        parse_source({**GIVEN, **fields})
    assert "hunter2" not in str(raised.value)


def message(**properties: Any) -> Message:  # noqa: ANN401  pika's types
    return Message(1, "q", "", "r", redelivered=False, properties=pika.BasicProperties(**properties), body=b"b")


def test_keys() -> None:
    found = [message(message_id="a"), message(message_id=""), message(headers={"id": 7}), message()]
    assert keys_of(found, None) is None
    for key, wanted in (("message_id", ["a", None, None, None]), ("header:id", [None, None, "7", None])):
        keys = keys_of(found, key)
        assert keys is not None
        assert keys.to_pylist() == wanted


def test_any_properties_become_a_row() -> None:
    odd = {"bytes": b"\xff", "text": b"t", "list": [1, b"\xff", None], "table": {"a": True}, "half": "\udcff"}
    batch = batch_of([message(headers=odd, timestamp=2**62, message_id="\udcff"), message(headers={})])
    batch.validate(full=True)
    [first, second] = batch.to_pylist()
    assert {pair["key"]: pair["value"] for pair in first["headers"]} == {
        "bytes": "/w==",
        "text": "t",
        "list": '[1, "/w==", null]',
        "table": '{"a": true}',
        "half": "\\udcff",
    }
    assert first["timestamp"] is None
    assert second["headers"] == []
