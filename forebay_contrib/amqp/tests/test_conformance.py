"""AMQP in the conformance suite, and AMQP's own behaviour, on Debian's RabbitMQ. ``make brokers``."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import SourceConformance, hold_unregistered, proxied, stop
from forebay_contrib.amqp.tests.amqp_source import AmqpQueue
from forebay_contrib.amqp.tests.rabbitmq import RabbitMq
from receiver_runtime.sources.fields.tcp import Tls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.testing.source_rig import SourceRig

# In seconds. On a busy machine the node takes long to start; its start has a deadline of its own.
pytestmark = [pytest.mark.brokers, pytest.mark.timeout(240, func_only=True)]


@pytest.fixture(scope="module")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """Start RabbitMQ for the module. A test that stops it must start it again."""
    made = RabbitMq(tmp_path_factory.mktemp("rabbitmq"))
    try:
        made.start()
        yield made
    finally:
        made.close()


# Code for a process that acknowledges a message it never got: the broker closes the channel, not the connection.
ODD_ACKNOWLEDGEMENT = """
from forebay_contrib.amqp.reader import AmqpReader
_acknowledge = AmqpReader._acknowledge
def _odd(self, channel):
    _acknowledge(self, channel)
    if self._acknowledged == 10 and not hasattr(AmqpReader, "was_odd"):
        AmqpReader.was_odd = True
        channel.basic_ack(999_999)
AmqpReader._acknowledge = _odd
"""
# Code for a process whose first hand-over fails.
FAILS_ONCE = """
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
_begin = KeyedHandOver._begin
def _fails(self):
    if not hasattr(KeyedHandOver, "has_failed"):
        KeyedHandOver.has_failed = True
        raise MemoryError("once")
    _begin(self)
KeyedHandOver._begin = _fails
"""


class TestQuorumQueue(SourceConformance):
    """With keys in message_id: at least once, deduplicated."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, rabbitmq: RabbitMq) -> Iterator[AmqpQueue]:
        made = AmqpQueue(rabbitmq, kind="quorum")
        yield made
        made.close()


