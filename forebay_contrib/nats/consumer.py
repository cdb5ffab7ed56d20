"""Find a durable consumer in JetStream, or create it, and remember how far it has got.

This module owns the consumer's settings and what is known of it (``session``), also in the driver log: if the consumer
is deleted, its successor begins where it was, and what will never be delivered is reported. It must never request or
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
from forebay_contrib.nats.consumer_gaps import Reached, Seen, begun, gaps
from receiver_runtime.reporting.source_marks import SourceMarks

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.js.api import ConsumerInfo, StreamConfig, StreamInfo

    from forebay_contrib.nats.declaration import NatsJetStream
    from forebay_contrib.nats.session import KnownConsumer
    from receiver_runtime.supervisor.receiver import Receiver


_NOTE_SECONDS = 10.0  # between two looks at the stream, each of which is noted
_LOOKS_IN_A_ROW = 2  # with more open requests than receivers, until they are another program's
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DurableConsumer:
    """Open and watch the consumer. Only the event loop's thread uses it."""

    def __init__(self, receiver: Receiver, source: NatsJetStream, client: Client, known: KnownConsumer) -> None:
        self._receiver = receiver
        self._source = source
        self._client = client
        self._known = known
        self._positions = receiver.supervisor.block_path.positions
        self._marks = SourceMarks(self._positions, f"{source.durable} of {source.stream}")
        self._look_at = 0.0
        self._looking = asyncio.Lock()
        self._asked_in_a_row = 0

    async def open(self) -> None:
        """Create the consumer if it is missing, check it, and report what it will not deliver. Raises NatsError."""
        source = self._source
        jetstream = self._client.jetstream(timeout=source.connect_timeout)
        about = await jetstream.stream_info(source.stream)
        await self._recall()
        try:
            consumer = await jetstream.consumer_info(source.stream, source.durable)
        except NotFoundError:
            policy, first = self._where_to_begin(_microseconds(about.created))
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
            self._begin_again(about, consumer, first)
        _check(source, consumer.config)
        self._report_filter(about.config, consumer.config)
        async with self._looking:
            await self._compare(about, consumer)

    def _report_filter(self, stream: StreamConfig, config: ConsumerConfig) -> None:
        """Report a consumer that reads only some of the stream's subjects, if none was declared."""
        source, filters = self._source, _filters(config)
        if source.subject is not None or not filters or ">" in filters:
            return
        # Messages that come from other streams may have any subject.
        if stream.subjects and not stream.sources and set(stream.subjects) <= set(filters):
            return
        declare = f"declare subject={filters[0]!r}, or " if len(filters) == 1 else ""
        self._receiver.report_error(
            f"the consumer {source.durable!r} of {source.stream!r} was created to read only {', '.join(filters)}: "
            f"messages of other subjects do not come; {declare}create it without a filter"
        )

    async def refresh(self) -> ConsumerInfo:
        """Note how far the consumer has got; raises if it is gone, or the server does not answer.

        Raises NatsError if someone has changed its settings to ones by which messages are lost.
        """
        source = self._source
        jetstream = self._client.jetstream(timeout=source.connect_timeout)
        if time.monotonic() < self._look_at:
            found: ConsumerInfo = await jetstream.consumer_info(source.stream, source.durable)
            _check(source, found.config)
            return found
        # In this order: what is removed because it was delivered meanwhile is no gap.
        about = await jetstream.stream_info(source.stream)
        found = await jetstream.consumer_info(source.stream, source.durable)
        _check(source, found.config)
        async with self._looking:
            await self._compare(about, found)
        await self._look_for_others(found)
        return found

    async def _look_for_others(self, consumer: ConsumerInfo) -> None:
        """Report that other programs ask for messages of the consumer, each time that they begin to.

        JetStream counts the open requests, of which each receiver has one; what others are given is not known.
        """
        peers = await asyncio.get_running_loop().run_in_executor(None, self._positions.peers)
        is_asked = (consumer.num_waiting or 0) > len(peers)
        self._asked_in_a_row = self._asked_in_a_row + 1 if is_asked else 0
        # One look may have seen a request of a receiver that has just ended.
        if self._asked_in_a_row == _LOOKS_IN_A_ROW:
            self._receiver.report_error(
                f"another program requests messages of the consumer {self._source.durable!r} of "
                f"{self._source.stream!r}: what it is given and acknowledges does not come here (a gap of unknown "
                "size). Give each program a durable of its own"
            )

    async def leave(self) -> None:
        """Note how far the consumer has got, at the end; raises as ``refresh``."""
        self._look_at = 0.0
        await self.refresh()

    async def _compare(self, about: StreamInfo, consumer: ConsumerInfo) -> None:
        """Report what the consumer will not deliver, and note what it has reached."""
        seen = _seen(about, consumer)
        found, reached = gaps(self._known.reached, seen)
        if found and self._known.reached is not None:
            # Another receiver may have reported it, or made the consumer again, meanwhile.
            mark = await self._read_mark()
            if mark is not None and mark > self._known.reached:
                found, reached = gaps(mark, seen)
        for gap in found:
            self._receiver.report_error(f"{self._source.durable!r} of {self._source.stream!r}: {gap}")
        self._known.reached = reached
        await asyncio.get_running_loop().run_in_executor(None, self._marks.note, reached)
        self._look_at = time.monotonic() + _NOTE_SECONDS

    async def _recall(self) -> None:
        """Read from the driver log what an earlier process knew."""
        if self._known.reached is None:
            self._known.reached = await self._read_mark()

    async def _read_mark(self) -> Reached | None:
        mark = await asyncio.get_running_loop().run_in_executor(None, self._marks.read)
        return None if mark is None else Reached(*mark)

    def _where_to_begin(self, made: int) -> tuple[DeliverPolicy, int | None]:
        """Return where a new consumer begins: as declared, or where the consumer that is gone had got to."""
        source, known = self._source, self._known.reached
        if known is None:
            return (DeliverPolicy.ALL if source.start == "earliest" else DeliverPolicy.NEW), None
        is_same = made == known.stream
        begins = f"after message {known.acknowledged}" if is_same else "with the oldest message of the new stream"
        self._receiver.report_error(
            f"the consumer {source.durable!r} of {source.stream!r} was gone; it is created again, and begins {begins}"
        )
        return (DeliverPolicy.BY_START_SEQUENCE, known.acknowledged + 1) if is_same else (DeliverPolicy.ALL, None)

    def _begin_again(self, about: StreamInfo, consumer: ConsumerInfo, first: int | None) -> None:
        """Take the consumer that was just created for the one that was known, if it goes on where that was."""
        known = self._known.reached
        made = _microseconds(consumer.created)
        if known is None:
            seen = _seen(about, consumer)
            self._known.reached = begun(seen, is_latest=self._source.start == "latest")
        else:
            place = known.place if first is None else first - 1
            self._known.reached = known._replace(consumer=made, place=place, deliveries=0)


