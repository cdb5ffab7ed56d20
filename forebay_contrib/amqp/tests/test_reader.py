"""Check what an AMQP reader takes at once. `test_conformance` tests everything else, on RabbitMQ."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from forebay_contrib.amqp.client import DecodedProperties
from forebay_contrib.amqp.declaration import Amqp
from forebay_contrib.amqp.reader import AmqpQueueError, AmqpReader
from forebay_contrib.amqp.receiver import AmqpReceiver
from forebay_contrib.amqp.records import Message
from receiver_runtime.sources.receiver_settings import ReceiverSettings

if TYPE_CHECKING:
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor


def _reader(*queues: str) -> AmqpReader:
    receiver = AmqpReceiver(Amqp(host="127.0.0.1", queues=queues))
    settings = ReceiverSettings(max_block_bytes=2048)
    attached = SimpleNamespace(
        settings=settings, receiver_id=1, record_schema=receiver.record_schema, block_path=SimpleNamespace()
    )
    receiver.attach_supervisor(cast("AttachedSupervisor", attached))
    reader = receiver.make_run()
    assert isinstance(reader, AmqpReader)
    return reader


class _Channel:
    """Stand for a channel of a broker with streams; one that ``refuses`` closes it for an argument without a use."""

    def __init__(
        self, streams: set[str], *, refuses: bool, words: str = "PRECONDITION_FAILED - invalid arg 'x-stream-offset'"
    ) -> None:
        self._streams = streams
        self._refuses = refuses
        self._words = words
        self.consumed: list[str] = []
        self.is_open = True

    def basic_qos(self, *_: object, **__: object) -> None:
        """Do nothing."""

    add_on_cancel_callback = basic_qos

    def basic_consume(self, queue: str, _: object, *, arguments: dict[str, str], **__: object) -> None:
        assert self.is_open
        if queue not in self._streams and arguments and self._refuses:
            self.is_open = False
            raise ChannelClosedByBroker(406, self._words)
        self.consumed.append(queue)


@pytest.mark.parametrize("streams", [set(), {"a"}, {"b"}, {"c"}, {"a", "c"}])
@pytest.mark.parametrize("refuses", [False, True])
def test_a_stream_is_seen_by_the_argument_that_other_queues_do_not_take(streams: set[str], refuses: bool) -> None:
    """Check that no queue is consumed twice: messages would count as delivered once more."""
    made: list[_Channel] = []

    def channel() -> _Channel:
        made.append(_Channel(streams, refuses=refuses))
        return made[-1]

    reader = _reader("a", "b", "c")
    connection: Any = SimpleNamespace(channel=channel)
    if refuses and streams:
        with pytest.raises(AmqpQueueError, match=f"'{min(streams)}' is a stream") as raised:
            reader._consume(connection)
        assert raised.value.words == "a queue can't be read without gaps"
        expected = streams
    else:
        assert cast("Any", reader._consume(connection)) is made[-1]
        assert made[-1].is_open
        expected = {"a", "b", "c"}
    assert sorted(queue for one in made for queue in one.consumed) == sorted(expected)


def test_a_queue_that_is_refused_for_another_reason_makes_no_other_queue_a_stream() -> None:
    words = "PRECONDITION_FAILED - stream 'b' in vhost '/' does not have a running replica"
    channel = _Channel({"a"}, refuses=True, words=words)
    with pytest.raises(ChannelClosedByBroker, match="running replica"):
        _reader("a", "b")._consume(cast("Any", SimpleNamespace(channel=lambda: channel)))


@pytest.mark.parametrize(("ready", "said"), [(3, "what it had is lost: 3 messages"), (0, None)])
def test_a_queue_that_is_deleted_with_messages_says_how_many(ready: int, said: str | None) -> None:
    reader = _reader("q")
    reader._ready["q"] = ready
    reader._on_cancel(SimpleNamespace(method=SimpleNamespace(consumer_tag="q")))
    with pytest.raises(AmqpQueueError, match=said or "^q: the queue was deleted, or has moved$") as raised:
        reader._check_consumers(cast("Any", SimpleNamespace(is_open=True)))
    assert raised.value.words == "the AMQP broker cancelled a consumer"


def test_a_refusal_to_say_how_many_messages_wait_is_shown_until_the_broker_answers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = _reader("q")
    shown: list[tuple[str, str | None]] = []
    monkeypatch.setattr(reader._receiver, "report_note", lambda what, text: shown.append((what, text)))
    refusal: AMQPError | None = ChannelClosedByBroker(403, "ACCESS_REFUSED")
    asked = 0

    def queue_declare(*_: object, **__: object) -> SimpleNamespace:
        nonlocal asked
        asked += 1
        if refusal is not None:
            raise refusal
        return SimpleNamespace(method=SimpleNamespace(message_count=3))

    connection: Any = SimpleNamespace(channel=lambda: SimpleNamespace(queue_declare=queue_declare))
    reader._connection = connection
    # A number that is no longer known is not shown, and the broker is not asked at each look.
    assert (reader._find_unread(), reader._find_unread(), asked) == ({}, {}, 1)
    [(what, reason)] = shown
    assert reason is not None
    assert "ACCESS_REFUSED" in reason
    refusal, reader._ask_at = ConnectionClosedByBroker(320, "CONNECTION_FORCED"), 0.0
    # It is the connection that was lost, and a restart says so.
    with pytest.raises(ConnectionClosedByBroker):
        reader._find_unread()
    refusal = None
    assert [unread.amount for unread in reader._find_unread().values()] == [3]
    assert shown[1:] == [(what, None)]


def test_messages_that_piled_up_are_taken_one_block_at_a_time() -> None:
    """After a wait, all messages together may be more than one batch can hold."""
    reader = _reader("q")
    sizes = [1000, 1000, 1000, 0, 5000, 10, 10]
    came = [
        Message(tag, "q", "", "q", redelivered=False, properties=DecodedProperties(), body=b"x" * size)
        for tag, size in enumerate(sizes, 1)
    ]
    reader._coming = list(came)
    reader._stopping = True
    assert [[one.tag for one in reader._take()] for _ in range(4)] == [[1, 2, 3], [4, 5], [6, 7], []]
