"""Know which topics and partitions existed when the stream began.

Partitions that were added later are read from their offset 0, whatever ``start`` says: what is gone of them is a gap.
The driver log has the numbers beside the positions. This module owns their format; it must never say where a partition
that existed begins.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException

from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS, metadata_of

if TYPE_CHECKING:
    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.receivers.kafka.partition_key import Key

_log = structlog.get_logger(__name__)


# The name of a pseudo-partition; no real partition has such a name.
_BEGINNING: Final = "partitions at the beginning"


class StreamBeginning:
    """Hold how many partitions each topic had. Only the reader's thread uses it."""

    def __init__(self, source: Kafka, consumer: Consumer, path: BlockPath) -> None:
        self._source = source
        self._consumer = consumer
        self._path = path
        self._begun = False
        self._partitions_at_beginning: dict[str, int] = {}

    def record(self) -> bool:
        """Record once which topics and partitions exist, before any is read; return whether that is done.

        Any matching topic that did not exist then counts as created later. With ``start="earliest"`` nothing is
        skipped: the first partition that is opened records it, and an unavailable broker delays nothing.
        """
        return self._source.start == "earliest" or self._is_recorded()

    def _is_recorded(self) -> bool:
        if not self._begun:
            try:
                self._begun = self._begin_topics() if self._source.pattern is None else self._begin_pattern()
            except KafkaException as error:
                _log.info("the brokers can't say what topics there are, they are asked again", error=str(error))
        return self._begun

    def is_later(self, key: Key) -> bool:
        """Return whether a partition was added after the stream began.

        Raises KafkaException if the brokers can't say.
        """
        topic, number = key
        if topic not in self._partitions_at_beginning:
            if self._source.pattern is None:
                self._note_beginning(topic, self._count(topic))
            elif self._is_recorded():
                # All topics that existed are recorded: if this one is not among them, it was created later.
                self._note_beginning(topic, 0)
            else:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name for it
        return number >= self._partitions_at_beginning[topic]

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
        if _BEGINNING not in self._path.positions.all_of(subscription):
            for topic, said in seen.items():
                if wanted.fullmatch(topic):
                    self._note_beginning(topic, len(said.partitions))
            self._path.positions.open_partition(subscription, _BEGINNING, 0)
        return True

    def _note_beginning(self, topic: str, count: int) -> None:
        at = self._path.positions.open_partition(topic, _BEGINNING, count)
        self._partitions_at_beginning[topic] = at.offset

    def _count(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 if it does not exist yet."""
        said = metadata_of(self._consumer, topic)
        if said.error is not None and said.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(said.error)
        return len(said.partitions)
