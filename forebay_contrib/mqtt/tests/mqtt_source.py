"""MQTT for the conformance suite and its own tests: a topic, numbered messages, and the expected output."""

from __future__ import annotations

import json
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from forebay.testing.sending import Sending
from forebay_contrib.mqtt.declaration import Mqtt
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.mosquitto import Mosquitto

_SECONDS = 60.0


class MqttTopic:
    """A topic of its own on a broker, and every message that was acknowledged to its publisher.

    Args:
        broker: a broker that is running.
        version: "5", with the key in a user property, or "3.1.1", with the key in the payload.
        qos: the QoS of publisher and subscription.
        keyed: whether the declaration has a key.
        shared: whether receivers share the messages (a shared subscription).
        primed: whether the broker gets a session for the first receiver before that is started.
        publishes: whether the test sends anything.
    """

    def __init__(
        self,
        broker: Mosquitto,
        *,
        version: str = "5",
        qos: int = 1,
        keyed: bool = True,
        shared: bool = True,
        primed: bool = True,
        publishes: bool = True,
    ) -> None:
        self.broker = broker
        self.name = f"t-{uuid.uuid4().hex[:10]}"
        self.version = version
        self.qos = qos
        self.keyed = keyed
        self.shared = shared
        self.sent: dict[str, bytes] = {}
        self._names: dict[bytes, str] = {}
        self._number = 0
        self._publishing = 0
        self._published = 0
        self._publisher = self._client(f"{self.name}-publisher", clean=False)
        self._publisher.max_inflight_messages_set(500)
        self._publisher.on_publish = self._note_published
        broker.clients.callback(self.close)
        if not publishes:
            return
        self._connect(self._publisher)
        self._publisher.loop_start()
        if primed:
            self.prime(1)

    def source(self, **changes: Any) -> Mqtt:  # noqa: ANN401  fields of the source
        key = {"5": "user_property:id", "3.1.1": "json:id"}[self.version] if self.keyed else None
        return Mqtt(
            **{
                "host": "127.0.0.1",
                "port": self.broker.port,
                "topics": [self.name],
                "client_id": self.name,
                "group": f"g-{self.name}" if self.shared else None,
                "qos": self.qos,
                "version": self.version,
                "key": key if self.qos else None,
                "in_flight": 2000,
                "keepalive": 5,
                **changes,
            }
        )

    def prime(self, number: int) -> None:
        """Create a session for a receiver, as if it had been connected."""
        client = self._client(f"{self.name}-{number}", clean=False)
        granted: list[object] = []
        client.on_subscribe = lambda *_: granted.append(1)
        client.on_connect = lambda client, *_: client.subscribe(self.source().subscriptions[0], qos=self.qos)
        self._connect(client)
        client.loop_start()
        eventually(lambda: granted, "a session")
        client.disconnect()
        client.loop_stop()

    def send(self, records: int) -> None:
        for _ in range(records):
            name = str(self._number)
            self._number += 1
            self._send(name, json.dumps({"id": name}).encode())
        self.wait_until_published()

    def wait_until_published(self) -> None:
        """Wait for all acknowledgements: paho itself later sends what is published while it is not connected."""
        eventually(lambda: self._published >= self._publishing, "the broker's acknowledgements", seconds=_SECONDS)

    def _send(self, name: str, value: bytes) -> None:
        self.sent[name] = value
        self._names[value] = name
        self.publish(value, name)

    def publish(self, value: bytes, name: str | None = None, **more: Any) -> None:  # noqa: ANN401  as `publish` has them
        self._publishing += 1
        properties = None
        if self.version == "5":
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            for field, content in more.pop("properties", {}).items():
                setattr(properties, field, content)
            if name is not None:
                properties.UserProperty = ("id", name)
        self._publisher.publish(
            more.pop("topic", self.name), value, qos=more.pop("qos", self.qos), properties=properties, **more
        )

    def send_odd(self) -> int:
        odd = {"empty": b"", "bytes": b"\0\xff{", "large": b"y" * 900_000, "quote": b'{"id": "\\ud800"}'}
        for name, value in odd.items():
            # In MQTT 3.1.1, where the key is in the payload, these have no key.
            self._send(name, value)
        self.wait_until_published()
        return len(odd)

    def sending(self) -> Sending:
        return Sending(lambda: self.send(20))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.broker.stop()
        yield
        self.broker.start()

    def all_came(self, rig: SourceRig) -> bool:
        # Without keys messages may come twice; these must not make up in the count for messages that did not come.
        return rig.registered() >= len(self.sent) and (self.keyed or not self.missing(rig))

    def missing(self, rig: SourceRig) -> set[str]:
        return set(self.sent) - {self._name(row) for row in rig.rows()}

    def check(self, rig: SourceRig) -> None:
        rows = rig.rows()
        names = [self._name(row) for row in rows]
        assert not set(self.sent) - set(names)
        assert not set(names) - set(self.sent)
        if self.keyed:
            again = [name for name in names if names.count(name) > 1] if len(set(names)) != len(names) else []
            assert not again, f"{len(names) - len(set(names))} messages came twice, as {again[:5]}"
        for row in rows:
            assert row["value"] == self.sent[self._name(row)]
        assert rig.failed_checks() == []

    def close(self) -> None:
        self._publisher.disconnect()
        self._publisher.loop_stop()

    def _name(self, row: dict[str, Any]) -> str:
        for pair in row["user_properties"] or ():
            if pair["key"] == "id":
                return str(pair["value"])
        return self._names[row["value"]]

    def _note_published(self, *_: object) -> None:
        self._published += 1

    def _client(self, client_id: str, *, clean: bool) -> Client:
        if self.version == "5":
            return Client(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=MQTTProtocolVersion.MQTTv5)
        return Client(CallbackAPIVersion.VERSION2, client_id=client_id, clean_session=clean)

    def _connect(self, client: Client) -> None:
        client.reconnect_delay_set(1, 1)
        if self.version == "5":
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3600
            properties.ReceiveMaximum = 2000
            client.connect("127.0.0.1", self.broker.port, clean_start=False, properties=properties)
        else:
            client.connect("127.0.0.1", self.broker.port)