class TestClassicQueue(SourceConformance):
    """A classic queue without keys: at least once."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, rabbitmq: RabbitMq) -> Iterator[AmqpQueue]:
        made = AmqpQueue(rabbitmq, kind="classic", keyed=False)
        yield made
        made.close()


@pytest.fixture
def queue(rabbitmq: RabbitMq) -> Iterator[AmqpQueue]:
    made = AmqpQueue(rabbitmq, kind="quorum")
    yield made
    made.close()


def test_r05_nothing_is_acknowledged_before_it_is_registered_and_the_prefetch_bounds_what_is_held(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    rig = make_rig(queue.source(prefetch=100))
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        with queue.sending():
            eventually(lambda: rig.registered() > 50, "50 messages")
            hold_unregistered(rig, proxy, blocks=1)
            eventually(lambda: queue.waiting() > 200, "messages that wait in the queue")
        before = rig.registered()
        # Everything that is not registered is still with the broker: ready, or delivered and not acknowledged.
        assert len(queue.sent) - before - queue.waiting() <= 100
        process.kill()
        process.wait(60)
    eventually(lambda: queue.waiting() >= len(queue.sent) - before, "all of it, back in the queue")
    second = rig.start()
    eventually(lambda: queue.all_came(rig), "everything")
    stop(second)
    assert queue.left() == 0
    queue.check(rig)
    # Those that the first process had.
    assert any(row["redelivered"] for row in rig.rows())
    assert not rig.rows()[0]["redelivered"]


def test_a_message_repeated_at_once_is_stored_once(queue: AmqpQueue, make_rig: Callable[..., SourceRig]) -> None:
    """Send both before anything is read, so that they are read together."""
    rig = make_rig(queue.source())
    for name in ("a", "b", "a", "c", "a", "c", "the last"):
        queue.publish(name, name.encode())
    process = rig.start()
    eventually(lambda: queue.all_came(rig), "each of them")
    stop(process)
    assert queue.left() == 0
    assert [row["message_id"] for row in rig.rows()] == ["a", "b", "c", "the last"]


@pytest.mark.parametrize("before", [0, 2])
def test_a_stream_is_refused_because_it_would_be_read_from_its_end(
    rabbitmq: RabbitMq, make_rig: Callable[..., SourceRig], before: int
) -> None:
    """Check each start of one that has messages, though none comes while the receiver is there."""
    stream = AmqpQueue(rabbitmq, kind="stream")
    try:
        stream.declare()
        stream.send(before)
        rig = make_rig(stream.source())
        process = rig.start()
        if not before:
            eventually(lambda: rig.reason().startswith("connected"), "a consumer")
            stream.send(1)
        eventually(
            lambda: rig.reason().startswith("degraded") and "bind a quorum queue" in rig.reason().lower(), "the reason"
        )
        assert rig.said("a queue can't be read without gaps")
        assert rig.registered() == 0
        process.kill()
    finally:
        stream.close()


def test_the_properties_of_a_message_are_columns(queue: AmqpQueue, make_rig: Callable[..., SourceRig]) -> None:
    queue.publish("a", b"x", content_encoding="gzip", type="order", app_id="shop", reply_to="answers")
    queue.publish("b", b"x")
    rig = make_rig(queue.source())
    process = rig.start()
    eventually(lambda: rig.registered() == 2, "both")
    stop(process)
    names = ("content_encoding", "type", "app_id", "reply_to")
    assert [tuple(row[name] for name in names) for row in rig.rows()] == [
        ("gzip", "order", "shop", "answers"),
        (None, None, None, None),
    ]


def test_a_too_large_message_becomes_a_dead_letter_and_is_not_redelivered(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(queue.source(max_record_bytes=1000))
    process = rig.start()
    for number in range(3):
        queue.publish(f"large {number}", b"x" * 1001)
        queue.publish(f"small {number}", b"x" * 1000)
    queue.publish("large at last", b"x" * 1001)
    eventually(lambda: rig.registered() == 3, "the others")
    eventually(lambda: rig.dead_letters() == 4, "dead letters")
    stop(process)
    assert queue.left() == 0
    assert {row.reason for row in rig.execute("SELECT reason FROM forebay.dead_letters")} == {"record_too_large"}
    assert [row["message_id"] for row in rig.rows()] == [f"small {number}" for number in range(3)]


def test_a_message_with_the_key_of_another_and_another_body_is_kept_aside(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    queue.source()
    for body in (b"first", b"first", b"other"):
        queue.publish("one", body)
    rig = make_rig(queue.source())
    process = rig.start()
    eventually(lambda: rig.registered() == 1, "the first one")
    eventually(lambda: rig.dead_letters() == 1, "the other one, aside")
    stop(process)
    assert queue.left() == 0
    assert [row["value"] for row in rig.rows()] == [b"first"]
    assert rig.execute("SELECT reason FROM forebay.dead_letters") == [("repeated_key",)]


def test_headers_that_pika_rejects_block_nothing_and_numbers_keep_their_fractions(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    """Send headers as other languages' clients do: a time in milliseconds, fractions, bytes, deep nesting."""
    queue.publish_raw("late", b"\x02atT" + (1_700_000_000_000).to_bytes(8, "big"))
    queue.publish_raw("number", b"\x01fd" + struct.pack(">d", 1.5))
    queue.publish_raw("bytes", b"\x01\xffS\0\0\0\x01\xfe")
    queue.publish_raw("deep", b"", depth=2000)
    queue.send(1)
    rig = make_rig(queue.source())
    process = rig.start()
    eventually(lambda: rig.registered() == 4, "those that can be stored")
    eventually(lambda: rig.dead_letters() == 1, "the other one, aside")
    stop(process)
    assert queue.left() == 0
    found = {row["message_id"]: {pair["key"]: pair["value"] for pair in row["headers"] or ()} for row in rig.rows()}
    assert found == {
        "late": {"at": "1700000000000"},
        "number": {"f": "1.5"},
        "bytes": {"\\xff": "/g=="},
        "0": {},
    }
    assert rig.execute("SELECT reason FROM forebay.dead_letters") == [("invalid_encoding",)]
    assert not rig.said("was lost")


