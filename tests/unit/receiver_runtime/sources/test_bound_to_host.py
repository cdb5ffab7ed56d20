"""Check which sources are not the same on every host, so that their receivers are not moved to spread the load."""

from __future__ import annotations

import pytest

from forebay.receiver import PositionedReceiver, Receiver
from forebay.sources import (
    Amqp,
    CustomSource,
    FileLines,
    FollowedFiles,
    Kafka,
    NatsJetStream,
    SocketText,
    WholeFiles,
    ZeroMQ,
)
from receiver_runtime.sources.fields.loopback import is_loopback


@pytest.mark.parametrize(
    "source",
    [
        FollowedFiles(path="/var/log/*.log*"),
        FileLines(path="/srv/in"),
        SocketText(host="127.0.0.1", port=9),
        SocketText(host="localhost", port=9),
        Amqp(host="::1", queues="orders"),
        Kafka(bootstrap_servers="localhost:9092,127.0.0.1:9093", topics=["orders"], group="g"),
        NatsJetStream(servers="[::1]:4222", stream="s", durable="d"),
        ZeroMQ(endpoints=("tcp://[::1]:5556", "ipc:///run/feed.sock"), socket="sub"),
        CustomSource(receiver="my_spool:SpoolReceiver"),
    ],
    ids=repr,
)
def test_a_source_that_only_its_host_has_is_bound(source: object) -> None:
    assert getattr(source, "is_bound_to_host") is True  # noqa: B009  sources of several kinds


@pytest.mark.parametrize(
    "source",
    [
        FollowedFiles(path="/mnt/log/*.log*", shared=True),
        WholeFiles(path="s3://bucket/in"),
        SocketText(host="feed", port=9),
        SocketText(host="10.0.0.1", port=9),
        Kafka(bootstrap_servers="localhost:9092,kafka:9092", topics=["orders"], group="g"),
        NatsJetStream(servers="nats:4222", stream="s", durable="d"),
        ZeroMQ(endpoints=("tcp://127.0.0.1:5556", "tcp://feed:5556"), socket="sub"),
        # A listener is kept on its host by its address.
        SocketText(listen="127.0.0.1:9"),
    ],
    ids=repr,
)
def test_a_source_that_is_the_same_on_every_host_is_not(source: object) -> None:
    assert getattr(source, "is_bound_to_host") is False  # noqa: B009  sources of several kinds


def test_loopback_is_known_by_its_name_or_address_without_a_look_up() -> None:
    assert all(map(is_loopback, ("localhost", "LocalHost.", "db.localhost", "127.8.9.1", "::1", "[::1]")))
    assert not any(map(is_loopback, ("localhost.example.org", "128.0.0.1", "::2", "", "[fe80::1]")))


def test_a_users_own_receiver_says_so_itself_and_a_positioned_one_is_not_bound() -> None:
    assert Receiver.is_bound_to_host is None
    assert PositionedReceiver.is_bound_to_host is False
