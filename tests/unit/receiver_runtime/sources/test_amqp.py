from __future__ import annotations

import subprocess
import sys
from typing import Any

import pika
import pytest

from receiver_runtime.receivers.amqp_records import Message, batch_of, keys_of
from receiver_runtime.sources.amqp import Amqp
from receiver_runtime.sources.base import SourceError
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "amqp", "host": "a", "queues": ["orders"]}


def test_it_is_stored_and_read_back() -> None:
    source = Amqp(host="::1", queues="orders", virtual_host="shop", username="u", password="env:P", tls=True)
    assert parse_source(source.model_dump(mode="json")) == source
    assert source.address == "[::1]:5671/shop/orders"
    assert Amqp(host="a", queues=("x", "y")).address == "a:5672/x,y"


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
def test_what_can_not_be_is_named(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SourceError, match=words) as raised:
        parse_source({**GIVEN, **fields})
    assert "hunter2" not in str(raised.value)


def message(**properties: Any) -> Message:  # noqa: ANN401  as pika takes them
    return Message(1, "q", "", "r", redelivered=False, properties=pika.BasicProperties(**properties), body=b"b")


def test_keys() -> None:
    found = [message(message_id="a"), message(message_id=""), message(headers={"id": 7}), message()]
    assert keys_of(found, None) is None
    for key, wanted in (("message_id", ["a", None, None, None]), ("header:id", [None, None, "7", None])):
        keys = keys_of(found, key)
        assert keys is not None
        assert keys.to_pylist() == wanted


def test_whatever_stands_in_properties_is_a_row() -> None:
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


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_declaration_needs_no_client() -> None:
    done = run("import sys, forebay.sources; forebay.sources.Amqp; assert 'pika' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_one_sentence() -> None:
    done = run(
        "import sys\n"
        "sys.modules['pika'] = None\n"
        "from receiver_runtime.receiver_registry import make_receiver\n"
        "from receiver_runtime.sources.amqp import Amqp\n"
        "from receiver_runtime.sources.base import SourceError\n"
        "try:\n"
        "    make_receiver(Amqp(host='a', queues='q'))\n"
        "except SourceError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'forebay[amqp]'" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1
