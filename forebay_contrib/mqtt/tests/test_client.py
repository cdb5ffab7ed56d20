from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("paho.mqtt.client")

from paho.mqtt.client import Client, MQTTMessage

from forebay_contrib.mqtt.client import MqttClient, UndecodableMessage
from forebay_contrib.mqtt.declaration import Mqtt
from receiver_runtime.process.receiver_registry import make_receiver
from tests.unit.receiver_runtime.receivers.files.files_rig import Log
from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from pathlib import Path

CONNECT, SUBSCRIBE = 0x10, 0x82  # as their packets begin
SOURCE = Mqtt(host="127.0.0.1", topics=("a",), client_id="c")


@pytest.mark.parametrize("name", ["_send_pubrec", "_handle_publish", "_handle_pubrel"])
def test_a_paho_with_other_internals_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Paho's own handling of QoS 2 loses what a killed process had in memory."""
    monkeypatch.delattr(Client, name)
    with pytest.raises(ImportError, match=f"install paho-mqtt 2.1. It has no {name}"):
        MqttClient(SOURCE, "c-1")


def test_the_installed_paho_is_accepted() -> None:
    assert MqttClient(SOURCE, "c-1").is_v5


def pair(key: bytes, value: bytes) -> bytes:
    """Encode a user property as it is sent."""
    return b"\x26" + b"".join(len(text).to_bytes(2, "big") + text for text in (key, value))


def publish(properties: bytes) -> bytes:
    """Encode a QoS 1 message with the id 7 as it is sent."""
    return b"\0\x01t\0\x07" + bytes([len(properties)]) + properties + b"payload"


@pytest.mark.parametrize(
    ("properties", "found"),
    [
        (pair(b"id", b"1"), [("id", "1")]),
        # Paho refuses the first two; no broker should pass on the others.
        (b"\x03\0\x03\xef\xbb\xbf" + pair(b"id", "\ufeff2".encode()), [("id", "\ufeff2")]),
        (pair(b"id", b"a\0b"), [("id", "a\0b")]),
        (pair(b"id", b"\xff"), None),
        (b"\x7f\x7f", None),
        (b"\x26\0\xffa", None),
        (b"\x03\0\x01a" * 2, None),
    ],
)
@pytest.mark.parametrize("dup", [0, 8])
def test_a_message_is_passed_on_whatever_its_properties_are(
    properties: bytes, found: list[tuple[str, str]] | None, dup: int
) -> None:
    """Otherwise the broker would send it again on each connection, for ever, and nothing behind it."""
    client = MqttClient(SOURCE, "c-1")
    came: list[MQTTMessage] = []
    client.on_message = lambda *arguments: came.append(arguments[2])
    client._in_packet |= {"command": 0x32 | dup, "packet": bytearray(publish(properties))}
    client._handle_publish()
    (message,) = came
    assert (message.mid, message.qos, message.dup, message.retain) == (7, 1, bool(dup), False)
    assert (message.topic, bytes(message.payload)) == ("t", b"payload")
    assert isinstance(message, UndecodableMessage) is (found is None)
    assert getattr(message.properties, "UserProperty", None) == found


def test_truncated_properties_end_the_connection() -> None:
    client = MqttClient(SOURCE, "c-1")
    client._in_packet |= {"command": 0x32, "packet": bytearray(publish(b"\x01\x01")[:7])}
    with pytest.raises(ValueError, match="a PUBLISH of 7 bytes"):
        client._handle_publish()


def test_a_broker_that_accepts_a_connection_and_does_not_answer_is_left_and_shown(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = Mqtt(
            host="127.0.0.1", port=server.getsockname()[1], topics=("a",), client_id="c", connect_timeout="50ms"
        )
        with rig(tmp_path, make_receiver(source), log=KeyedBlockLog(), positions=Log()) as made:
            eventually(lambda: any("it has not answered for 0.05 s" in one for one in made.reporter.reasons), "it")
            eventually(lambda: made.reporter.reasons[-1].startswith("degraded: "), "the status")


def test_a_broker_that_ends_a_connection_later_has_answered(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        source = Mqtt(
            host="127.0.0.1", port=server.getsockname()[1], topics=("a",), client_id="c", connect_timeout="500ms"
        )
        with rig(tmp_path, make_receiver(source), log=KeyedBlockLog(), positions=Log()) as made:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(20)
                assert connection.recv(1000)[0] == CONNECT
                connection.sendall(b"\x20\x03\0\0\0")
                assert connection.recv(1000)[0] == SUBSCRIBE
                connection.settimeout(0.6)
                # It is kept for longer than an answer may take.
                with pytest.raises(TimeoutError):
                    connection.recv(1)
            eventually(lambda: any("the broker ended the connection" in one for one in made.reporter.reasons), "it")
            assert not any("has not answered" in one for one in made.reporter.reasons)
