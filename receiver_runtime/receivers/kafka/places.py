"""Decide where to begin in a partition: at the driver log's position, corrected by what the broker has.

Queries both, and reads no records. The driver log also keeps other facts about a stream's topics, beside the positions,
as origins of partitions whose names are not numbers: how many partitions a topic had when the stream began
(``stream_beginning``), the topic id with which a partition was read (``topic_ids``), and what a group has read whose
positions only the brokers have (``reading.group_positions``).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS, BrokerQuestions, metadata_of
from receiver_runtime.receivers.kafka.stream_beginning import StreamBeginning
from receiver_runtime.receivers.kafka.topic_ids import TopicIds, new_id_link
from tracker_store.blocks.blocks import ORIGIN, OffsetLink
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from receiver_runtime.receivers.kafka.broker_questions import EndAnswer
    from receiver_runtime.receivers.kafka.declaration import Kafka, Option
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Position


# A log's end before our position is believed when it was seen this many times, this many seconds apart: a new leader
# may lag for a moment.
_LOOKS = 3
_LOOK_SECONDS = 0.5


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
        #: Asks what the consumer can't.
        self.brokers = BrokerQuestions(settings)
        self._ids = TopicIds(self.brokers, self._supervisor.block_path)
        #: What existed when the stream began.
        self.beginning = StreamBeginning(source, consumer, self._supervisor.block_path)

    def close(self) -> None:
        """Close what was opened here; the reader owns the consumer."""
        self.brokers.close()

    def look(self, keys: Iterable[Key]) -> Look:
        """Ask the brokers once for everything needed about some partitions' topics."""
        found = Look()
        by_topic: dict[str, list[Key]] = {}
        for key in keys:
            by_topic.setdefault(key[0], []).append(key)
        for topic, of_topic in by_topic.items():
            said = metadata_of(self._consumer, topic)
            for key in of_topic:
                partition = said.partitions.get(key[1])
                if said.error is not None or partition is None:
                    found.leaders[key] = said.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                elif partition.leader < 0:
                    found.leaders[key] = partition.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
                else:
                    found.leaders[key] = int(partition.leader)
        there = {key[0] for key, leader in found.leaders.items() if isinstance(leader, int)}
        found.ids = self.brokers.topic_ids(there, BROKER_SECONDS)
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
        low, high = self.range_of(key)
        began = self.beginning_of(key, low, high)
        # The id first: if the topic is created again between the two queries, that is noticed the next time.
        read_by, now = self._ids.compare(key, look.ids.get(topic))
        at = self._supervisor.block_path.positions.open_partition(topic, str(number), began)
        if now is not None and read_by is not None and read_by.offset != now:
            return self._open_recreated(key, at, low, high, new_id_link(key, read_by, now))
        if cut_at is not None and low <= cut_at < at.offset:
            return self._next_generation(key, at, cut_at, f"the broker's log was cut at offset {cut_at}")
        if at.offset > high:
            low, high = self.look_again(key, at.offset)
        if low <= at.offset <= high:
            return Partition(at.generation, at.offset)
        if at.offset < low:
            went_on = self.pass_lost(key, at.offset, low, high)
            lost = OffsetLink(topic, str(number), at.generation, at.offset, went_on, LinkKind.LOST)
            return Partition(at.generation, went_on, [lost])
        went_on = self.out_of_range(low, high)
        return self._next_generation(key, at, went_on, ends_before(low, high))

    def made_anew(self, keys: Sequence[Key]) -> list[Key]:
        """Return those open partitions whose topic is, or may be, another one of the same name by now."""
        return self._ids.made_anew(keys)

    def ask_ends(self, keys: Iterable[Key]) -> Mapping[Key, EndAnswer]:
        """Ask the brokers for partitions' ends; see ``BrokerQuestions.ask_ends``."""
        return self.brokers.ask_ends(keys)

    def strangers(self) -> set[str]:
        """Return the client ids of the group's members that are not this stream's receivers."""
        return self.brokers.members(self._source.group) - {self._settings["client.id"]}

    # -- what the broker has -----------------------------------------------------------------------------------------

    def range_of(self, key: Key) -> tuple[int, int]:
        """Return the offset of a partition's oldest record, and the one after its newest."""
        low, high = self._consumer.get_watermark_offsets(TopicPartition(*key), timeout=BROKER_SECONDS)
        return low, high

    def look_again(self, key: Key, at: int) -> tuple[int, int]:
        """Return a range that ends before ``at`` only if that was seen several times."""
        for _ in range(_LOOKS):
            time.sleep(_LOOK_SECONDS)
            low, high = self.range_of(key)
            if at <= high:
                break
        return low, high

    def out_of_range(self, low: int, high: int) -> int:
        """Return where to read on if the next record is not on the broker, as the source says."""
        return high if self._source.out_of_range == "latest" else low

    def pass_lost(self, key: Key, at: int, low: int, high: int) -> int:
        """Return where to read on behind records that are gone, and report these. Raises OutOfRangeError."""
        where = f"{key[0]}/{key[1]}: offset {at} is next, the broker has {low} up to {high}"
        self.refuse_to_go_on(where)
        went_on = self.out_of_range(low, high)
        self._receiver.report_error(
            f"{where}: offsets {at} up to {went_on}, {went_on - at} of them, are gone unread, and lost"
        )
        return went_on

    def refuse_to_go_on(self, where: str) -> None:
        """Raise OutOfRangeError if the source says so."""
        if self._source.out_of_range == "stop":
            raise OutOfRangeError(f"{where}. {OutOfRangeError.__doc__}")

    # -- the next generation -----------------------------------------------------------------------------------------

    def _open_recreated(self, key: Key, at: Position, low: int, high: int, new_id: OffsetLink) -> Partition:
        went_on = self.out_of_range(low, high)
        why = (
            f"the topic was created again, and has offsets {low} up to {high}; what the one before had from there on "
            "is lost (a gap of unknown size)"
        )
        found = self._next_generation(key, at, went_on, why)
        found.links.append(new_id)
        # The receiver of the first partition, which each topic has, reports those that the new topic has not.
        if key[1] == 0:
            self._report_gone(key[0])
        return found

    def _report_gone(self, topic: str) -> None:
        """Report the partitions that were read and are not there in a topic that was created again."""
        there = metadata_of(self._consumer, topic).partitions
        known = self._supervisor.block_path.positions.all_of(topic)
        # Other facts about the topic have names that are no numbers.
        gone = sorted(int(name) for name in known if name.isdecimal() and int(name) not in there)
        for number in gone:
            self._receiver.report_error(
                f"{topic}/{number}: offset {known[str(number)].offset} is next, the topic was created again with "
                f"{len(there)} partitions, without this one; what it had from there on is lost (a gap of unknown size)"
            )

    def _next_generation(self, key: Key, at: Position, begins: int, why: str) -> Partition:
        topic, number = key
        where = f"{topic}/{number}: offset {at.offset} is next, {why}"
        self.refuse_to_go_on(where)
        self._receiver.report_error(f"{where}; generation {at.generation + 1} begins at offset {begins}")
        origin = OffsetLink(topic, str(number), at.generation + 1, ORIGIN, begins, LinkKind.ORIGIN)
        return Partition(at.generation + 1, begins, [origin])

    # -- where to begin ----------------------------------------------------------------------------------------------

    def beginning_of(self, key: Key, low: int, high: int) -> int:
        """Return where to begin in a partition that was not read before.

        Of one that was added later, retention may have removed records that no receiver could read: it begins at 0.
        """
        return 0 if self.beginning.is_later(key) else self._configured_start(key, low, high)

    def _configured_start(self, key: Key, low: int, high: int) -> int:
        if isinstance(self._source.start, str):
            return low if self._source.start == "earliest" else high
        asked = TopicPartition(*key, int(self._source.start.timestamp() * 1000))
        [found] = self._consumer.offsets_for_times([asked], timeout=BROKER_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return high if found.offset in (OFFSET_END, -1) else found.offset


def ends_before(low: int, high: int) -> str:
    """Say why a log may end before a position."""
    return f"the broker has {low} up to {high}: the topic was created again, or its log truncated"
