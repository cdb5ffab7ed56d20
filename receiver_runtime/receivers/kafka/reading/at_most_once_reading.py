"""Read records as they come: the client commits what it has read, whether or not it is stored.

A partition waits, paused, until the brokers say where to read on: ``places`` compares the group's position with what
is there, and reports what is left out. So does one whose next record is gone while it is read.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import KafkaException, TopicPartition

from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS
from receiver_runtime.receivers.kafka.broker_reports import RESET
from receiver_runtime.receivers.kafka.reading.fetching import (
    LEAST_MESSAGES,
    LONGEST_FETCH,
    MOST_MESSAGES,
    ends_of,
    good_messages,
)
from receiver_runtime.receivers.kafka.reading.next_records import BYTES_EACH, ends_of_runs, keep_aside
from receiver_runtime.receivers.kafka.records import records_of
from receiver_runtime.receivers.kafka.unread import KafkaUnread

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from confluent_kafka import Consumer, KafkaError

    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place, Unread

_log = structlog.get_logger(__name__)

_ASK_SECONDS = 1.0  # between two questions where to read on


class AtMostOnceReading:
    """Read a group's share; see the module. Only the reader's thread uses it."""

    def __init__(self, receiver: Receiver, source: Kafka, client: GroupClient, stopping: threading.Event) -> None:
        self._receiver = receiver
        self._source = source
        self._client = client
        self._stopping = stopping
        self._unread = KafkaUnread()
        # The partitions that wait, with the next offset; None: the group's position is asked for.
        self._waiting: dict[Key, int | None] = {}
        self._ask_at = 0.0
        # The next offset of each partition that was read. The client's own position is not that of its last assignment.
        self._next: dict[Key, int] = {}

    def run(self) -> None:
        """Subscribe, and read until ``stopping`` is set."""
        consumer, supervisor = self._client.consumer, self._receiver.supervisor
        consumer.subscribe(self._source.subscription, on_assign=self._on_assign)
        while not self._stopping.is_set():
            self._client.brokers.look_for_topics(consumer)
            self._open_waiting(consumer)
            settings = supervisor.settings
            most = max(LEAST_MESSAGES, min(MOST_MESSAGES, int(settings.max_block_bytes / BYTES_EACH)))
            messages = consumer.consume(
                supervisor.block_path.piece(most, 0), min(settings.block_interval, LONGEST_FETCH)
            )
            good = good_messages(messages, self._on_fault)
            if good:
                self._client.brokers.note_answer()
                found, bad = records_of(good)
                keep_aside(self._receiver, bad)
                for one in found:
                    self._unread.note_read(one)
                    self._next |= ends_of_runs(one)
                    supervisor.block_path.push_buffered(one.batch)
            self._receiver.report_unread(self._find_unread)

    def _on_fault(self, key: Key, error: KafkaError) -> None:
        if error.code() == RESET:
            self._waiting[key] = self._next[key]
            self._ask_at = 0.0
        else:
            self._client.brokers.on_fault(key[0], error)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        # They are opened after this callback: the client can't be asked within it. The position does not matter.
        self._waiting |= dict.fromkeys((one.topic, one.partition) for one in assigned)
        self._ask_at = 0.0
        positions = [TopicPartition(one.topic, one.partition, 0) for one in assigned]
        if self._client.is_cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        consumer.pause(positions)
        self._client.brokers.note_assigned({one.topic for one in assigned})
        self._receiver.report_connected(self._source.address)

    def _open_waiting(self, consumer: Consumer) -> None:
        """Ask the brokers where to read on in the partitions that wait, if it is time to, and read there."""
        if not self._waiting or time.monotonic() < self._ask_at:
            return
        there = {(one.topic, one.partition) for one in consumer.assignment()}
        self._waiting = {key: at for key, at in self._waiting.items() if key in there}
        unknown = [TopicPartition(*key) for key, at in self._waiting.items() if at is None]
        found: dict[Key, int] = {}
        try:
            committed = consumer.committed(unknown, timeout=BROKER_SECONDS) if unknown else []
            # One without an answer waits on.
            silent = {(one.topic, one.partition) for one in committed if one.error is not None}
            self._waiting |= {(one.topic, one.partition): one.offset for one in committed if one.offset >= 0}
            for key, at in self._waiting.items():
                if key not in silent:
                    found[key] = self._client.places.open_at_most_once(key, at)
        except KafkaException as error:
            _log.info("the brokers don't say where to read on, they are asked again", error=str(error))
        self._ask_at = time.monotonic() + _ASK_SECONDS
        if found:
            self._read_from(consumer, found)

    def _read_from(self, consumer: Consumer, found: Mapping[Key, int]) -> None:
        """Read partitions from these offsets. A seek would not do: after an error a partition can't seek."""
        self._next |= found
        for key in found:
            del self._waiting[key]
        positions = [TopicPartition(*key, at) for key, at in found.items()]
        if self._client.is_cooperative:
            consumer.incremental_unassign(positions)
            consumer.incremental_assign(positions)
        else:
            everything = [(one.topic, one.partition) for one in consumer.assignment()]
            consumer.assign([TopicPartition(*key, self._next.get(key, 0)) for key in everything])
            consumer.pause([TopicPartition(*key) for key in self._waiting])
        # They were paused.
        consumer.resume(positions)

    def _find_unread(self) -> Mapping[Place, Unread]:
        consumer = self._client.consumer
        there = {(one.topic, one.partition) for one in consumer.assignment()}
        positions = {key: at for key, at in self._next.items() if key in there and key not in self._waiting}
        return self._unread.find(positions, ends_of(consumer, positions), self._client.places.ask_ends)
