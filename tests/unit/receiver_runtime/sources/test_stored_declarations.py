"""Check that a declaration of any kind survives its JSON form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from pydantic import AliasChoices, AliasPath, Field, ValidationError

from forebay_contrib.amqp.declaration import Amqp
from forebay_contrib.mqtt.declaration import Mqtt
from forebay_contrib.nats.declaration import NatsJetStream
from forebay_contrib.redis.declaration import RedisStreams
from forebay_contrib.syslog.declaration import Syslog
from forebay_contrib.zeromq.declaration import ZeroMQ
from receiver_runtime.receivers.files.declaration import FileLines, FollowedFiles, WholeFiles
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.sockets.raw_declaration import RawSocket
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.fields.secret import EnvVar
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.source import Source, SourceRule
from receiver_runtime.sources.source_registry import parse_source

S3 = {"access_key": EnvVar("KEY"), "secret_key": "env:SECRET", "endpoint_override": "127.0.0.1:9000", "scheme": "http"}
TLS = Tls(certificate_file="/etc/tls/a.pem", key_file="/etc/tls/a.key", ca_file="/etc/tls/ca.pem")

#: Each declaration, with values that it must have after it was read back.
DECLARATIONS: list[tuple[Source, dict[str, Any]]] = [
    (
        Amqp(host="::1", queues="orders", virtual_host="shop", username="u", password="env:P", tls=True),
        {"address": "[::1]:5671/shop/orders"},
    ),
    (Amqp(host="a", queues=("x", "y")), {"address": "a:5672/x,y"}),
    (
        FollowedFiles(path="/var/log/*.log*", exclude=("*.swp",), complete_after="5s", start="latest", shared=True),
        {"source_rule": SourceRule.OFFSETS, "is_listener": False, "address": "/var/log/*.log*"},
    ),
    (
        FileLines(path="/srv/in", pattern="*.csv", min_age="1m", changed="read", max_age="30d"),
        {"source_rule": SourceRule.OFFSETS, "is_listener": False, "address": "/srv/in"},
    ),
    (
        WholeFiles(path="s3://bucket/in", max_record_bytes="64MiB", options=S3),
        {"source_rule": SourceRule.OFFSETS, "is_listener": False, "address": "s3://bucket/in"},
    ),
    (
        Kafka(
            bootstrap_servers="a:9092, [::1]:9093",
            topics=["orders", "refunds"],
            group="g",
            start=datetime(2026, 1, 31, tzinfo=UTC),
            max_rate_per_partition=5,
            options={"sasl.password": EnvVar("KAFKA_PASSWORD"), "fetch.min.bytes": 1, "socket.keepalive.enable": True},
        ),
        {
            "options": {"sasl.password": "env:KAFKA_PASSWORD", "fetch.min.bytes": 1, "socket.keepalive.enable": True},
            "address": "a:9092,[::1]:9093/orders,refunds",
            "source_rule": SourceRule.OFFSETS,
        },
    ),
    (
        Mqtt(
            host="::1",
            topics=["a/+/b", "#"],
            client_id="c",
            group="g",
            qos=2,
            key="user_property:a b",
            session_expiry="1d",
            username="u",
            password=EnvVar("P"),
            tls=True,
        ),
        {
            "address": "[::1]:8883/a/+/b,#",
            "session_expiry": 86_400,
            "subscriptions": ("$share/g/a/+/b", "$share/g/#"),
            "password": EnvVar("P"),
        },
    ),
    (
        NatsJetStream(
            servers="a:4222, b:4222",
            stream="ORDERS",
            durable="d",
            username="u",
            password=EnvVar("NATS_PASSWORD"),
            ack_wait="1m",
        ),
        {"ack_wait": 60, "address": "a:4222,b:4222/ORDERS"},
    ),
    (
        RawSocket(listen="[::]:0", tls=TLS, max_connections=3),
        {"address": "[::]:0", "listen_address": ("::", 0), "columns": (("value", "binary"),)},
    ),
    (
        RedisStreams(
            host="redis", streams="orders", group="g", username="u", password=EnvVar("REDIS_PASSWORD"), claim_after="5m"
        ),
        {"streams": ("orders",), "claim_after": 300, "address": "redis:6379/0/orders"},
    ),
    (
        SocketText(host="::1", port=9999, max_record_bytes="64KiB", connect_timeout="3s", encoding="latin-1"),
        {
            "max_record_bytes": 65536,
            "connect_timeout": 3.0,
            "encoding": "iso8859-1",
            "address": "[::1]:9999",
            "columns": (("value", "string"),),
            "source_rule": SourceRule.NOT_SENT_AGAIN,
        },
    ),
    (
        Syslog(listen="[::]:6514", transports=("tcp",), tls=Tls(certificate_file="/c"), timezone="Europe/Berlin"),
        {"is_listener": True},
    ),
    (
        ZeroMQ(
            endpoints="tcp://a:1", socket="sub", topics="x", curve_server_key="k" * 40, curve_secret_key=EnvVar("K")
        ),
        {"address": "tcp://a:1", "topics": ("x",), "is_listener": False, "curve_secret_key": EnvVar("K")},
    ),
    (
        ZeroMQ(endpoints=("tcp://*:1", "ipc:///s"), socket="pull", bind=True, max_record_bytes="64KiB"),
        {"address": "tcp://*:1,ipc:///s", "max_record_bytes": 65536, "is_listener": True},
    ),
]


@pytest.mark.parametrize(("source", "holds"), DECLARATIONS, ids=[source.kind for source, _ in DECLARATIONS])
def test_a_declaration_survives_its_json_form(source: Source, holds: dict[str, Any]) -> None:
    again = parse_source(source.model_dump(mode="json"))
    assert again == source
    assert type(again) is type(source)
    assert {name: getattr(again, name) for name in holds} == holds


def test_a_reference_to_a_secret_is_shown_as_written() -> None:
    assert str(EnvVar("P")) == "env:P"


class Aliased(Source):
    """A source of a stranger's, whose fields have several names."""

    kind: Literal["aliased"] = "aliased"
    host: str = Field(validation_alias="server")
    port: int = Field(default=1, validation_alias=AliasChoices("number", AliasPath("ports", 0)))


def test_a_field_is_known_by_its_aliases_and_is_stored_by_its_own_name() -> None:
    made = Aliased.model_validate({"server": "a", "number": 2})
    assert Aliased.model_validate({"server": "a", "ports": [2]}) == made
    assert Aliased.model_validate(made.model_dump(mode="json")) == made
    with pytest.raises(ValidationError, match=r"there is no field 'hosts': did you mean host\?"):
        Aliased.model_validate({"server": "a", "hosts": "b"})
    with pytest.raises(ValidationError, match=r"there is no field 'servers': did you mean server\?"):
        Aliased.model_validate({"servers": "a"})
