"""Read one connection's deliveries into blocks, from an ``on_start`` to its ``on_stop``.

There are two threads. *The connection's thread* reads, acknowledges and answers heartbeats; it never waits for the
driver log. *The hand-over thread* makes batches of the messages and may wait for as long as needed. Meanwhile nothing
is acknowledged, so the broker stops at its prefetch.

- Messages are acknowledged when their block is registered. Batches are answered in order, so one acknowledgement covers
  all messages up to the batch's last one (``multiple``).
- A message that can't be stored becomes a dead letter; it is acknowledged after that, together with its batch.
- A lost connection and a deleted queue are a restart, with the supervisor's pauses. The broker delivers again what was
  not acknowledged.
- At a stop nothing more is taken. What was taken is handed over, and acknowledged when it is registered.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING

import pika
import structlog
from pika.exceptions import AMQPChannelError, AMQPError, ChannelClosedByBroker

from forebay_contrib.amqp.client import TolerantConnection
from forebay_contrib.amqp.parameters import connection_parameters
from forebay_contrib.amqp.records import Message, batch_of, keys_of, text_of
from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from tracker_store.receivers.source_lag import Unread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from pika.adapters.blocking_connection import BlockingChannel
    from pika.frame import Method
    from pika.spec import Basic

    from forebay_contrib.amqp.client import DecodedProperties
    from forebay_contrib.amqp.declaration import Amqp
    from receiver_runtime.receivers.keyed_blocks import HandedOver
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place

_log = structlog.get_logger(__name__)

_TURN_SECONDS = 1.0  # how long the connection's thread waits for data before it checks consumers again
# How long to gather messages after the first one, and how many end this wait; they are handed over together.
_GATHERING_SECONDS = 0.01
_GATHERED_MESSAGES = 500
# How long after a refusal to ask again how many messages wait: the broker logs each refusal.
_ASK_AGAIN_SECONDS = 30.0
_WAITING = "waiting messages"  # the kind of note that a receiver has meanwhile; it is not degraded: it reads all
_STREAM_OFFSET = "x-stream-offset"  # RabbitMQ adds this header to messages of a stream
# Sent to recognise a stream at each start: it then delivers from its first message, with the header above. As far as we
# know, RabbitMQ accepts this argument for streams only; versions that refuse it for other queues close the channel.
_FROM_THE_FIRST = {_STREAM_OFFSET: "first"}
_PRECONDITION_FAILED = 406
_CANCELLED = "the AMQP broker cancelled a consumer"


class AmqpQueueError(ConnectionError):
    """Restart to consume again: ``words`` say why for all queues, the message for this one."""

    def __init__(self, words: str, said: str) -> None:
        super().__init__(said)
        self.words = words


class AmqpReader:
    """Read messages; see the module. Call ``start`` and ``stop`` once."""

    def __init__(self, receiver: Receiver, source: Amqp) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        # The prefetch bounds the messages in flight.
        self._hand_over = KeyedHandOver(self._supervisor, content="value")
        name = f"amqp {self._supervisor.receiver_id}"
        self._reading = threading.Thread(target=self._run, name=name, daemon=True)
        self._storing = threading.Thread(target=self._store, name=f"{name} blocks", daemon=True)
        # Guards the messages that are not handed over yet, how far they are registered, and the progress of a stop.
        self._changed = threading.Condition()
        self._coming: list[Message] = []
        self._registered = 0
        self._stopping = False
        self._settled = False
        self._connection: pika.BlockingConnection | None = None
        # Only the connection's thread uses these.
        self._acknowledged = 0
        self._cancelled = ""
        # Asks how many messages wait: a refusal closes it, and not the channel that consumes.
        self._asking: BlockingChannel | None = None
        self._ask_at = 0.0
        # The messages that are not acknowledged, by tag and queue, and how many of each queue were.
        self._unacknowledged: deque[tuple[int, str]] = deque()
        self._read: Counter[str] = Counter()
        self._ready: dict[str, int] = {}

    def start(self) -> None:
        """Begin to read; return at once."""
        self._storing.start()
        self._reading.start()

    def stop(self) -> None:
        """End; return when what was taken is handed over, and the connection is closed."""
        with self._changed:
            self._stopping = True
            connected = self._connection is not None
            self._changed.notify_all()
        self._storing.join()
        self._hand_over.close()
        with self._changed:
            self._settled = True
        self._wake()
        # A connection that is still being opened has read nothing, and closes by itself.
        if connected:
            self._reading.join()

    # -- the connection's thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        words = "the AMQP client could not be made"
        try:
            parameters = connection_parameters(self._source, self._supervisor.receiver_id)
            words = "the AMQP broker can't be reached"
            connection = pika.BlockingConnection(parameters, _impl_class=TolerantConnection)
            with self._changed:
                self._connection = connection
            words = "the AMQP broker refused the queues"
            channel = self._consume(connection)
            self._receiver.report_connected(self._source.address)
            words = "the connection to the AMQP broker was lost"
            while not self._settled:
                connection.process_data_events(time_limit=_TURN_SECONDS)
                self._acknowledge(channel)
                self._check_consumers(channel)
                self._receiver.report_unread(self._find_unread, lambda: len(self._coming))
            # Acknowledge what was registered last.
            self._acknowledge(channel)
            connection.close()
        except AmqpQueueError as error:
            self._receiver.restart(error.words, error)
        except BaseException as error:  # noqa: BLE001  reported, and started again
            if not self._stopping:
                self._receiver.restart(words, error)
            else:
                _log.info("the connection could not be left as it should be", error=str(error))
        finally:
            self._close()

    def _consume(self, connection: pika.BlockingConnection) -> BlockingChannel:
        """Consume each queue. Raises AmqpQueueError for a stream, if the broker shows already which ones are."""
        channel = self._new_channel(connection)
        accepted, refused = [], False
        for queue in self._source.queues:
            try:
                self._consume_queue(channel, queue, _FROM_THE_FIRST)
            except ChannelClosedByBroker as error:
                # RabbitMQ has many reasons for a 406, and names the argument only if it refuses the argument.
                if error.reply_code != _PRECONDITION_FAILED or _STREAM_OFFSET not in error.reply_text:
                    raise
                # With a broker that refuses the argument for other queues, those that accept it are streams.
                refused = True
                channel = self._new_channel(connection)
            else:
                accepted.append(queue)
        if refused:
            if accepted:
                raise _stream_error(accepted[0])
            for queue in self._source.queues:
                self._consume_queue(channel, queue, {})
        return channel

    def _new_channel(self, connection: pika.BlockingConnection) -> BlockingChannel:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self._source.prefetch)
        channel.add_on_cancel_callback(self._on_cancel)
        return channel

    def _consume_queue(self, channel: BlockingChannel, queue: str, arguments: Mapping[str, str]) -> None:
        # A cancellation names the consumer's tag, so use the queue's name.
        channel.basic_consume(queue, partial(self._on_message, queue), consumer_tag=queue, arguments=arguments)

    def _on_cancel(self, frame: Method) -> None:
        queue = frame.method.consumer_tag
        self._cancelled = f"{queue}: the queue was deleted, or has moved"
        if self._ready.get(queue):
            self._cancelled += (
                f"; if it was deleted, what it had is lost: {self._ready[queue]} messages that were not delivered when "
                "it was last seen"
            )

    def _check_consumers(self, channel: BlockingChannel) -> None:
        if self._stopping:
            return
        if self._cancelled:
            raise AmqpQueueError(_CANCELLED, self._cancelled)
        if not channel.is_open:
            # The connection stays open, and the client reports a closed channel only to calls that use it: without this
            # check, no more messages would come.
            raise AmqpQueueError(
                _CANCELLED, "the broker closed the channel, what is not acknowledged is delivered again"
            )

    def _on_message(
        self, queue: str, _: object, method: Basic.Deliver, properties: DecodedProperties, body: bytes
    ) -> None:
        if _STREAM_OFFSET in (properties.headers or {}):
            raise _stream_error(queue)
        message = Message(
            int(method.delivery_tag or 0),
            queue,
            text_of(method.exchange) or "",
            text_of(method.routing_key) or "",
            bool(method.redelivered),
            properties,
            body,
        )
        with self._changed:
            # A message that arrives during a stop is not acknowledged, so it is delivered again.
            if not self._stopping:
                self._coming.append(message)
                self._unacknowledged.append((message.tag, queue))
                if len(self._coming) in {1, _GATHERED_MESSAGES}:
                    self._changed.notify_all()

    def _acknowledge(self, channel: BlockingChannel) -> None:
        with self._changed:
            registered = self._registered
        if registered > self._acknowledged:
            channel.basic_ack(registered, multiple=True)
            self._acknowledged = registered
            while self._unacknowledged and self._unacknowledged[0][0] <= registered:
                self._read[self._unacknowledged.popleft()[1]] += 1

    def _find_unread(self) -> dict[Place, Unread]:
        """Return how many messages are ready in each queue, or came from it and are not acknowledged."""
        found: dict[Place, Unread] = {}
        if self._connection is None or time.monotonic() < self._ask_at:
            return found
        held = Counter(queue for _, queue in self._unacknowledged)
        try:
            if self._asking is None:
                self._asking = self._connection.channel()
            for queue in self._source.queues:
                ready = self._ready[queue] = self._asking.queue_declare(queue, passive=True).method.message_count
                found[self._source.virtual_host, queue] = Unread(
                    ready + held[queue], "messages", read=self._read[queue]
                )
        except AMQPChannelError as error:
            # The broker has closed the channel that only asks: what was known before is true no longer.
            self._asking = None
            self._ask_at = time.monotonic() + _ASK_AGAIN_SECONDS
            self._receiver.report_note(_WAITING, f"how many messages wait is not known: {error}")
            return {}
        self._receiver.report_note(_WAITING, None)
        return found

    def _close(self) -> None:
        """Close the connection, whatever happened; the other thread hands over what is left, and ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._connection is not None and self._connection.is_open:
            with contextlib.suppress(AMQPError, OSError):
                self._connection.close()

    def _wake(self, _: object = None) -> None:
        """Wake the connection's thread, from any thread: there is something to acknowledge, or it is the end."""
        connection = self._connection
        if connection is not None:
            # A closed connection need not be woken.
            with contextlib.suppress(AMQPError, OSError):
                connection.add_callback_threadsafe(lambda: None)

    # -- the hand-over thread ----------------------------------------------------------------------------------------

    def _store(self) -> None:
        try:
            while taken := self._take():
                self._hand_on(taken)
        except BaseException as error:  # noqa: BLE001  reported, and started again unless the receiver is stopping
            if not self._stopping:
                self._receiver.restart("what came from the AMQP broker could not be stored", error)
            _log.info("what came could not be stored, and is not acknowledged", error=str(error))

    def _take(self) -> list[Message]:
        """Return the messages that came, about a block of them at once; none at the end."""
        with self._changed:
            while not self._coming and not self._stopping:
                self._changed.wait()
            self._changed.wait_for(
                lambda: self._stopping or len(self._coming) >= _GATHERED_MESSAGES, _GATHERING_SECONDS
            )
            most = _about_a_block(self._coming, self._supervisor.settings.max_block_bytes)
            taken, self._coming = self._coming[:most], self._coming[most:]
            return taken

    def _hand_on(self, taken: Sequence[Message]) -> None:
        good, letters = [], []
        for message in taken:
            reason = _fault(message, self._source.max_record_bytes)
            if reason is None:
                good.append(message)
            else:
                letters.append(DeadLetter(reason, message.body))
        if letters:
            self._receiver.store_dead_letters(letters)
        # Submit even if all of them are dead letters: they are acknowledged in order.
        future = self._hand_over.submit(batch_of(good), keys_of(good, self._source.key))
        future.add_done_callback(partial(self._answered, taken[-1].tag))

    def _answered(self, through: int, future: Future[HandedOver]) -> None:
        """Have messages acknowledged, or restart. Called on the hand-over's thread, in the order of the submits."""
        error = future.exception()
        if error is None:
            with self._changed:
                self._registered = through
            self._wake()
        elif not self._stopping:
            # Do not leave it to the next submit to fail: if the whole prefetch is in flight, there is none.
            self._receiver.restart("what came from the AMQP broker could not be stored", error)


def _stream_error(queue: str) -> AmqpQueueError:
    said = (
        f"{queue!r} is a stream. Bind a quorum queue to the same exchange, and read that. The broker would begin at "
        "the stream's end with each start, and what came meanwhile would be missing without a word."
    )
    return AmqpQueueError("a queue can't be read without gaps", said)


def _about_a_block(messages: Sequence[Message], nbytes: int) -> int:
    """Return how many of the waiting messages make about a block; all may be too many for one batch."""
    left = nbytes
    for number, message in enumerate(messages, 1):
        left -= len(message.body)
        if left <= 0:
            return number
    return len(messages)


def _fault(message: Message, max_record_bytes: int) -> DeadLetterReason | None:
    if len(message.body) > max_record_bytes:
        return DeadLetterReason.RECORD_TOO_LARGE
    if message.properties.undecodable:
        return DeadLetterReason.INVALID_ENCODING
    return None
