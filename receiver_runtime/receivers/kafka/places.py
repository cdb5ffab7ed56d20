"""Decide where to begin in a partition: at the driver log's position, corrected by what the broker has.

Queries both, and reads no records. The driver log also keeps other facts about a stream's topics, beside the positions,
as origins of partitions whose names are not numbers: how many partitions a topic had when the stream began (partitions
that were added later are read from their beginning, whatever ``start`` says), and the topic id with which a partition
was read (a topic that was deleted and created again has another id).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, TopicMetadata  # type: ignore[attr-defined]

from tracker_store.blocks.blocks import ORIGIN, OffsetLink
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from receiver_runtime.receivers.kafka.declaration import Kafka, Option
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Position

_log = structlog.get_logger(__name__)

Key = tuple[str, int]

BROKER_SECONDS: Final = 10.0  # how long to wait for an answer of the broker
# Seconds to wait for the regular checks, which interrupt reading.
_QUICK_SECONDS = 2.0
# Seconds without further questions after brokers did not answer one about topics at all.
_SILENT_SECONDS = 300.0
# A log's end before our position, or another topic id, is believed when it was seen this many times, this many seconds
# apart: a new leader may lag for a moment, and so may a broker's metadata.
_LOOKS = 3
_LOOK_SECONDS = 0.5
# Names of pseudo-partitions; no real partition has such a name.
_BEGINNING: Final = "partitions at the beginning"
_TOPIC_ID: Final = "topic id of "
_ID_BITS: Final = 2**63 - 1


class OutOfRangeError(Exception):
    """Set out_of_range to 'earliest' or 'latest' to go on.

    The partition's next record is not on the broker, and the source says to stop then.
    """


@dataclass(slots=True)
class Partition:
    """Track an assigned partition.

    ``position`` is the next offset to hand over; ``links`` go in with the next block.
    """

    generation: int
    position: int
    links: list[OffsetLink] = field(default_factory=list)


@dataclass(slots=True)
class Look:
    """One answer of the brokers: each partition's leader, or why it has none; and the ids of topics that have one."""

    leaders: dict[Key, int | KafkaError] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)