def test_x11_a_queue_that_is_deleted_is_said_and_read_again_when_it_is_there(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(queue.source())
    process = rig.start()
    queue.send(10)
    eventually(lambda: queue.all_came(rig), "10 messages")
    queue.delete()
    eventually(lambda: rig.said("the AMQP broker cancelled a consumer"), "the event")
    assert not rig.said("what it had is lost")
    eventually(lambda: rig.said("the AMQP broker refused the queues"), "the next try")
    queue.declare()
    queue.send(10)
    eventually(lambda: queue.all_came(rig), "10 more")
    # No failed start has left a consumer behind.
    eventually(lambda: queue.consumers() == 1, "one consumer")
    stop(process)
    assert queue.left() == 0
    queue.check(rig)


def test_several_queues_over_tls_with_their_columns(
    rabbitmq: RabbitMq, queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    other = AmqpQueue(rabbitmq, kind="classic")
    other.send(0)
    other.source()
    tls = Tls(ca_file=rabbitmq.authority.ca_file, server_hostname="rabbitmq.test")
    rig = make_rig(queue.source(queues=[queue.name, other.name], port=rabbitmq.tls_port, tls=tls))
    process = rig.start()
    queue.publish("a", b"1", headers={"n": 1, "s": "ü", "none": None}, correlation_id="c", content_type="text/plain")
    other.publish("b", b"2", timestamp=1_700_000_000)
    eventually(lambda: rig.registered() == 2, "both")
    stop(process)
    found = {row["message_id"]: row for row in rig.rows()}
    assert found["a"]["queue"] == queue.name
    assert found["a"]["headers"] == [
        {"key": "n", "value": "1"},
        {"key": "s", "value": "ü"},
        {"key": "none", "value": None},
    ]
    assert (found["a"]["correlation_id"], found["a"]["content_type"]) == ("c", "text/plain")
    assert found["b"]["queue"] == other.name
    assert found["b"]["timestamp"].timestamp() == 1_700_000_000
    assert found["b"]["headers"] is None
    other.close()


def test_a_wrong_password_is_reported(queue: AmqpQueue, make_rig: Callable[..., SourceRig]) -> None:
    wrong = queue.broker.password_file.with_name("wrong")
    wrong.write_text("nothing")
    rig = make_rig(queue.source(password=f"file:{wrong}"))
    process = rig.start()
    eventually(lambda: rig.said("ProbableAuthenticationError"), "the event")
    assert "nothing" not in rig.logs()
    stop(process)


def test_x11_a_channel_that_the_broker_closes_is_said_and_opened_again(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    """Cause it by an acknowledgement of a delivery that does not exist; brokers also do it on a consumer time-out."""
    rig = make_rig(queue.source())
    process = rig.start(first=ODD_ACKNOWLEDGEMENT)
    queue.send(10)
    eventually(lambda: rig.said("the broker closed the channel"), "the event")
    queue.send(10)
    eventually(lambda: queue.all_came(rig), "10 more")
    assert process.poll() is None
    stop(process)
    assert queue.left() == 0
    queue.check(rig)


def test_x10_a_failed_hand_over_is_redelivered_without_new_messages(
    queue: AmqpQueue, make_rig: Callable[..., SourceRig]
) -> None:
    rig = make_rig(queue.source())
    process = rig.start(first=FAILS_ONCE)
    queue.send(1)
    eventually(lambda: rig.said("could not be stored"), "the event")
    eventually(lambda: queue.all_came(rig), "the message")
    stop(process)
    assert queue.left() == 0
    queue.check(rig)
