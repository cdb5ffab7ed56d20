"""NATS JetStream in the conformance suite, and its own behaviour, on Debian's nats-server. ``make brokers``."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import (
    SourceConformance,
    check_acknowledged_when_registered,
    check_taken_over_from_a_live_receiver,
    proxied,
    stop,
)
from forebay_contrib.nats.tests.nats import NatsServer
from forebay_contrib.nats.tests.nats_source import NatsStream
from receiver_runtime.sources.fields.secret import EnvVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nats.aio.msg import Msg

    from forebay.testing.source_rig import SourceRig


# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
# The names of the marks, which say how far a source was read.
MARKS = "SELECT partition FROM forebay.block_offsets WHERE source LIKE 'mark of %'"
pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240, func_only=True)]


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """Start nats-server for the module. A test that kills it must start it again."""
    made = NatsServer(tmp_path_factory.mktemp("nats"))
    made.start()
    yield made
    made.kill()


@pytest.fixture
def stream(nats_server: NatsServer) -> Iterator[NatsStream]:
    made = NatsStream(nats_server)
    yield made
    made.close()


class TestNatsJetStream(SourceConformance):
    """At least once, deduplicated."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, stream: NatsStream) -> NatsStream:
        return stream


def test_x11_messages_are_acknowledged_when_they_are_registered_and_not_before(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """Check also that they are not redelivered meanwhile, although it takes longer than ack_wait."""
    check_acknowledged_when_registered(stream, make_rig(stream.source()), database_url, stream.waiting)


def test_messages_held_by_two_receivers_are_stored_once(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    check_taken_over_from_a_live_receiver(stream, make_rig(stream.source(), receivers=2), database_url)


def raw(server: NatsServer, *lines: bytes) -> None:
    """Send raw protocol lines to the server; return when it has them."""
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection,
        connection.makefile("rb") as answers,
    ):
        options = {"verbose": False, "headers": True}
        connection.sendall(b"CONNECT %s\r\n" % json.dumps(options).encode() + b"".join(lines) + b"PING\r\n")
        while answers.readline().strip() != b"PONG":
            pass


def test_undecodable_messages_become_dead_letters_and_block_nothing(
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
    assert set(rig.execute("SELECT reason FROM forebay.dead_letters")) == {("invalid_encoding",)}
    assert rig.dead_letters() == 2
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


def test_messages_removed_unread_are_reported_in_numbers(
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


def test_a_recreated_stream_is_read_although_its_sequences_repeat(
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


def create_consumer(stream: NatsStream, **settings: object) -> None:
    """Create a consumer with settings as in the server's API."""
    name = stream.source().durable
    config = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **settings}
    request = json.dumps({"stream_name": stream.name, "config": config}).encode()
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{stream.name}.{name}"
    answer = stream.ask(lambda: stream.client.request(subject, request, timeout=5))
    assert "error" not in json.loads(answer.data)


def test_messages_redelivered_while_they_wait_are_stored_once(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    """Use a consumer that redelivers very soon, while nothing can be handed over."""
    create_consumer(stream, ack_wait=200_000_000, max_ack_pending=20_000)
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


def test_requests_for_large_messages_are_limited_to_the_room(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    """Check the byte limit of the first requests, which ask for thousands of messages before their sizes are known."""
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


def test_a_request_that_the_consumer_refuses_is_reported(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    create_consumer(stream, max_batch=5)
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
        ({"headers_only": True}, "has headers_only, by which messages come without their content"),
        ({"max_deliver": 2}, "has max_deliver 2, after which the server stops delivering a message"),
    ],
    ids=["none", "all", "push", "headers_only", "max_deliver"],
)
def test_a_consumer_that_would_lose_messages_or_gives_none_is_refused(
    stream: NatsStream, make_rig: Callable[..., SourceRig], settings: dict[str, object], said: str
) -> None:
    create_consumer(stream, **settings)
    stream.send(10)
    rig = make_rig(stream.source())
    process = rig.start()
    eventually(lambda: rig.said(said), "the event")
    assert rig.registered() == 0
    # The receiver makes another in its place: every message is there.
    stream.ask(lambda: stream.jetstream.delete_consumer(stream.name, stream.source().durable))
    eventually(lambda: stream.all_came(rig), "everything")
    stop(process)
    stream.check(rig)


def test_a_consumer_with_another_subject_than_the_declared_one_is_refused(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    create_consumer(stream, filter_subject=f"{stream.name}.a.*")
    rig = make_rig(stream.source(subject=f"{stream.name}.b.*"))
    process = rig.start()
    eventually(lambda: rig.said(f"reads {stream.name}.a.*, and not '{stream.name}.b.*'"), "the event")
    stop(process)


def test_a_consumer_of_some_subjects_where_none_is_declared_is_read_and_reported(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    create_consumer(stream, filter_subject=f"{stream.name}.b.*")
    rig = make_rig(stream.source())
    process = rig.start()
    stream.publish(b"1")
    stream.publish(b"2", subject=f"{stream.name}.b.c")
    eventually(lambda: rig.registered() == 1, "the one that it reads")
    assert rig.said(f"was created to read only {stream.name}.b.*: messages of other subjects do not come")
    stop(process)


def test_a_deleted_consumer_is_recreated_at_its_position(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    """Check that it does not start at the latest message: what came meanwhile would be lost without a report."""
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


def test_a_consumer_that_is_gone_at_the_next_start_goes_on_and_says_what_is_missing(
    stream: NatsStream, make_rig: Callable[..., SourceRig]
) -> None:
    """Check it across processes: the second one has only the driver log, and start="latest" would skip what came."""
    rig = make_rig(stream.source(start="latest"))
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the consumer")
    stream.send(10)
    eventually(lambda: rig.registered() == 10 and stream.waiting() == 0, "10 messages")
    eventually(lambda: rig.execute(f"{MARKS} AND partition LIKE '%%/10/0/%%'"), "the mark")
    process.kill()
    stream.ask(lambda: stream.jetstream.delete_consumer(stream.name, stream.source().durable))
    stream.send(10)
    stream.ask(lambda: stream.jetstream.purge_stream(stream.name, keep=4))
    process = rig.start()
    eventually(lambda: rig.said("messages 11 up to 16, 6 of them"), "the gap and its size")
    eventually(lambda: rig.registered() == 14, "what is there yet")
    process.kill()
    stream.ask(lambda: stream.jetstream.delete_stream(stream.name))
    stream.ask(lambda: stream.jetstream.add_stream(name=stream.name, subjects=[f"{stream.name}.>"]))
    stream.send(5)
    process = rig.start()
    eventually(lambda: rig.said("a gap of unknown size"), "the other gap")
    eventually(lambda: rig.registered() == 19, "all of the new stream")
    stop(process)
    assert len(rig.execute(MARKS)) == 1


def _purge(stream: NatsStream) -> None:
    stream.ask(lambda: stream.jetstream.purge_stream(stream.name, keep=4))


def _delete_some(stream: NatsStream) -> None:
    async def delete() -> None:
        for sequence in (3, 23, 24, 27):
            await stream.jetstream.delete_msg(stream.name, sequence)

    stream.ask(delete)


def _limit(stream: NatsStream) -> None:
    subjects = [f"{stream.name}.>"]
    stream.ask(lambda: stream.jetstream.update_stream(name=stream.name, subjects=subjects, max_msgs=4))


def _make_consumer_again(stream: NatsStream, **settings: object) -> None:
    stream.ask(lambda: stream.jetstream.delete_consumer(stream.name, stream.source().durable))
    create_consumer(stream, **settings)


def _make_stream_again(stream: NatsStream) -> None:
    """Make another stream, and a consumer that begins behind what is there."""
    stream.ask(lambda: stream.jetstream.delete_stream(stream.name))
    stream.ask(lambda: stream.jetstream.add_stream(name=stream.name, subjects=[f"{stream.name}.>"]))
    stream.send(3)
    create_consumer(stream, deliver_policy="new")


# What someone does while no receiver runs, after 20 messages that were read and before 10 that were not; what is said
# of it; and how many of all messages come.
GAPS = [
    (_purge, ["messages 21 up to 26, 6 of them", "a gap of 6 messages"], 24),
    (_delete_some, ["a gap of 3 messages"], 27),
    (_limit, ["messages 21 up to 26, 6 of them"], 24),
    (lambda stream: _make_consumer_again(stream, deliver_policy="new"), ["a gap of up to 10 messages"], 20),
    (lambda stream: _make_consumer_again(stream, deliver_policy="last"), ["a gap of up to 9 messages"], 21),
    (
        lambda stream: _make_consumer_again(stream, deliver_policy="by_start_sequence", opt_start_seq=24),
        ["a gap of up to 3 messages"],
        27,
    ),
    (_make_consumer_again, [], 30),
    (_make_stream_again, ["the stream was created again", "a gap of up to 3 messages"], 20),
    (lambda _: None, [], 30),
]


@pytest.mark.parametrize(("change", "said", "come"), GAPS)
def test_what_a_consumer_will_never_deliver_is_reported_and_nothing_else(
    stream: NatsStream,
    make_rig: Callable[..., SourceRig],
    change: Callable[[NatsStream], object],
    said: list[str],
    come: int,
) -> None:
    rig = make_rig(stream.source(), receivers=2)
    process = rig.start()
    eventually(lambda: rig.said("connected to"), "the consumer")
    stream.send(20)
    eventually(lambda: rig.registered() == 20 and stream.waiting() == 0, "what is read")
    stop(process)
    stream.send(10)
    change(stream)
    process, other = rig.start(), rig.start(1)
    eventually(lambda: rig.registered() == come, "what is left")
    stream.send(1)
    eventually(lambda: rig.registered() == come + 1, "what comes then")
    # At a stop it is compared too.
    stop(process)
    stop(other)
    assert all(rig.said(one) for one in said)
    assert rig.said("a gap of") is bool(said)


def test_what_is_purged_while_a_receiver_cannot_keep_up_is_counted(
    stream: NatsStream, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    rig = make_rig(stream.source(in_flight=10))
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        stream.send(20)
        eventually(lambda: rig.registered() == 20 and stream.waiting() == 0, "the first ones")
        proxy.away = True
        proxy.cut()
        stream.send(30)
        eventually(lambda: stream.waiting() == 10, "those that can't be registered")
        stream.ask(lambda: stream.jetstream.purge_stream(stream.name, keep=5))
        proxy.away = False
        eventually(lambda: rig.registered() == 35, "what is there yet")
        stop(process)
    assert rig.said("15 of them, were removed")


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
        # The login succeeds; only the stream does not exist.
        eventually(lambda: rig.said("stream not found"), "the next question")
        assert not rig.said("hunter2")
        stop(process)
    finally:
        server.kill()