class KafkaPlaces:
    """Decide where partitions begin; see the module. Only the reader's thread uses it.

    A failure on the broker's side raises KafkaException, and may be retried.

    Args:
        settings: the consumer's options.
    """

    def __init__(self, receiver: Receiver, source: Kafka, consumer: Consumer, settings: Mapping[str, Option]) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._consumer = consumer
        self._settings = settings
        self._admin: AdminClient | None = None
        # The topic id with which each open partition is read.
        self._ids: dict[Key, int] = {}
        self._past_ids: dict[str, set[int]] = {}
        self._ask_after = 0.0
        self._begun = source.start == "earliest"
        self._partitions_at_beginning: dict[str, int] = {}

    def close(self) -> None:
        """Close what was opened here; the reader owns the consumer."""
        self._admin = None

    def begin(self) -> bool:
        """Record once which topics and partitions exist, before any is read; return whether that is done.

        Any matching topic that did not exist then counts as created later.
        """
        if not self._begun:
            try:
                self._begun = self._begin_topics() if self._source.pattern is None else self._begin_pattern()
            except KafkaException as error:
                _log.info("the brokers can't say what topics there are, they are asked again", error=str(error))
        return self._begun

    def look(self, keys: Iterable[Key]) -> Look:
        """Ask the brokers once for everything needed about some partitions' topics."""
        found = Look()
        by_topic: dict[str, list[Key]] = {}
        for key in keys:
            by_topic.setdefault(key[0], []).append(key)
        for topic, of_topic in by_topic.items():
            said = self._topic(topic)
            for key in of_topic:
                partition = said.partitions.get(key[1])
                if said.error is not None or partition is None:
                    found.leaders[key] = said.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                elif partition.leader < 0:
                    found.leaders[key] = partition.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                else:
                    found.leaders[key] = int(partition.leader)
        there = {key[0] for key, leader in found.leaders.items() if isinstance(leader, int)}
        found.ids = self._ask_ids(there, BROKER_SECONDS)
        return found

    def open(self, key: Key, look: Look, cut_at: int | None = None) -> Partition:
        """Return the partition, with the position to continue from by the driver log and the broker.

        Args:
            look: a current one, in which the partition has a leader.
            cut_at: the broker has just said that from this offset on its log is no longer the one that was read.

        Raises:
            OutOfRangeError: the next record is not on the broker, and the source says to stop then.
        """
        topic, number = key
        low, high = self._range(key)
        began = self._start(key, low, high)
        # The id first: if the topic is created again between the two queries, that is noticed the next time.
        read_by, now = self._topic_ids(key, look)
        at = self._supervisor.block_path.positions.open_partition(topic, str(number), began)
        if now is not None and read_by is not None and read_by.offset != now:
            return self._open_recreated(key, at, low, high, self._new_id(key, read_by, now))
        if cut_at is not None and low <= cut_at < at.offset:
            return self._next_generation(key, at, cut_at, f"the broker's log was cut at offset {cut_at}")
        for _ in range(_LOOKS):
            if at.offset <= high:
                break
            time.sleep(_LOOK_SECONDS)
            low, high = self._range(key)
        if low <= at.offset <= high:
            return Partition(at.generation, at.offset)
        went_on = high if self._source.out_of_range == "latest" else low
        where = f"{topic}/{number}: offset {at.offset} is next, the broker has {low} up to {high}"
        if self._source.out_of_range == "stop":
            raise OutOfRangeError(f"{where}. {OutOfRangeError.__doc__}")
        if at.offset < low:
            self._receiver.report_error(
                f"{where}: offsets {at.offset} up to {went_on}, {went_on - at.offset} of them, are gone unread, "
                "and lost"
            )
            lost = OffsetLink(topic, str(number), at.generation, at.offset, went_on, LinkKind.LOST)
            return Partition(at.generation, went_on, [lost])
        return self._next_generation(
            key, at, went_on, f"the broker has {low} up to {high}: the topic was created again, or its log truncated"
        )

    def made_anew(self, keys: Sequence[Key]) -> list[Key]:
        """Return those open partitions whose topic is, or may be, another one of the same name by now."""
        now = self._ask_ids({topic for topic, _ in keys}, _QUICK_SECONDS)
        now = {topic: found for topic, found in now.items() if found not in self._past_ids.get(topic, ())}
        return [key for key in keys if key[0] in now and now[key[0]] != self._ids.get(key)]

    def strangers(self) -> set[str]:
        """Return the client ids of the group's members that are not this stream's receivers."""
        mine = self._settings["client.id"]
        group = self._source.group
        if time.monotonic() < self._ask_after:
            return set()
        try:
            asked = self._asking().describe_consumer_groups([group], request_timeout=_QUICK_SECONDS)
            members = asked[group].result(_QUICK_SECONDS).members
        except (KafkaException, TimeoutError) as error:
            _log.info("the brokers do not say who is in the group", group=group, error=repr(error))
            return set()
        return {member.client_id for member in members} - {mine}

    def start_unreliably(self, key: Key) -> int:
        """Return where to begin in a partition for which the broker has no committed position."""
        return self._configured_start(key, *self._range(key))

    # -- the next generation -----------------------------------------------------------------------------------------

    def _open_recreated(self, key: Key, at: Position, low: int, high: int, new_id: OffsetLink) -> Partition:
        went_on = high if self._source.out_of_range == "latest" else low
        why = f"the topic was created again, and has offsets {low} up to {high}"
        found = self._next_generation(key, at, went_on, why)
        found.links.append(new_id)
        return found

    def _next_generation(self, key: Key, at: Position, begins: int, why: str) -> Partition:
        topic, number = key
        where = f"{topic}/{number}: offset {at.offset} is next, {why}"
        if self._source.out_of_range == "stop":
            raise OutOfRangeError(f"{where}. {OutOfRangeError.__doc__}")
        self._receiver.report_error(f"{where}; generation {at.generation + 1} begins at offset {begins}")
        origin = OffsetLink(topic, str(number), at.generation + 1, ORIGIN, begins, LinkKind.ORIGIN)
        return Partition(at.generation + 1, begins, [origin])

    # -- ids of topics -----------------------------------------------------------------------------------------------

    def _topic_ids(self, key: Key, look: Look) -> tuple[Position | None, int | None]:
        """Return the id with which the partition was read, and the topic's id now.

        Both are None if the broker has no ids or does not answer, or if its answer is not confirmed.
        """
        topic, number = key
        now = look.ids.get(topic)
        if now is None:
            return None, None
        before = self._ids.get(key)
        read_by = self._supervisor.block_path.positions.open_partition(topic, f"{_TOPIC_ID}{number}", now)
        past = self._past_ids.setdefault(topic, set())
        if read_by.offset == now:
            past.update(() if before in (None, now) else (before,))
        elif now in past or before == now or not self._is_confirmed(topic, now):
            # The broker's metadata is out of date.
            return None, None
        else:
            past.add(read_by.offset)
        self._ids[key] = now
        return read_by, now

    def _is_confirmed(self, topic: str, topic_id: int) -> bool:
        for _ in range(_LOOKS - 1):
            time.sleep(_LOOK_SECONDS)
            again = self._ask_ids({topic}, BROKER_SECONDS).get(topic)
            if again is None:
                # Raise, so that the partition is not read from the position in the meantime.
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name for it
            if again != topic_id:
                return False
        return True

    def _ask_ids(self, topics: Collection[str], seconds: float) -> dict[str, int]:
        """Return topics' ids. A topic without one is left out: the broker is too old, or a permission is missing."""
        if not topics or time.monotonic() < self._ask_after:
            return {}
        found: dict[str, int] = {}
        asked = self._asking().describe_topics(TopicCollection(list(topics)), request_timeout=seconds)
        for topic, answer in asked.items():
            try:
                topic_id = answer.result(seconds).topic_id
            except KafkaException as error:
                _log.info("the brokers do not say a topic's id", topic=topic, error=str(error))
                continue
            except TimeoutError:
                # If brokers do not answer at all, do not wait for them at each rebalance.
                _log.info("the brokers do not say a topic's id in time", topic=topic, seconds=seconds)
                self._ask_after = time.monotonic() + _SILENT_SECONDS
                break
            # Cut to as many bits as an offset has; zero means no id.
            if bits := (topic_id.get_least_significant_bits() ^ topic_id.get_most_significant_bits()) & _ID_BITS:
                found[topic] = bits
        return found

    def _asking(self) -> AdminClient:
        if self._admin is None:
            # Log nothing: it would warn of a consumer's options, and the consumer reports the brokers' errors.
            self._admin = AdminClient({**self._settings, "log_level": 0})
        return self._admin

    def _new_id(self, key: Key, read_by: Position, now: int) -> OffsetLink:
        topic, number = key
        return OffsetLink(topic, f"{_TOPIC_ID}{number}", read_by.generation + 1, ORIGIN, now, LinkKind.ORIGIN)

    # -- where to begin ----------------------------------------------------------------------------------------------

    def _start(self, key: Key, low: int, high: int) -> int:
        """Return where to begin if nothing was read before."""
        topic, number = key
        if self._source.start == "earliest":
            return low
        if topic not in self._partitions_at_beginning:
            if self._source.pattern is None:
                self._note_beginning(topic, self._count(topic))
            elif self.begin():
                # All topics that existed are recorded: if this one is not among them, it was created later.
                self._note_beginning(topic, 0)
            else:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name for it
        if number >= self._partitions_at_beginning[topic]:
            return low
        return self._configured_start(key, low, high)

    def _configured_start(self, key: Key, low: int, high: int) -> int:
        if isinstance(self._source.start, str):
            return low if self._source.start == "earliest" else high
        asked = TopicPartition(*key, int(self._source.start.timestamp() * 1000))
        [found] = self._consumer.offsets_for_times([asked], timeout=BROKER_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return high if found.offset in (OFFSET_END, -1) else found.offset

    def _begin_topics(self) -> bool:
        done = True
        for topic in self._source.topics:
            try:
                self._note_beginning(topic, self._count(topic))
            except KafkaException as error:
                # A topic that we may not see does not delay the others; it is asked for again before it is read.
                _log.info("the brokers don't say what partitions a topic has", topic=topic, error=str(error))
                done = False
        return done

    def _begin_pattern(self) -> bool:
        assert self._source.pattern is not None
        [subscription] = self._source.subscription
        wanted = re.compile(self._source.pattern)
        # List topics before asking the driver log: if the beginning is not recorded there yet, these topics existed
        # before it was.
        seen = self._consumer.list_topics(timeout=BROKER_SECONDS).topics
        if _BEGINNING not in self._supervisor.block_path.positions.all_of(subscription):
            for topic, said in seen.items():
                if wanted.fullmatch(topic):
                    self._note_beginning(topic, len(said.partitions))
            self._supervisor.block_path.positions.open_partition(subscription, _BEGINNING, 0)
        return True

    def _note_beginning(self, topic: str, count: int) -> None:
        at = self._supervisor.block_path.positions.open_partition(topic, _BEGINNING, count)
        self._partitions_at_beginning[topic] = at.offset

    def _count(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist yet."""
        said = self._topic(topic)
        if said.error is not None and said.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(said.error)
        return len(said.partitions)

    def _topic(self, topic: str) -> TopicMetadata:
        found: TopicMetadata = self._consumer.list_topics(topic, timeout=BROKER_SECONDS).topics[topic]
        return found

    def _range(self, key: Key) -> tuple[int, int]:
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=BROKER_SECONDS)
        return low, high
