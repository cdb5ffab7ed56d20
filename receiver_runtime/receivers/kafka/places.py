"""Where a partition is to be read from: what the driver log says, put right by what the broker has.

Asks both, and reads nothing. What a stream has to know of its topics besides positions stands beside these in the
driver log, as origins of partitions whose names are no numbers: how many partitions a topic had when the stream began
(those that came later are read from their beginning, whatever ``start`` says), and by which id of the topic a partition
was read (one that is made anew has another).
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

from tracker_store.blocks import ORIGIN, OffsetLink
from tracker_store.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from receiver_runtime.receiver import Receiver
    from receiver_runtime.sources.kafka import Kafka, Option
    from tracker_store.blocks import Position

_log = structlog.get_logger(__name__)

Key = tuple[str, int]

BROKER_SECONDS: Final = 10.0
# For what is asked now and then beside reading.
_QUICK_SECONDS = 2.0
_SILENT_SECONDS = 300.0
# An end before our position, or another id of a topic, is believed when it was seen so often, so far apart: a new
# leader may lag for a moment, and so may what a broker knows of topics.
_LOOKS = 3
_LOOK_SECONDS = 0.5
# Names of partitions that no topic has.
_BEGINNING: Final = "partitions at the beginning"
_TOPIC_ID: Final = "topic id of "
_ID_BITS: Final = 2**63 - 1


class OutOfRangeError(Exception):
    """A partition's next record is not on the broker, and the source says to stop then.

    Set out_of_range to 'earliest' or 'latest' to go on.
    """


@dataclass(slots=True)
class Partition:
    """One that is ours. ``position`` is the next offset to hand over; ``links`` go in with the next block."""

    generation: int
    position: int
    links: list[OffsetLink] = field(default_factory=list)


@dataclass(slots=True)
class Look:
    """What the brokers said, once: who leads each partition, or why nobody does; the ids of topics that have one."""

    leaders: dict[Key, int | KafkaError] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)


class KafkaPlaces:
    """See the module. The reader's thread alone.

    What fails on the broker's side raises KafkaException, and may be tried again.

    Args:
        settings: of the consumer.
    """

    def __init__(self, receiver: Receiver, source: Kafka, consumer: Consumer, settings: Mapping[str, Option]) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._consumer = consumer
        self._settings = settings
        self._admin: AdminClient | None = None
        # By which id of its topic a partition is read, since it was opened.
        self._ids: dict[Key, int] = {}
        self._past_ids: dict[str, set[int]] = {}
        self._ask_after = 0.0
        self._begun = source.start == "earliest"
        self._partitions_at_beginning: dict[str, int] = {}

    def close(self) -> None:
        """Give back what was opened here; the consumer is the reader's."""
        self._admin = None

    def begin(self) -> bool:
        """Put down once which topics and partitions there are, before any is read; says whether that is done.

        A pattern's topics that are not there then have come later, all of them.
        """
        if not self._begun:
            try:
                self._begun = self._begin_topics() if self._source.pattern is None else self._begin_pattern()
            except KafkaException as error:
                _log.info("the brokers can't say what topics there are, they are asked again", error=str(error))
        return self._begun

    def look(self, keys: Iterable[Key]) -> Look:
        """Ask once for all that is to be known of some partitions' topics."""
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
        """Where to read on, by the driver log and the broker.

        Args:
            look: of now; its partition has a leader.
            cut_at: the broker has just said that its log no longer is the one that was read, from this offset on.

        Raises:
            OutOfRangeError: nowhere.
        """
        topic, number = key
        low, high = self._range(key)
        began = self._start(key, low, high)
        # The id first: what is made anew between the two is noticed the next time.
        read_by, now = self._topic_ids(key, look)
        at = self._supervisor.block_path.positions.open_partition(topic, str(number), began)
        if now is not None and read_by is not None and read_by.offset != now:
            return self._made_anew(key, at, low, high, self._new_id(key, read_by, now))
        if cut_at is not None and low <= cut_at < at.offset:
            return self._begin_anew(key, at, cut_at, f"the broker's log was cut at offset {cut_at}")
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
        return self._begin_anew(key, at, went_on, f"the broker has {low} up to {high}: it was made anew, or cut")

    def made_anew(self, keys: Sequence[Key]) -> list[Key]:
        """Those of partitions that are open whose topic is another one now, of the same name, or may be."""
        now = self._ask_ids({topic for topic, _ in keys}, _QUICK_SECONDS)
        now = {topic: found for topic, found in now.items() if found not in self._past_ids.get(topic, ())}
        return [key for key in keys if key[0] in now and now[key[0]] != self._ids.get(key)]

    def strangers(self) -> set[str]:
        """Members of the group that are not this stream's receivers, by their clients' ids."""
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
        """Where to begin a partition of which the broker knows no position."""
        return self._start_of_all(key, *self._range(key))

    # -- the next generation -----------------------------------------------------------------------------------------

    def _made_anew(self, key: Key, at: Position, low: int, high: int, new_id: OffsetLink) -> Partition:
        went_on = high if self._source.out_of_range == "latest" else low
        why = f"the topic was made anew, and has offsets {low} up to {high}"
        found = self._begin_anew(key, at, went_on, why)
        found.links.append(new_id)
        return found

    def _begin_anew(self, key: Key, at: Position, begins: int, why: str) -> Partition:
        topic, number = key
        where = f"{topic}/{number}: offset {at.offset} is next, {why}"
        if self._source.out_of_range == "stop":
            raise OutOfRangeError(f"{where}. {OutOfRangeError.__doc__}")
        self._receiver.report_error(f"{where}; generation {at.generation + 1} begins at offset {begins}")
        origin = OffsetLink(topic, str(number), at.generation + 1, ORIGIN, begins, LinkKind.ORIGIN)
        return Partition(at.generation + 1, begins, [origin])

    # -- ids of topics -----------------------------------------------------------------------------------------------

    def _topic_ids(self, key: Key, look: Look) -> tuple[Position | None, int | None]:
        """By which id the partition was read, and the topic's now; None where the broker has none, or says nothing."""
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
            # A broker that has not heard of what is newer.
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
                # Not to be read on from the position meanwhile.
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name for it
            if again != topic_id:
                return False
        return True

    def _ask_ids(self, topics: Collection[str], seconds: float) -> dict[str, int]:
        """Without those that have none: of a broker too old, or where a right is missing."""
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
                # Whoever does not answer at all is not waited for at each change of the group.
                _log.info("the brokers do not say a topic's id in time", topic=topic, seconds=seconds)
                self._ask_after = time.monotonic() + _SILENT_SECONDS
                break
            # As many bits as an offset has; zero is none.
            if bits := (topic_id.get_least_significant_bits() ^ topic_id.get_most_significant_bits()) & _ID_BITS:
                found[topic] = bits
        return found

    def _asking(self) -> AdminClient:
        if self._admin is None:
            # It warns of a consumer's options; of the broker the consumer tells.
            self._admin = AdminClient({**self._settings, "log_level": 0})
        return self._admin

    def _new_id(self, key: Key, read_by: Position, now: int) -> OffsetLink:
        topic, number = key
        return OffsetLink(topic, f"{_TOPIC_ID}{number}", read_by.generation + 1, ORIGIN, now, LinkKind.ORIGIN)

    # -- where to begin ----------------------------------------------------------------------------------------------

    def _start(self, key: Key, low: int, high: int) -> int:
        """When nothing was read before."""
        topic, number = key
        if self._source.start == "earliest":
            return low
        if topic not in self._partitions_at_beginning:
            if self._source.pattern is None:
                self._note_beginning(topic, self._count(topic))
            elif self.begin():
                # All that were there are put down: this one came later, if it isn't one of them.
                self._note_beginning(topic, 0)
            else:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name for it
        if number >= self._partitions_at_beginning[topic]:
            return low
        return self._start_of_all(key, low, high)

    def _start_of_all(self, key: Key, low: int, high: int) -> int:
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
                # One that we may not see does not hold the others up; it is asked for again when it is to be read.
                _log.info("the brokers don't say what partitions a topic has", topic=topic, error=str(error))
                done = False
        return done

    def _begin_pattern(self) -> bool:
        assert self._source.pattern is not None
        [subscription] = self._source.subscription
        wanted = re.compile(self._source.pattern)
        # Before the log is asked: what is seen here was there when whoever came first had not yet put it down.
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
        """How many partitions it has; none where it is not there yet."""
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
