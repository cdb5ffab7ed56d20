"""Find a durable consumer in JetStream, or create it, and remember how far it has got.

This module owns the consumer's settings and what is known of it (``session``), also in the driver log: if the consumer
is deleted, its successor begins where it was, and what the stream no longer has is reported. It must never request or
acknowledge a message.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from forebay_contrib.nats.client import NatsError
from receiver_runtime.reporting.source_marks import Mark, SourceMarks

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import ConsumerInfo

    from forebay_contrib.nats.declaration import NatsJetStream
    from forebay_contrib.nats.session import KnownConsumer
    from receiver_runtime.supervisor.receiver import Receiver


_NOTE_SECONDS = 10.0  # between two notes of the position: what comes twice after a loss is left out by its key
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DurableConsumer:
    """Open and watch the consumer. Only the event loop's thread uses it."""

    def __init__(self, receiver: Receiver, source: NatsJetStream, client: Client, known: KnownConsumer) -> None:
        self._receiver = receiver
        self._source = source
        self._client = client
        self._known = known
        self._marks = SourceMarks(receiver.supervisor.block_path.positions, f"{source.durable} of {source.stream}")
        self._note_at = 0.0

    async def open(self) -> None:
        """Create the consumer if it is missing, check it, and report what the stream has lost. Raises NatsError."""
        source = self._source
        jetstream = self._client.jetstream(timeout=source.connect_timeout)
        about = await jetstream.stream_info(source.stream)
        made = _microseconds(about.created)
        await self._recall()
        known = self._known
        read = known.acknowledged if known.made == made else 0
        try:
            consumer = await jetstream.consumer_info(source.stream, source.durable)
            if known.made not in (None, made):
                self._receiver.report_error(
                    f"the stream {source.stream!r} was created again: what it had after message {known.acknowledged} "
                    "and was not read is lost (a gap of unknown size)"
                )
            if consumer.delivered is not None:
                read = max(read, consumer.delivered.stream_seq)
        except NotFoundError:
            policy, first = self._where_to_begin(made)
            consumer = await jetstream.add_consumer(
                source.stream,
                ConsumerConfig(
                    name=source.durable,
                    durable_name=source.durable,
                    deliver_policy=policy,
                    opt_start_seq=first,
                    ack_policy=AckPolicy.EXPLICIT,
                    ack_wait=source.ack_wait,
                    max_ack_pending=source.in_flight,
                    filter_subject=source.subject,
                ),
            )
        _check(source, consumer.config)
        self._note(made, consumer)
        await self._remember(now=True)
        state = about.state
        if source.subject is None and 0 < read < state.first_seq - 1:
            self._receiver.report_error(
                f"{source.stream}: messages {read + 1} up to {state.first_seq - 1}, {state.first_seq - 1 - read} of "
                "them, are gone from the stream and were never read: they are lost"
            )

    async def refresh(self) -> ConsumerInfo:
        """Note how far the consumer has got; raises where it is gone, or the server does not answer."""
        source = self._source
        jetstream = self._client.jetstream(timeout=source.connect_timeout)
        found: ConsumerInfo = await jetstream.consumer_info(source.stream, source.durable)
        self._note(self._known.made, found)
        await self._remember(now=False)
        return found

    async def _recall(self) -> None:
        """Read from the driver log what an earlier process knew, on another thread."""
        if self._known.made is None:
            mark = await asyncio.get_running_loop().run_in_executor(None, self._marks.read)
            if mark is not None:
                self._known.made, self._known.acknowledged = mark

    async def _remember(self, *, now: bool) -> None:
        if self._known.made is not None and (now or time.monotonic() >= self._note_at):
            mark = Mark(self._known.made, self._known.acknowledged)
            await asyncio.get_running_loop().run_in_executor(None, self._marks.note, mark)
            self._note_at = time.monotonic() + _NOTE_SECONDS

    def _where_to_begin(self, made: int) -> tuple[DeliverPolicy, int | None]:
        """Return where a new consumer begins: as declared, or where the consumer that is gone had got to."""
        source, known = self._source, self._known
        if known.made is None:
            return (DeliverPolicy.ALL if source.start == "earliest" else DeliverPolicy.NEW), None
        is_same = made == known.made
        begins = f"after message {known.acknowledged}"
        if not is_same:
            begins = "with the oldest message of the new stream (a gap of unknown size)"
        self._receiver.report_error(
            f"the consumer {source.durable!r} of {source.stream!r} was gone; it is created again, and begins {begins}"
        )
        return (DeliverPolicy.BY_START_SEQUENCE, known.acknowledged + 1) if is_same else (DeliverPolicy.ALL, None)

    def _note(self, made: int | None, consumer: ConsumerInfo) -> None:
        places = [consumer.ack_floor, consumer.delivered if consumer.num_ack_pending == 0 else None]
        through = max((place.stream_seq for place in places if place is not None), default=0)
        # A consumer that has just begun in the middle of the stream may not report its position yet.
        before = self._known.acknowledged if made == self._known.made else 0
        self._known.made, self._known.acknowledged = made, max(through, before)


def _microseconds(made: datetime | None) -> int:
    return 0 if made is None else (made - _EPOCH) // timedelta(microseconds=1)


def _check(source: NatsJetStream, config: ConsumerConfig) -> None:
    """Check the settings of the consumer, which someone else may have created. Raises NatsError."""
    name = f"the consumer {source.durable!r} of {source.stream!r}"
    policy = str(getattr(config.ack_policy, "value", config.ack_policy))
    if policy != AckPolicy.EXPLICIT.value:
        # With 'none' the server forgets a message once it is sent. With 'all' an acknowledgement also covers all
        # messages before it, even those that another receiver has.
        raise NatsError(
            f"{name} has ack_policy {policy!r}, by which messages are lost: create it with 'explicit', or give "
            "another durable"
        )
    if config.deliver_subject:
        raise NatsError(
            f"{name} is a push consumer, which takes no requests: create it without deliver_subject, or give "
            "another durable"
        )

    filters = [*(config.filter_subjects or []), *([config.filter_subject] if config.filter_subject else [])]
    if source.subject is not None and filters != [source.subject]:
        raise NatsError(
            f"{name} reads {', '.join(filters) or 'each subject'}, and not {source.subject!r}, which was "
            "declared: give another durable, or delete the consumer"
        )
