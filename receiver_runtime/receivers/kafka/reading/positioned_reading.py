"""Read a consumer group's share of partitions into blocks, with their positions.

Only the driver log decides how far a partition was read. A position here is the driver log's position, plus what was
handed over since. A block is registered only if the log's position is exactly where the block's records begin. So no
record that is read here can be left out or stored twice, even if another receiver believes that it owns the partition.

- *Assigned*: before a partition is read, its position is read from the driver log, or its origin is recorded there.
- *Revoked or lost*: wait for what was handed over, and drop what was read and not handed over. The next owner continues
  from the driver log. Positions are committed to the broker afterwards, only for monitoring.
- *Conflict*: another receiver has moved a partition's position (this one was thought dead). All blocks in flight are
  dropped, and all positions are read from the driver log again.
- If partitions were assigned or revoked during a call to the client, everything that this call returned is dropped and
  read again: it may have been read before the change (``fetching``).
- *Out of range*: the next offset is not on the broker. ``places`` decides where to continue. The links that record this
  go in with the next block, and the event is reported at once.
- *Late*: a partition that has used up its rate (``next_records``).
- *Waiting*: a partition of which the brokers can't say where to begin (``assigned_partitions``).
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from receiver_runtime.receivers.kafka.broker_reports import RESET
from receiver_runtime.receivers.kafka.reading.assigned_partitions import AssignedPartitions
from receiver_runtime.receivers.kafka.reading.fetching import (
    LEAST_MESSAGES,
    LONGEST_FETCH,
    ColumnFetching,
    ObjectFetching,
)
from receiver_runtime.receivers.kafka.reading.next_records import NextRecords
from receiver_runtime.receivers.kafka.unread import KafkaUnread
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from confluent_kafka import Consumer

    from receiver_runtime.receivers.kafka.declaration import Kafka
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
    from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place, Unread

_IDS_SECONDS = 30.0  # between two looks at topics' ids and the group's members
# In librdkafka's message: the offset up to which the broker's log is still the one that was read.
_CUT = re.compile(r"log truncation detected .*broker end offset is (\d+)")


class PositionedReading:
    """Read partitions; see the module. Only the reader's thread uses it; the client calls back on this thread."""

    def __init__(
        self, receiver: Receiver, source: Kafka, client: GroupClient, rates: PartitionRates, stopping: threading.Event
    ) -> None:
        self._receiver = receiver
        self._source = source
        self._stopping = stopping
        self._consumer = client.consumer
        self._places = client.places
        self._brokers = client.brokers
        self._commits = client.commits
        self._is_cooperative = client.is_cooperative
        self._rates = rates
        self._unread = KafkaUnread()
        self._hand_over = LinkedHandOver(receiver, self._commits.note_registered)
        self._partitions = AssignedPartitions(receiver, client.places, stopping, self._on_unread)
        self._fetching: ObjectFetching | ColumnFetching
        self._count_fetched = None
        if (fetcher := client.fetcher) is None:
            self._fetching = ObjectFetching(
                client.consumer, self._partitions, rates, self._on_fault, cooperative=client.is_cooperative
            )
        else:
            self._fetching = ColumnFetching(client.consumer, fetcher, self._partitions, client.brokers, self._on_fault)
            self._count_fetched = lambda: fetcher.fetched + rates.waiting
        self._next = NextRecords(receiver, self._partitions, rates, self._hand_over, self._unread, self._fetching.leave)
        self._strangers: set[str] = set()
        self._ids_at = time.monotonic() + _IDS_SECONDS

    def run(self) -> None:
        """Subscribe, and read until ``stopping`` is set."""
        self._consumer.subscribe(
            self._source.subscription, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        while not self._stopping.is_set():
            self._hand_over.collect()
            if self._hand_over.has_conflict:
                self._recover()
            self._next.pass_waiting()
            self._partitions.ask_if_due()
            if time.monotonic() >= self._ids_at:
                self._check_ids()
            self._brokers.look_for_topics(self._consumer)
            self._fetch()
            self._commit()
            self._receiver.report_unread(self._find_unread, self._count_fetched)

    def _fetch(self) -> None:
        settings = self._receiver.supervisor.settings
        most = max(LEAST_MESSAGES, min(self._fetching.most, int(settings.max_block_bytes / self._next.bytes_each)))
        found, bad = self._fetching.fetch(
            self._receiver.supervisor.block_path.piece(most, 0),
            min(settings.block_interval, LONGEST_FETCH, self._rates.pause),
        )
        if found or bad:
            self._brokers.note_answer()
            self._next.take(found, bad)

    def _on_fault(self, key: Key, error: KafkaError) -> None:
        """Take what the client returned in place of a record."""
        if error.code() == RESET and key in self._partitions.read:
            self._hand_over.settle()
            cut = _CUT.search(error.str())
            self._partitions.lose(key, self._partitions.read[key].position, error, int(cut[1]) if cut else None)
            self._fetching.leave([key])
            self._partitions.open_waiting()
            opened = self._partitions.read.get(key)
            if opened is not None and not opened.links:
                # The position exists again, but the log may have been truncated before it and have grown since: the
                # records from there on may be others.
                self._receiver.report_error(
                    "Kafka says an error, reading goes on from the position", KafkaException(error)
                )
        else:
            self._brokers.on_fault(key[0], error)

    def _recover(self) -> None:
        """Recover from a conflict: drop the blocks in flight, and read the positions from the driver log."""
        self._hand_over.recover()
        keys = list(self._partitions.read)
        self._fetching.leave(keys)
        self._partitions.open_all(keys)

    def _check_ids(self) -> None:
        """Check for changes that neither the group nor the client reports.

        A topic may be deleted and created again so quickly that neither notices: the client reads on in the new one.
        And another stream may use the same group; then each stream gets only a part of the partitions.
        """
        self._ids_at = time.monotonic() + _IDS_SECONDS
        if self._brokers.are_unreachable:
            return
        if recreated := self._places.made_anew(list(self._partitions.read)):
            self._hand_over.settle()
            self._fetching.leave(recreated)
            self._partitions.open_all(recreated)
        strangers = self._places.strangers()
        if strangers - self._strangers:
            self._receiver.report_error(
                f"the group {self._source.group} has members that are not this stream's receivers "
                f"({', '.join(sorted(strangers))}): what they are given does not come here. Give each stream a group "
                "of its own"
            )
        self._strangers = strangers

    # -- partitions that come and go (called back within `consume` and `close`) --------------------------------------

    def _on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        self._fetching.note_moved()
        # They are opened after this callback. A consumer that is queried within its callback, with a call that waits,
        # ends the process at the next callback of the same call (`CallState_get`).
        for one in assigned:
            self._partitions.wait_for((one.topic, one.partition))
        self._partitions.ask_soon()
        # The position does not matter: they are paused.
        positions = [TopicPartition(one.topic, one.partition, 0) for one in assigned]
        if self._is_cooperative:
            consumer.incremental_assign(positions)
        else:
            consumer.assign(positions)
        consumer.pause(positions)
        self._brokers.note_assigned({one.topic for one in assigned})
        self._receiver.report_connected(f"{self._source.address}, {len(self._partitions)} partitions")

    def _on_revoke(self, _: Consumer, revoked: list[TopicPartition]) -> None:
        self._hand_over.settle()
        self._commit(now=True)
        self._forget(revoked)

    def _on_lost(self, _: Consumer, lost: list[TopicPartition]) -> None:
        self._hand_over.settle()
        self._forget(lost)
        self._receiver.report_error(f"the group gave {len(lost)} partitions to others without asking us")

    def _forget(self, gone: list[TopicPartition]) -> None:
        keys = [(one.topic, one.partition) for one in gone]
        self._fetching.note_moved()
        self._fetching.forget(keys)
        self._partitions.forget(keys)
        for key in keys:
            self._commits.forget(key)

    def _on_unread(self, key: Key) -> None:
        self._rates.forget(key)
        self._unread.forget(key)

    # -- what the driver log and the brokers have --------------------------------------------------------------------

    def _commit(self, *, now: bool = False) -> None:
        """Commit to the broker what is registered, if it is time to, or ``now``."""
        if not (now or self._commits.is_due):
            return
        ends = self._commits.take_registered(self._partitions.read)
        if self._hand_over.is_idle and not self._hand_over.has_conflict:
            # Only markers of transactions lie between: commit past them, so that the group's lag can reach zero.
            read = self._partitions.read
            ends |= {key: offset for key, offset in self._passed().items() if offset > read[key].position}
        self._commits.commit(self._consumer, ends)

    def _passed(self) -> dict[Key, int]:
        """Return how far the client has read, if that is known; it has read more of a late partition than passed."""
        unsure, late = self._partitions.unsure, self._rates.late
        return self._fetching.passed([key for key in self._partitions.read if key not in unsure and key not in late])

    def _find_unread(self) -> Mapping[Place, Unread]:
        passed = self._passed()
        positions = {key: max(one.position, passed.get(key, 0)) for key, one in self._partitions.read.items()}
        return self._unread.find(positions, self._fetching.ends(positions), self._places.ask_ends)
