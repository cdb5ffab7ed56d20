"""AMQP for the conformance suite and its own tests: a queue, numbered messages, and the expected output."""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pika
from pika.exceptions import AMQPError

from forebay.testing.sending import Sending
from forebay_contrib.amqp.declaration import Amqp
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.testing.source_rig import SourceRig
    from forebay_contrib.amqp.tests.rabbitmq import RabbitMq

_SECONDS = 120.0


class RawProperties(pika.BasicProperties):  # type: ignore[misc]
    """A message's id, and its headers as raw bytes."""

    def __init__(self, message_id: str, table: bytes) -> None:
        super().__init__(message_id=message_id)
        self._table = table

    def encode(self) -> list[bytes]:
        assert self.message_id is not None
        flags = self.FLAG_HEADERS | self.FLAG_MESSAGE_ID
        name = self.message_id.encode()
        return [
            flags.to_bytes(2, "big"),
            len(self._table).to_bytes(4, "big") + self._table,
            bytes([len(name)]) + name,
        ]


class AmqpQueue:
    """A queue of its own on a broker, and every message that was confirmed to its publisher.

    Args:
        broker: a broker that is running.
        kind: "classic" or "quorum".
        keyed: whether the declaration has a key.
    """

    def __init__(self, broker: RabbitMq, *, kind: str, keyed: bool = True) -> None:
        self.broker = broker
        self.name = f"q-{uuid.uuid4().hex[:10]}"
        self.keyed = keyed
        self.sent: dict[str, bytes] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._connection: pika.BlockingConnection | None = None
        self._channel: Any = None
        self._kind = kind
        self._declared = {"durable": True, "arguments": {"x-queue-type": kind}}

    def source(self, **changes: Any) -> Amqp:  # noqa: ANN401  fields of the source
        # The queue must exist before a receiver asks for it.
        with self._lock:
            self._open()
        given: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.broker.port,
            "queues": [self.name],
            "key": "message_id" if self.keyed else None,
            "username": self.broker.username,
            "password": f"file:{self.broker.password_file}",
            "heartbeat": 10,
        }
        return Amqp(**{**given, **changes})

    def send(self, records: int) -> None:
        for _ in range(records):
            self.publish(str(self._number), b"message %d" % self._number)
            self._number += 1

    def send_odd(self) -> int:
        odd = {"empty": b"", "bytes": b"\0\xff", "large": b"y" * 900_000, "ü": b"headers"}
        for name, body in odd.items():
            self.publish(name, body, headers={"a": 1, "ü": "ä", "list": [1, None, b"\xff"], "none": None})
        return len(odd)

    def publish(self, name: str, body: bytes, **properties: Any) -> None:  # noqa: ANN401  as pika takes them
        """Publish again and again until the broker confirms it, so the queue may hold it twice."""
        deadline = time.monotonic() + _SECONDS
        wanted = pika.BasicProperties(message_id=name, delivery_mode=2, **properties)
        with self._lock:
            while True:
                try:
                    self._open()
                    self._channel.basic_publish("", self.name, body, wanted, mandatory=True)
                except (AMQPError, OSError):
                    assert time.monotonic() < deadline, "the broker does not come back"
                    self._leave()
                    # Only the pace of retries; no condition depends on this sleep.
                    time.sleep(0.1)
                else:
                    break
        self.sent[name] = body

    def publish_raw(self, name: str, headers: bytes, *, depth: int = 0) -> None:
        """Publish with raw headers, as other clients write them, inside `depth` nested tables."""
        table = headers
        for _ in range(depth):
            table = b"\x01tF" + len(table).to_bytes(4, "big") + table
        properties = RawProperties(name, table)
        with self._lock:
            self._open()
            self._channel.basic_publish("", self.name, b"raw", properties, mandatory=True)
        self.sent[name] = b"raw"

    def sending(self) -> Sending:
        return Sending(lambda: self.send(20))

    @contextmanager
    def away(self) -> Iterator[None]:
        if self._kind == "quorum":
            eventually(lambda: self.broker.has_on_disk(self.name), "the queue's name on the broker's disk")
        self.broker.kill()
        yield
        self.broker.start()

    def all_came(self, rig: SourceRig) -> bool:
        return rig.registered() >= len(self.sent) and (
            self.keyed or {row["message_id"] for row in rig.rows()} >= self.sent.keys()
        )

    def check(self, rig: SourceRig) -> None:
        rows = rig.rows()
        names = [row["message_id"] for row in rows]
        assert set(names) == self.sent.keys()
        if self.keyed:
            assert len(names) == len(set(names)), f"{len(names) - len(set(names))} messages came twice"
        for row in rows:
            assert row["value"] == self.sent[row["message_id"]]
            assert (row["queue"], row["exchange"], row["routing_key"]) == (self.name, "", self.name)
        assert rig.failed_checks() == []

    def waiting(self) -> int:
        """Return the number of messages that are ready for a consumer."""
        return int(self._state().message_count)

    def left(self) -> int:
        """Return the broker's count of messages once no consumer is connected, including unacknowledged ones.

        A quorum queue learns of both through its log, some time after the connection is closed.
        """
        eventually(lambda: self.consumers() == 0, "no consumer")
        return self.waiting()

    def consumers(self) -> int:
        return int(self._state().consumer_count)

    def _state(self) -> Any:  # noqa: ANN401  pika's
        with self._lock:
            self._open()
            return self._channel.queue_declare(self.name, passive=True).method

    def delete(self) -> None:
        with self._lock:
            self._open()
            self._channel.queue_delete(self.name)

    def declare(self) -> None:
        with self._lock:
            self._open()
            self._channel.queue_declare(self.name, **self._declared)

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._channel.queue_delete(self.name)
            self._connection.close()

    def _leave(self) -> None:
        """Close the connection: after refusing a message or closing the channel, a broker leaves it open."""
        if self._connection is not None and self._connection.is_open:
            with contextlib.suppress(AMQPError, OSError):
                self._connection.close()
        self._connection = None

    def _open(self) -> None:
        if self._connection is None or self._connection.is_closed:
            self._connection = self.broker.connect(heartbeat=0)
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
            self._channel.queue_declare(self.name, **self._declared)
