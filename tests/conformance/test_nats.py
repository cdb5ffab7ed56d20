"""NATS JetStream by the conformance suite, and what only it has, on Debian's nats-server. ``make brokers``."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.sources.secret import EnvVar
from tests.conformance.nats_source import NatsStream
from tests.conformance.suite import (
    ConformanceSuite,
    check_acknowledged_when_registered,
    check_taken_over_from_one_that_lives_yet,
    proxied,
    stop,
)
from tests.nats_server import NatsServer
from tests.receiver_processes import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nats.aio.msg import Msg

    from tests.conformance.source_rig import SourceRig


# A test waits for several things in turn, and for each as long as a process takes to start where others work beside it.
pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240, func_only=True)]


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A test that kills it starts it again."""
    made = NatsServer(tmp_path_factory.mktemp("nats"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def stream(nats_server: NatsServer) -> Iterator[NatsStream]:
    made = NatsStream(nats_server)
    yield made
    made.close()


class TestNatsJetStream(ConformanceSuite):
    """At least once, deduplicated."""

    @pytest.fixture
    def adapter(self, stream: NatsStream) -> NatsStream:
        return stream


def test_x11_messages_are_acknowledged_when_they_are_registered_and_not_before(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """And they are not delivered again meanwhile, though that takes longer than a silent receiver is given."""
    check_acknowledged_when_registered(stream, make_rig(stream.source()), database_url, stream.waiting)


def test_messages_that_two_receivers_have_at_once_come_once(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    check_taken_over_from_one_that_lives_yet(stream, make_rig(stream.source(), receivers=2), database_url)


def raw(server: NatsServer, *lines: bytes) -> None:
    """To the server as it is; returns when it has it."""
    with socket.create_connection(("127.0.0.1", server.port)) as connection, connection.makefile("rb") as answers:
        options = {"verbose": False, "headers": True}
        connection.sendall(b"CONNECT %s\r\n" % json.dumps(options).encode() + b"".join(lines) + b"PING\r\n")
        while answers.readline().strip() != b"PONG":
            pass


def test_messages_that_no_row_can_be_made_of_go_aside_and_hold_nothing_up(
    nats_server: NatsServer, stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    stream.send(10)
    name = stream.name.encode()
    headers = b"NATS/1.0\r\nname: \xff\r\n\r\n"
    raw(
        nats_server,
        b"PUB %s.\xff\xfe 4\r\nabcd\r\n" % name,
        b"HPUB %s.x %d %d\r\n%sabcd\r\n" % (name, len(headers), len(headers) + 4, headers),
    )
    stream.send(10)
    rig = make_rig(stream.source())
    process = rig.start()
    eventually(lambda: rig.registered() == 20, "the others")
    eventually(lambda: stream.waiting() == 0, "the acknowledgements")
    stop(process)
    assert rig.execute("SELECT reason FROM forebay.dead_letters") == [("invalid_encoding",)] * 2
    stream.check(rig)


def test_start_at_latest_and_a_subject(stream: NatsStream, make_rig: Callable[..., SourceRig]) -> None:
    stream.send(20)
    rig = make_rig(stream.source(start="latest", subject=f"{stream.name}.b.*"))
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the consumer")
    for n in range(5):
        stream.publish(b"%d" % n, subject=f"{stream.name}.b.{n}", headers={"n": str(n)})
        stream.publish(b"other")
    eventually(lambda: rig.registered() == 5, "what matches")
    stop(process)
    rows = rig.rows()
    assert [row["subject"] for row in rows] == [f"{stream.name}.b.{n}" for n in range(5)]
    assert all({"key": "n", "value": str(n)} in row["headers"] for n, row in enumerate(rows))


def test_messages_that_the_stream_removed_unread_are_told_in_numbers(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    stream.send(100)
    rig = make_rig(stream.source())
    process = rig.start()
    eventually(lambda: stream.all_came(rig) and stream.waiting() == 0, "100 messages")
    stop(process)
    subjects = [f"{stream.name}.>"]
    stream.ask(lambda: stream.jetstream.update_stream(name=stream.name, subjects=subjects, max_msgs=20))
    stream.send(50)
    second = rig.start()
    eventually(lambda: rig.said("messages 101 up to 130, 30 of them"), "the loss")
    eventually(lambda: rig.registered() == 120, "what is there yet")
    stop(second)


def test_a_stream_that_is_made_anew_is_read_though_its_sequences_are_the_same(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    stream.send(30)
    rig = make_rig(stream.source())
    process = rig.start()
    eventually(lambda: rig.registered() == 30, "30 messages")
    stream.ask(lambda: stream.jetstream.delete_stream(stream.name))
    stream.ask(lambda: stream.jetstream.add_stream(name=stream.name, subjects=[f"{stream.name}.>"]))
    stream.send(20)
    eventually(lambda: rig.registered() == 50, "those of the new one")
    stop(process)


def made_by_an_operator(stream: NatsStream, **settings: object) -> None:
    """A consumer, of settings as the server's API has them."""
    name = stream.source().durable
    config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **settings}
    request = json.dumps({"stream_name": stream.name, "config": config}).encode()
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stream.name}.{name}"
    answer = stream.ask(lambda: stream.client.request(subject, request, timeout=5))
    assert "error" not in json.loads(answer.data)


def test_what_is_delivered_again_while_it_waits_for_its_turn_is_stored_once(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """By a consumer that delivers again very soon, while nothing can be handed over."""
    made_by_an_operator(stream, ack_wait=200_000_000, max_ack_pending=20_000)
    rig = make_rig(stream.source())
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        stream.send(5)
        eventually(lambda: rig.registered() == 5, "the first ones")
        proxy.away = True
        proxy.cut()
        for _ in range(60):
            stream.send(5)
            time.sleep(0.03)
        proxy.away = False
        eventually(lambda: stream.all_came(rig) and stream.waiting() == 0, "everything")
        stop(process)
    stream.check(rig)


def test_large_messages_come_no_more_at_once_than_there_is_room_for(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    """Before a receiver has seen any it asks for thousands; this is what it may have in memory then."""
    for _ in range(60):
        stream.publish(b"x" * 1_000_000)
    rig = make_rig(stream.source(), max_block_bytes=4 * 2**20)
    monitored: list[bytes] = []

    async def keep(message: Msg) -> None:
        monitored.append(message.data)

    requests = f"$JS.API.CONSUMER.MSG.NEXT.{stream.name}.>"
    stream.ask(lambda: stream.client.subscribe(requests, cb=keep))
    process = rig.start()
    eventually(lambda: rig.registered() == 60, "all of them")
    stop(process)
    assert {json.loads(data)["max_bytes"] for data in monitored} == {4 * 2**20}


def test_a_consumer_that_refuses_what_is_asked_for_is_named(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    made_by_an_operator(stream, max_batch=5)
    stream.send(10)
    rig = make_rig(stream.source())
    process = rig.start()
    eventually(lambda: rig.said("Exceeded MaxRequestBatch of 5"), "the event")
    stop(process)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ack_policy": "none"}, "has ack_policy 'none', by which messages are lost"),
        ({"ack_policy": "all"}, "has ack_policy 'all', by which messages are lost"),
        ({"deliver_subject": "elsewhere"}, "is a push consumer"),
    ],
    ids=["none", "all", "push"],
)
def test_a_consumer_that_would_lose_messages_or_gives_none_is_refused(
    stream: NatsStream, make_rig: Callable[..., SourceRig], settings: dict[str, object], said: str
) -> None:
    made_by_an_operator(stream, **settings)
    stream.send(10)
    rig = make_rig(stream.source())
    process = rig.start()
    eventually(lambda: rig.said(said), "the event")
    assert rig.registered() == 0
    # Another is made in its place: all of it is there.
    stream.ask(lambda: stream.jetstream.delete_consumer(stream.name, stream.source().durable))
    eventually(lambda: stream.all_came(rig), "everything")
    stop(process)
    stream.check(rig)


def test_a_consumer_that_is_deleted_is_made_anew_where_it_was(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    """Not at what is latest then: what came meanwhile would be lost, and nobody told."""
    stream.send(5)
    rig = make_rig(stream.source(start="latest"))
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the consumer")
    stream.send(10)
    eventually(lambda: rig.registered() == 10 and stream.waiting() == 0, "what came after it was made")
    stream.ask(lambda: stream.jetstream.delete_consumer(stream.name, stream.source().durable))
    stream.send(10)
    eventually(lambda: rig.registered() == 20, "what came while there was none")
    eventually(lambda: rig.said("was gone"), "the event")
    stop(process)
    assert sorted(row["sequence"] for row in rig.rows()) == list(range(6, 26))


def test_a_password_by_reference(
    tmp_path: Path, make_rig: Callable[..., SourceRig], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = NatsServer(tmp_path / "nats", "authorization { user: reader, password: hunter2 }")
    server.start()
    try:
        made = NatsStream.__new__(NatsStream)
        made.server, made.name = server, "orders"
        rig = make_rig(made.source(username="reader", password=EnvVar("NATS_PASSWORD")))
        monkeypatch.setenv("NATS_PASSWORD", "wrong")
        process = rig.start()
        eventually(lambda: rig.said("Authorization Violation"), "the refusal")
        stop(process)
        monkeypatch.setenv("NATS_PASSWORD", "hunter2")
        process = rig.start()
        # It is let in, and there is no such stream.
        eventually(lambda: rig.said("stream not found"), "the next question")
        assert not rig.said("hunter2")
        stop(process)
    finally:
        server.kill()
