"""Fetch the records of assigned partitions from their positions: by the group's consumer as objects, or as columns.

Both classes have the same methods, and call ``on_fault`` within ``fetch`` with what the client returns in place of a
record. This module must never move a position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaError, Message, TopicPartition

from receiver_runtime.receivers.kafka.records import records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from confluent_kafka import Consumer

    from receiver_runtime.receivers.kafka.broker_reports import BrokerReports
    from receiver_runtime.receivers.kafka.library import ColumnFetcher
    from receiver_runtime.receivers.kafka.partition_key import Key
    from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
    from receiver_runtime.receivers.kafka.reading.assigned_partitions import AssignedPartitions
    from receiver_runtime.receivers.kafka.records import BadRecord, Records

    #: Called with a partition, and the client's error about it.
    OnFault = Callable[[Key, KafkaError], None]
    Fetched = tuple[Sequence[Records], Sequence[BadRecord]]

#: Messages, at most, of one fetch as objects; each takes a few hundred bytes of memory besides its data.
MOST_MESSAGES = 20_000
# Messages, at most, of one fetch as columns: many, because each block is synced.
_MOST_AT_ONCE = 50_000
#: Messages of a fetch, at least.
LEAST_MESSAGES = 100
#: Seconds, the longest fetch: short, so that the group's coordinator hears from us in time and a stop is quick.
LONGEST_FETCH = 1.0


def good_messages(messages: Iterable[Message], on_fault: OnFault) -> list[Message]:
    """Return the messages that are records."""
    good: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            good.append(message)
        else:
            on_fault((str(message.topic()), int(message.partition() or 0)), error)
    return good


class ObjectFetching:
    """Fetch by the group's consumer. If partitions come or go during a fetch, what it returned is read again.

    ``cooperative``: partitions are assigned incrementally; the opposite is an eager assignment of all at once.
    """

    most = MOST_MESSAGES

    def __init__(
        self,
        consumer: Consumer,
        partitions: AssignedPartitions,
        rates: PartitionRates,
        on_fault: OnFault,
        *,
        cooperative: bool,
    ) -> None:
        self._consumer = consumer
        self._partitions = partitions
        self._rates = rates
        self._on_fault = on_fault
        self._cooperative = cooperative
        self._moved = False

    def note_moved(self) -> None:
        """Note that partitions came or went."""
        self._moved = True

    def leave(self, keys: Iterable[Key]) -> None:
        """Stop fetching these partitions until they are read from a position."""
        self._consumer.pause([TopicPartition(*key) for key in keys])

    def forget(self, keys: Iterable[Key]) -> None:
        """Do nothing: the client itself has let them go."""

    def fetch(self, most: int, seconds: float) -> Fetched:
        """Return what comes until there are ``most`` records, or ``seconds`` are over."""
        self._reposition()
        self._moved = False
        messages = self._consumer.consume(most, seconds)
        if self._moved:
            # Read again the messages of partitions that are still assigned.
            self._partitions.unsure.update(self._partitions.read.keys() - self._rates.late)
            return (), ()
        good = good_messages(messages, self._on_fault)
        return records_of(good) if good else ((), ())

    def passed(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return how far the client has read, if that is known: past transaction markers, which are no records."""
        found = self._consumer.position([TopicPartition(*key) for key in keys]) if keys else ()
        return {(one.topic, one.partition): one.offset for one in found if one.error is None and one.offset >= 0}

    def ends(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the high watermarks that came with what was fetched."""
        return ends_of(self._consumer, keys)

    def _reposition(self) -> None:
        """Have partitions read from their positions; the client drops the records of them that it holds.

        A seek would not do: after an error a partition is not being fetched, and can't seek.
        """
        if not self._partitions.unsure:
            return
        unsure = sorted(self._partitions.unsure)
        if self._cooperative:
            read = self._partitions.read
            self._consumer.incremental_unassign([TopicPartition(*key) for key in unsure])
            self._consumer.incremental_assign([TopicPartition(*key, read[key].position) for key in unsure])
        else:
            positions = self._partitions.positions()
            self._consumer.assign([TopicPartition(*key, position) for key, position in positions.items()])
            self._consumer.pause([TopicPartition(*key) for key in (*self._partitions.waiting, *self._rates.late)])
        # Partitions that waited were paused.
        self._consumer.resume([TopicPartition(*key) for key in unsure])
        self._partitions.unsure.clear()


class ColumnFetching:
    """Fetch by a client that is in no group, while the group's consumer is paused and fetches nothing.

    So partitions come and go only between two fetches.
    """

    most = _MOST_AT_ONCE

    def __init__(
        self,
        consumer: Consumer,
        fetcher: ColumnFetcher,
        partitions: AssignedPartitions,
        brokers: BrokerReports,
        on_fault: OnFault,
    ) -> None:
        self._consumer = consumer
        self._fetcher = fetcher
        self._partitions = partitions
        self._brokers = brokers
        self._on_fault = on_fault

    def note_moved(self) -> None:
        """Do nothing: what a fetch returns was fetched after it."""

    def leave(self, keys: Sequence[Key]) -> None:
        """Stop fetching these partitions until they are read from a position."""
        self._fetcher.leave(keys)

    def forget(self, keys: Sequence[Key]) -> None:
        """Stop fetching partitions that are another member's now."""
        self._fetcher.leave(keys)

    def fetch(self, most: int, seconds: float) -> Fetched:
        """Return what comes until there are ``most`` records, or ``seconds`` are over."""
        # Partitions come and go only in this call. Its records, fetched before it was paused, are dropped here: the
        # fetcher reads them.
        good_messages(self._consumer.consume(LEAST_MESSAGES, 0), self._on_fault)
        if self._partitions.unsure:
            self._fetcher.read_from(
                {key: self._partitions.read[key].position for key in sorted(self._partitions.unsure)}
            )
            self._partitions.unsure.clear()
        fetched = self._fetcher.fetch(most, seconds)
        for error in fetched.errors:
            self._brokers.on_error(KafkaError(error.code, error.message))
        for fault in fetched.faults:
            self._on_fault((fault.topic, fault.partition), KafkaError(fault.code, fault.message))
        return fetched.records, fetched.bad

    def passed(self, keys: Sequence[Key]) -> dict[Key, int]:
        """Return how far the client has read, if that is known: past transaction markers, which are no records."""
        return self._fetcher.passed(keys)

    def ends(self, keys: Iterable[Key]) -> dict[Key, int]:
        """Return the high watermarks that came with what was fetched."""
        return self._fetcher.ends(keys)


def ends_of(consumer: Consumer, keys: Iterable[Key]) -> dict[Key, int]:
    """Return the high watermarks that a consumer's fetches brought. Asks no broker."""
    found: dict[Key, int] = {}
    for key in keys:
        _, high = consumer.get_watermark_offsets(TopicPartition(*key), cached=True)
        if high >= 0:
            found[key] = high
    return found
