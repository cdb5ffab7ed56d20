"""An ``on_start`` that is so slow that its ``on_stop`` comes first leaves no reader behind, whatever the source is."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from receiver_runtime.receiver_registry import make_receiver
from receiver_runtime.receiver_supervisor import SupervisorState
from receiver_runtime.sources.amqp import Amqp
from receiver_runtime.sources.files import FollowedFiles
from receiver_runtime.sources.http import Http
from receiver_runtime.sources.kafka import Kafka
from receiver_runtime.sources.mqtt import Mqtt
from receiver_runtime.sources.nats_jetstream import NatsJetStream
from receiver_runtime.sources.redis_streams import RedisStreams
from receiver_runtime.sources.socket_text import SocketText
from receiver_runtime.sources.syslog import Syslog
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.sources.base import Source

_SECONDS = 30.0


class _SlowReader:
    """In place of a source's reader; it takes long to be made."""

    def __init__(self) -> None:
        self.may_be_made = threading.Event()
        self.begins: list[str] = []

    def __call__(self, *_: object, **__: object) -> _SlowReader:
        assert self.may_be_made.wait(_SECONDS)
        return self

    def start(self) -> None:
        self.begins.append("start")

    def stop(self) -> None:
        self.begins.append("stop")


@pytest.mark.parametrize(
    ("source", "room", "reader"),
    [
        (Amqp(host="a", queues="q"), "amqp", "AmqpReader"),
        (FollowedFiles(path="/nowhere/*.log"), "files", "FilesReader"),
        (Http(listen="127.0.0.1:0"), "http", "HttpServer"),
        (Kafka(bootstrap_servers="a:1", topics="t", group="g"), "kafka", "KafkaReader"),
        (Mqtt(host="a", topics="t", client_id="c"), "mqtt", "MqttReader"),
        (NatsJetStream(servers="a:1", stream="s", durable="d"), "nats", "NatsReader"),
        (RedisStreams(host="a", streams="s", group="g"), "redis", "RedisReader"),
        (SocketText(host="a", port=1), "sockets", "SocketClient"),
        (Syslog(listen="127.0.0.1:0", transports=["tcp"]), "syslog", "SocketListener"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_x11_a_start_that_comes_after_its_stop_begins_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Source, room: str, reader: str
) -> None:
    slow = _SlowReader()
    monkeypatch.setattr(import_module(f"receiver_runtime.receivers.{room}.receiver"), reader, slow)
    receiver: Any = make_receiver(source)
    stopped = threading.Event()
    on_stop = receiver.on_stop

    def stop() -> None:
        on_stop()
        stopped.set()

    receiver.on_stop = stop
    with rig(tmp_path, receiver, receiver_start_timeout="10ms") as made:
        eventually(lambda: any("on_start has not returned" in message for _, message, _ in made.reporter.events))
        made.supervisor.stop("the test is over")
        assert stopped.wait(_SECONDS)
        assert made.supervisor.state is SupervisorState.STOPPED
        slow.may_be_made.set()
        made.end()
    assert slow.begins.count("start") == slow.begins.count("stop")
