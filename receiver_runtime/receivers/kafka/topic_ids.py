"""Know with which topic id each partition is read: a topic that was deleted and created again has another one.

The driver log has the ids beside the positions. This module owns which ids are past, and when a new one is believed. It
must never move a position.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError, KafkaException

from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS, QUICK_SECONDS, BrokerQuestions
from tracker_store.blocks.blocks import ORIGIN, OffsetLink
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.block_path import BlockPath
    from receiver_runtime.receivers.kafka.partition_key import Key
    from tracker_store.blocks.blocks import Position


# Another topic id is believed when it was seen this many times, this many seconds apart: a broker's metadata may lag
# for a moment.
_LOOKS = 3
_LOOK_SECONDS = 0.5
# The name of a pseudo-partition begins with it; no real partition has such a name.
_TOPIC_ID: Final = "topic id of "


class TopicIds:
    """Hold the ids of open partitions. Only the reader's thread uses it."""

    def __init__(self, brokers: BrokerQuestions, path: BlockPath) -> None:
        self._brokers = brokers
        self._path = path
        # The topic id with which each open partition is read.
        self._ids: dict[Key, int] = {}
        self._past_ids: dict[str, set[int]] = {}

    def compare(self, key: Key, now: int | None) -> tuple[Position | None, int | None]:
        """Return the id with which the partition was read, and the topic's id now.

        Both are None if the broker has no ids or does not answer, or if its answer is not confirmed.
        """
        topic, number = key
        if now is None:
            return None, None
        before = self._ids.get(key)
        read_by = self._path.positions.open_partition(topic, f"{_TOPIC_ID}{number}", now)
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

    def made_anew(self, keys: Sequence[Key]) -> list[Key]:
        """Return those open partitions whose topic is, or may be, another one of the same name by now."""
        now = self._brokers.topic_ids({topic for topic, _ in keys}, QUICK_SECONDS)
        now = {topic: found for topic, found in now.items() if found not in self._past_ids.get(topic, ())}
        return [key for key in keys if key[0] in now and now[key[0]] != self._ids.get(key)]

    def _is_confirmed(self, topic: str, topic_id: int) -> bool:
        for _ in range(_LOOKS - 1):
            time.sleep(_LOOK_SECONDS)
            again = self._brokers.topic_ids({topic}, BROKER_SECONDS).get(topic)
            if again is None:
                # Raise, so that the partition is not read from the position in the meantime.
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name for it
            if again != topic_id:
                return False
        return True


def new_id_link(key: Key, read_by: Position, now: int) -> OffsetLink:
    """Return the link that records another topic id for a partition."""
    topic, number = key
    return OffsetLink(topic, f"{_TOPIC_ID}{number}", read_by.generation + 1, ORIGIN, now, LinkKind.ORIGIN)