def _seen(about: StreamInfo, consumer: ConsumerInfo) -> Seen:
    state, delivered, floor = about.state, consumer.delivered, consumer.ack_floor
    config = consumer.config
    removed = state.last_seq - state.messages
    keeps_newest = (about.config.max_msgs_per_subject or 0) > 0 or bool(about.config.allow_rollup_hdrs)
    filters = _filters(config)
    return Seen(
        stream=_microseconds(about.created),
        first=state.first_seq,
        last=state.last_seq,
        removed=removed,
        removed_within=max(0, removed - max(0, state.first_seq - 1)),
        consumer=_microseconds(consumer.created),
        place=0 if delivered is None else delivered.stream_seq,
        deliveries=0 if delivered is None else delivered.consumer_seq,
        waiting=consumer.num_pending or 0,
        unacknowledged=consumer.num_ack_pending or 0,
        acknowledged=0 if floor is None else floor.stream_seq,
        begins_after=None if not config.opt_start_seq else config.opt_start_seq - 1,
        # Of the filters, this one alone reads each message for certain: a stream's subjects may have been others.
        is_filtered=bool(filters) and ">" not in filters,
        keeps_newest=keeps_newest,
    )


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
    if config.headers_only:
        raise NatsError(
            f"{name} has headers_only, by which messages come without their content: create it without, or give "
            "another durable"
        )
    if (config.max_deliver or 0) > 0:
        raise NatsError(
            f"{name} has max_deliver {config.max_deliver}, after which the server stops delivering a message, stored "
            "or not: create it without, or give another durable"
        )
    filters = _filters(config)
    if source.subject is not None and filters != [source.subject]:
        raise NatsError(
            f"{name} reads {', '.join(filters) or 'each subject'}, and not {source.subject!r}, which was "
            "declared: give another durable, or delete the consumer"
        )


def _filters(config: ConsumerConfig) -> list[str]:
    return [*(config.filter_subjects or []), *([config.filter_subject] if config.filter_subject else [])]
