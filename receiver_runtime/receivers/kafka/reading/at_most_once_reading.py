"""Read records as they come, without positions: the client commits what it has read, whether or not it is stored."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

from receiver_runtime.receivers.kafka.broker_questions import BROKER_SECONDS
from receiver_runtime.receivers.kafka.reading.fetching import (
    LEAST_MESSAGES,
    LONGEST_FETCH,
    MOST_MESSAGES,
    ends_of,
    good_messages,
)
from receiver_runtime.receivers.kafka.reading.next_records import BYTES_EACH, keep_aside
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


class AtMostOnceReading:
    """Read a group's share; see the module. Only the reader's thread uses it."""

    def __init__(self, receiver: Receiver, source: Kafka, client: GroupClient, stopping: threading.Event) -> None:
        self._receiver = receiver
        self._source = source
        self._client = client
        self._stopping = stopping
        self._unread = KafkaUnread()

    def run(self) -> None:
        """Subscribe, and read until ``stopping`` is set."""
        consumer, supervisor = self._client.consumer, self._receiver.supervisor
        consumer.subscribe(self._source.subscription, on_assign=self._on_assign)
        while not self._stopping.is_set():
            self._client.brokers.look_for_topics(consumer)
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
                    supervisor.block_path.push_buffered(one.batch)
            self._receiver.report_unread(self._find_unread)

    def _on_fault(self, key: Key, error: KafkaError) -> None:
        self._client.brokers.on_fault(key[0], error)

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        positions = assigned
        if isinstance(self._source.start, datetime):
            start = self._client.places.start_unreliably
            positions = [
                one if one.offset >= 0 else TopicPartition(one.topic, one.partition, start((one.topic, one.partition)))
                for one in consumer.committed(assigned, timeout=BROKER_SECONDS)
            ]
        if self._client.is_cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        self._client.brokers.note_assigned({one.topic for one in assigned})
        self._receiver.report_connected(self._source.address)

    def _find_unread(self) -> Mapping[Place, Unread]:
        consumer = self._client.consumer
        there = consumer.position(consumer.assignment())
        positions = {(one.topic, one.partition): one.offset for one in there if one.offset >= 0}
        return self._unread.find(positions, ends_of(consumer, positions), self._client.places.ask_ends)
