"""Read records as they come: the client commits what it has read, whether or not it is stored.

The client also reads on at the group's positions by itself. Where it can't, the partition waits until
``group_positions`` has decided where to go on; the others are read meanwhile (``assigned_partitions``).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

from receiver_runtime.receivers.kafka.broker_reports import RESET
from receiver_runtime.receivers.kafka.reading.assigned_partitions import AssignedPartitions
from receiver_runtime.receivers.kafka.reading.fetching import (
    LEAST_MESSAGES,
    LONGEST_FETCH,
    MOST_MESSAGES,
    ends_of,
)
from receiver_runtime.receivers.kafka.reading.group_positions import GroupPositions
from receiver_runtime.receivers.kafka.reading.next_records import BYTES_EACH, keep_aside
from receiver_runtime.receivers.kafka.records import records_of
from receiver_runtime.receivers.kafka.unread import KafkaUnread

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from confluent_kafka import Consumer, KafkaError, Message

    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place, Unread

_LOOK_SECONDS = 30.0  # between two looks at topics' ids


class AtMostOnceReading:
    """Read a group's share; see the module. Only the reader's thread uses it."""

    def __init__(self, receiver: Receiver, source: Kafka, client: GroupClient, stopping: threading.Event) -> None:
        self._receiver = receiver
        self._source = source
        self._client = client
        self._stopping = stopping
        self._unread = KafkaUnread()
        self._group_positions = GroupPositions(receiver, source, client)
        # Only those that wait; what is opened is the client's again.
        self._partitions = AssignedPartitions(
            receiver, client.places, stopping, self._unread.forget, self._group_positions.open
        )
        self._look_at = 0.0

    def run(self) -> None:
        """Subscribe, and read until ``stopping`` is set."""
        consumer = self._client.consumer
        consumer.subscribe(self._source.subscription, on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self._stopping.is_set():
            self._client.brokers.look_for_topics(consumer)
            self._partitions.ask_if_due()
            self._read_opened()
            self._look()
            self._fetch()
            if self._client.commits.is_due:
                self._commit_refused()
            self._receiver.report_unread(self._find_unread)

    def _fetch(self) -> None:
        supervisor = self._receiver.supervisor
        settings = supervisor.settings
        most = max(LEAST_MESSAGES, min(MOST_MESSAGES, int(settings.max_block_bytes / BYTES_EACH)))
        messages = self._client.consumer.consume(
            supervisor.block_path.piece(most, 0), min(settings.block_interval, LONGEST_FETCH)
        )
        good = [one for one in messages if one.error() is None]
        if good:
            self._client.brokers.note_answer()
            found, bad = records_of(good)
            # Before they are handed over: a group that loses its positions later has left a gap.
            self._group_positions.note_read(
                {(run.topic, run.partition) for one in found for run in one.runs}
                | {(one.topic, one.partition) for one in bad}
            )
            keep_aside(self._receiver, bad)
            for one in found:
                self._unread.note_read(one)
                supervisor.block_path.push_buffered(one.batch)
        if len(good) < len(messages):
            self._take_faults([(one, error) for one in messages if (error := one.error()) is not None])

    def _take_faults(self, faults: Sequence[tuple[Message, KafkaError]]) -> None:
        """Take what the client returned in place of records, when the records before it are handed over."""
        assigned, following = self._assigned(), self._next()
        for message, error in faults:
            key = (str(message.topic()), int(message.partition() or 0))
            if error.code() != RESET:
                self._client.brokers.on_fault(key[0], error)
            elif key in assigned and key not in self._partitions.waiting:
                # The client does not say the offset if the group has none, or if the log was truncated.
                at = message.offset()
                at = following.get(key) if at is None else at
                self._partitions.lose(key, at, error, at)

    def _read_opened(self) -> None:
        """Have the client read what was opened, from there. A seek would not do: after an error it can't seek."""
        opened = {key: one.position for key, one in self._partitions.read.items()}
        if not opened:
            return
        self._partitions.read.clear()
        self._partitions.unsure.clear()
        consumer = self._client.consumer
        positions = [TopicPartition(*key, at) for key, at in opened.items()]
        if self._client.is_cooperative:
            consumer.incremental_unassign(positions)
            consumer.incremental_assign(positions)
        else:
            # Others without a position have returned no record yet, and begin at the group's. Those that wait are left
            # out: the client may be able to read them by now, and what it read would come again.
            there = {(one.topic, one.partition): one.offset for one in consumer.position(consumer.assignment())}
            now = {key: at for key, at in (there | opened).items() if key not in self._partitions.waiting}
            consumer.assign([TopicPartition(*key, at) for key, at in now.items()])
        # The client commits only what it has read: without this, the next start would begin elsewhere.
        for key in opened:
            self._client.commits.forget(key)
        self._client.commits.commit(consumer, opened)

    def _commit_refused(self) -> None:
        """Commit again where the brokers refused a position; where a record came since then, behind the last one."""
        if refused := self._client.commits.take_registered(self._assigned()):
            following = self._next()
            self._client.commits.commit(
                self._client.consumer, {key: following.get(key, at) for key, at in refused.items()}
            )

    def _look(self) -> None:
        """Look now and then for topics that were created again so quickly that the client noticed nothing."""
        if time.monotonic() < self._look_at or self._client.brokers.are_unreachable:
            return
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._group_positions.look({topic for topic, _ in self._assigned()})

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        if self._client.is_cooperative:
            consumer.incremental_assign(assigned)
        else:
            consumer.assign(assigned)
        # What was refused when they were last ours may be behind what another member has committed.
        for one in assigned:
            self._client.commits.forget((one.topic, one.partition))
        self._look_at = 0.0
        self._client.brokers.note_assigned({one.topic for one in assigned})
        self._receiver.report_connected(self._source.address)

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._commit_refused()
        self._partitions.forget((one.topic, one.partition) for one in revoked)

    def _assigned(self) -> set[Key]:
        return {(one.topic, one.partition) for one in self._client.consumer.assignment()}

    def _next(self) -> dict[Key, int]:
        """Return the next offset of each partition of which a record came since it was assigned."""
        there = self._client.consumer.position(self._client.consumer.assignment())
        return {(one.topic, one.partition): one.offset for one in there if one.offset >= 0}

    def _find_unread(self) -> Mapping[Place, Unread]:
        positions = self._next()
        return self._unread.find(positions, ends_of(self._client.consumer, positions), self._client.places.ask_ends)
