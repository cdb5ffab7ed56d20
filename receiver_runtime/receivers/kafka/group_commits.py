"""Commit the group's positions to the broker, and again what it refuses.

With positions in the driver log this is only for monitoring, and nothing relies on it. At most once, the client commits
what it reads, and this module what was opened. It owns what was committed, and what is to be. It must never move a
position of the driver log.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import OffsetLink

_COMMIT_SECONDS = 1.0  # between two commits of positions to the broker
# More consecutive refused commits than a rebalance can explain.
_REFUSALS = 10


class GroupCommits:
    """Hold the group's positions. Only the reader's thread uses it; the client calls back on this thread."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._registered: dict[Key, int] = {}
        self._committed_at = 0.0
        self._committed: dict[Key, int] = {}
        self._refusals = 0

    @property
    def is_due(self) -> bool:
        """Return whether it is time to commit."""
        return time.monotonic() - self._committed_at >= _COMMIT_SECONDS

    def note_registered(self, links: Sequence[OffsetLink]) -> None:
        """Note positions that the driver log has."""
        for link in links:
            # Other facts about a topic are kept as links too (`places`); they are not positions.
            if link.partition.isdecimal():
                self._registered[link.source, int(link.partition)] = link.to_offset

    def take_registered(self, partitions: Container[Key]) -> dict[Key, int]:
        """Return what was registered, or refused, of these partitions since the last call."""
        self._committed_at = time.monotonic()
        ends = {key: offset for key, offset in self._registered.items() if key in partitions}
        self._registered = {}
        return ends

    def commit(self, consumer: Consumer, ends: dict[Key, int]) -> None:
        """Commit the positions that are not committed yet."""
        offsets = [TopicPartition(*key, offset) for key, offset in ends.items() if offset != self._committed.get(key)]
        if not offsets:
            return
        self._committed |= ends
        try:
            # Asynchronous, because a callback calls this too, and must not make a call that waits (see the reader's
            # `_on_assign`). The client waits for the commit before it gives up partitions.
            consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            self.on_commit(error.args[0], offsets)

    def forget(self, key: Key) -> None:
        """Forget a partition that is another member's now."""
        self._committed.pop(key, None)
        self._registered.pop(key, None)

    def on_commit(self, error: KafkaError | None, positions: Sequence[TopicPartition]) -> None:
        """Note the broker's answer to a commit. If it refuses only some positions, these alone have the error."""
        refused = [one for one in positions if error is not None or one.error is not None]
        error = error or next((one.error for one in refused), None)
        if error is None:
            self._refusals = 0
            return
        for one in refused:
            # Commit it again, unless there is a newer position.
            self._committed.pop((one.topic, one.partition), None)
            if one.offset >= 0:
                self._registered.setdefault((one.topic, one.partition), one.offset)
        if error.code() != KafkaError._NO_OFFSET:  # noqa: SLF001  librdkafka's own name for it
            self._refusals += 1
            if self._refusals == _REFUSALS:
                self._receiver.report_error("the broker does not take the group's positions", KafkaException(error))
