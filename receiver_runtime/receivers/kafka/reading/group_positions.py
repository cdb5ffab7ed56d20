"""Decide where a group goes on whose positions only the brokers have, and report what that leaves out.

The client reads on at the group's positions by itself. It asks here only if the group has none, or if it can't go on
there. The driver log remembers which partitions such a group has read, and with which topic ids. This module must never
fetch, and never move a position that is good.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import KafkaException, TopicPartition

from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS, QUICK_SECONDS
from receiver_runtime.receivers.kafka.places import Partition, ends_before

if TYPE_CHECKING:
    from collections.abc import Collection

    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.places import Look
    from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
    from receiver_runtime.supervisor.receiver import Receiver

_log = structlog.get_logger(__name__)

# The names of pseudo-partitions begin with these; no real partition has such a name.
_READ: Final = "read by the group: "
_READ_ID: Final = "topic id, read by the group: "


class GroupPositions:
    """Hold what is known of the group's positions; see the module. Only the reader's thread uses it."""

    def __init__(self, receiver: Receiver, source: Kafka, client: GroupClient) -> None:
        self._receiver = receiver
        self._source = source
        self._places = client.places
        self._consumer = client.consumer
        self._recorded = receiver.supervisor.block_path.positions
        # What the driver log remembers already.
        self._read: set[Key] = set()
        self._ids: dict[str, int] = {}

    def open(self, key: Key, _: Look, at: int | None) -> Partition:
        """Return a partition with the position to continue from.

        Args:
            at: the next offset, from which the client can't continue; None: it read nothing since it has the partition.

        Raises:
            OutOfRangeError: the next record is not on the broker, and the source says to stop then.
        """
        topic, number = key
        low, high = self._places.range_of(key)
        if at is None and (at := self._committed(key)) is None:
            at = self._places.beginning_of(key, low, high)
            if f"{_READ}{number}" in self._recorded.all_of(topic):
                at = max(at, low)
                self._receiver.report_error(
                    f"{topic}/{number}: the group {self._source.group!r} has no position, although the stream has read "
                    f"here, and begins at offset {at}: what was not read before that is lost (a gap of unknown size), "
                    "and what was read from there on comes again"
                )
        else:
            if at > high:
                low, high = self._places.look_again(key, at)
            if low <= at <= high:
                self._receiver.report_error(
                    f"{topic}/{number}: Kafka refused offset {at}, which it has, and reading goes on there. If the log "
                    "was truncated, new records before that offset are not read (a gap of unknown size)"
                )
        if at < low:
            at = self._places.pass_lost(key, at, low, high)
        elif at > high:
            where = f"{topic}/{number}: offset {at} is next, {ends_before(low, high)}"
            self._places.refuse_to_go_on(where)
            at = self._places.out_of_range(low, high)
            self._receiver.report_error(f"{where}; reading goes on at offset {at} (a gap of unknown size)")
        # From now on a group without a position leaves a gap.
        self.note_read([key])
        return Partition(0, at)

    def _committed(self, key: Key) -> int | None:
        [found] = self._consumer.committed([TopicPartition(*key)], timeout=BROKER_SECONDS)
        if found.error is not None:
            raise KafkaException(found.error)
        return found.offset if found.offset >= 0 else None

    def note_read(self, keys: Collection[Key]) -> None:
        """Remember that the group has read partitions."""
        for topic, number in set(keys) - self._read:
            self._recorded.open_partition(topic, f"{_READ}{number}", 0)
        self._read.update(keys)

    def look(self, topics: Collection[str]) -> None:
        """Record the beginning of topics that are read, and report those that were created again, each once."""
        try:
            for topic in topics:
                self._places.beginning.is_later((topic, 0))
        except KafkaException as error:
            _log.info("the brokers don't say what partitions there are, they are asked again", error=str(error))
        for topic, now in self._places.brokers.topic_ids(topics, QUICK_SECONDS).items():
            if self._ids.get(topic) == now:
                continue
            # All ids that the topic had: a broker whose metadata is out of date says no new one.
            known = {name for name in self._recorded.all_of(topic) if name.startswith(_READ_ID)}
            name = f"{_READ_ID}{now}"
            if known and name not in known:
                self._receiver.report_error(
                    f"{topic}: the topic was created again. What the one before had and was not read is lost, and so "
                    "is what the new one has before the group's positions (a gap of unknown size)"
                )
            self._recorded.open_partition(topic, name, 0)
            self._ids[topic] = now
