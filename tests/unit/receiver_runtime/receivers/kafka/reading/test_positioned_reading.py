"""Check how partitions are read with positions; without a broker."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, TopicPartition

from receiver_runtime.receivers.kafka.broker_reports import BrokerReports
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.group_commits import GroupCommits
from receiver_runtime.receivers.kafka.library import Fault, FetchedColumns
from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
from receiver_runtime.receivers.kafka.places import Look, Partition
from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
from receiver_runtime.receivers.kafka.reading.positioned_reading import PositionedReading
from receiver_runtime.receivers.kafka.receiver import KafkaReceiver
from receiver_runtime.receivers.kafka.records import BadRecord, Records
from tests.unit.receiver_runtime.receivers.kafka.test_partition_rates import records
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import ManualClock, eventually

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from receiver_runtime.receivers.kafka.partition_key import Key
    from tracker_store.blocks.blocks import NewBlock

KEY = ("t", 0)


class Places:
    """Places of a broker that has every partition, at position 100."""

    def __init__(self) -> None:
        self.cuts: list[int | None] = []

    def look(self, keys: Iterable[Key]) -> Look:
        return Look(dict.fromkeys(keys, 1))

    def open(self, _: Key, __: Look, cut_at: int | None) -> Partition:
        self.cuts.append(cut_at)
        return Partition(0, 100)


class Client:
    """Takes the calls to a consumer."""

    def pause(self, _: object) -> None:
        """Do nothing: no record is fetched here."""

    def incremental_assign(self, _: object) -> None:
        """Do nothing, as above."""

    def position(self, _: object) -> list[TopicPartition]:
        """Return no position."""
        return []

    def consume(self, _: int, __: float) -> list[object]:
        """Return no record."""
        return []


class Fetcher:
    """A fetcher that can't log in, although its consumer still can."""

    def fetch(self, _: int, __: float) -> FetchedColumns:
        refused = Fault("", 0, KafkaError._AUTHENTICATION, "SASL authentication failed")
        return FetchedColumns((), (), (), [refused])


class EndlessPartitions:
    """A fetcher of a topic that has every offset; some records of partition 0 are bad."""

    BAD = range(117, 500, 23)

    def __init__(self) -> None:
        self.assigned: dict[Key, int] = {}

    def read_from(self, positions: Mapping[Key, int]) -> None:
        self.assigned.update(positions)

    def leave(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self.assigned.pop(key, None)

    def fetch(self, _: int, __: float) -> FetchedColumns:
        found: list[Records] = []
        bad: list[BadRecord] = []
        for key, first in self.assigned.items():
            end = self.assigned[key] = first + (60 if key == KEY else 1)
            # Several batches, as of large records.
            for begin in range(first, end, 20):
                offsets = range(begin, min(end, begin + 20))
                good = [offset for offset in offsets if key != KEY or offset not in self.BAD]
                bad += [BadRecord(*key, offset, b"%d" % offset) for offset in offsets if offset not in good]
                found.append(records(*((key[1], offset, 1) for offset in good)))
        return FetchedColumns(found, bad, ())


def reading(
    receiver: KafkaReceiver,
    *,
    places: Places | None = None,
    fetcher: object = None,
    rates: PartitionRates | None = None,
) -> PositionedReading:
    """Return what reads with positions, of a client that has no broker."""
    source = receiver._source
    client = GroupClient(
        cast("Any", Client()),
        cast("Any", fetcher),
        cast("Any", places or Places()),
        BrokerReports(receiver, source),
        GroupCommits(receiver),
    )
    rates = rates or PartitionRates(0, most_bytes=10**9, every=0.05)
    return PositionedReading(receiver, source, client, rates, threading.Event())


@pytest.mark.parametrize("most_bytes", [3000, 10**9])
def test_a_rate_per_partition_leaves_nothing_out(tmp_path: Path, most_bytes: int) -> None:
    """Partition 0 has more records than its rate allows, 1 has fewer; another receiver moves a position meanwhile."""
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g", max_rate_per_partition=40)
    receiver = KafkaReceiver(source)
    clock = ManualClock()
    with rig(tmp_path, receiver, start=False) as made:
        # With little room most of what is fetched is dropped and fetched again.
        rates = PartitionRates(40, most_bytes=most_bytes, every=0.05, clock=clock)
        reader = reading(receiver, fetcher=EndlessPartitions(), rates=rates)
        reader._partitions.open_all([KEY, ("t", 1)])
        started = clock.monotonic()
        for turn in range(200):
            if turn == 100:
                made.log.offset_conflicts = 1
                eventually(lambda: _conflicts(reader, clock))
                reader._recover()
                # The driver log's positions, as a real one says them.
                for key, partition in reader._partitions.read.items():
                    partition.position = _position(made.log.chain(1), key)
            reader._next.pass_waiting()
            reader._fetch()
            clock.advance(0.05)
        reader._hand_over.settle()
        chain = made.log.chain(1)
        for number in (0, 1):
            links = [link for item in chain for link in item.links if link.partition == str(number)]
            assert [link.from_offset for link in links] == [100, *(link.to_offset for link in links)][:-1]
        seconds = clock.monotonic() - started
        assert 0.9 * 40 * seconds <= _position(chain, KEY) - 100 <= 40 * (seconds + 1) + 1
        assert _position(chain, ("t", 1)) - 100 >= 190
        bad = [offset for offset in EndlessPartitions.BAD if offset < _position(chain, KEY)]
        assert sum(item.records for item in chain) == sum(_position(chain, ("t", n)) - 100 for n in (0, 1)) - len(bad)
        # One again after the conflict, and the next one before the records after it.
        letters = [int(data) for _, _, data in made.dead_letters()]
        assert len(bad) > 10
        assert set(bad) <= set(letters)
        assert len(letters) <= len(bad) + 2


def _conflicts(reader: PositionedReading, clock: ManualClock) -> bool:
    reader._next.pass_waiting()
    reader._fetch()
    clock.advance(0.05)
    reader._hand_over.collect()
    return reader._hand_over.has_conflict


def _position(chain: Iterable[NewBlock], key: Key) -> int:
    return max([100, *(link.to_offset for item in chain for link in item.links if link.partition == str(key[1]))])


@pytest.mark.parametrize("callback", ["_on_assign", "_on_revoke", "_on_lost"])
def test_records_of_a_call_in_which_partitions_move_are_dropped_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: str
) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    moved = TopicPartition("t", 1)
    with rig(tmp_path, receiver, start=False):
        reader = reading(receiver)
        reader._partitions.read |= {KEY: Partition(0, 100), ("t", 1): Partition(0, 100)}

        def consume(_: int, __: float) -> list[object]:
            getattr(reader, callback)(reader._consumer, [moved])
            # No message: to look at it would raise.
            return [object()]

        monkeypatch.setattr(reader._consumer, "consume", consume)
        reader._fetch()
        assert reader._partitions.unsure == {KEY}
        assert reader._partitions.positions() == {KEY: 100} | ({("t", 1): 0} if callback == "_on_assign" else {})


@pytest.mark.parametrize(
    ("said", "cut"),
    [
        ("Partition log truncation detected", None),
        ("Partition log truncation detected at offset 100 (leader epoch 3): broker end offset is 60 (offset …", 60),
    ],
)
def test_a_reset_to_an_existing_position_is_reported(tmp_path: Path, said: str, cut: int | None) -> None:
    """Check a log that an unclean election truncated below the position, and that has grown beyond it since."""
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        places = Places()
        reader = reading(receiver, places=places)
        reader._partitions.read[KEY] = Partition(0, 100)
        reader._on_fault(KEY, KafkaError(KafkaError._AUTO_OFFSET_RESET, said))
        [(_, message, detail)] = made.reporter.events
        assert message == "Kafka says an error, reading goes on from the position"
        assert "Partition log truncation detected" in detail
        assert reader._partitions.unsure == {KEY}
        assert places.cuts == [cut]


def test_an_offset_that_is_refused_again_is_tried_after_a_pause(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    refused = KafkaError(KafkaError._AUTO_OFFSET_RESET, "Broker: Offset out of range")
    with rig(tmp_path, receiver, start=False) as made:
        places = Places()
        reader = reading(receiver, places=places)
        reader._partitions.read[KEY] = Partition(0, 100)
        reader._on_fault(KEY, refused)
        assert list(reader._partitions.read) == [KEY]
        reader._on_fault(KEY, refused)
        reader._partitions.open_waiting()
        assert list(reader._partitions.waiting) == [KEY]
        assert len(places.cuts) == 1
        assert made.reporter.reasons[-1].startswith("degraded: t/0 can't be read: Broker: Offset out of")
        assert made.reporter.events[-1][1].startswith("t/0 can't be read now")
        reader._partitions._refused[KEY].not_before = 0.0
        reader._partitions.open_waiting()
        assert list(reader._partitions.read) == [KEY]
        assert not made.reporter.reasons[-1].startswith("degraded")
        # What has moved on since is refused for the first time.
        reader._partitions.read[KEY].position = 101
        reader._on_fault(KEY, refused)
        assert list(reader._partitions.read) == [KEY]


@pytest.mark.parametrize(
    "code",
    [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED],
)
def test_a_receiver_is_degraded_until_it_has_partitions_of_a_missing_topic(tmp_path: Path, code: int) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics=["t", "u"], group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reader = reading(receiver)
        reader._on_fault(KEY, KafkaError(code, "not available"))
        assert made.reporter.reasons[-1].startswith("degraded: the ")
        assert "not available" in made.reporter.reasons[-1]
        if code != KafkaError.GROUP_AUTHORIZATION_FAILED:
            reader._on_assign(reader._consumer, [TopicPartition("u", 0)])
            assert made.reporter.reasons[-1].startswith("degraded: the topic 't'")
        reader._on_assign(reader._consumer, [TopicPartition("t", 0)])
        assert made.reporter.reasons[-1].startswith("connected to")


def test_an_error_of_the_fetching_client_is_reported_like_the_consumers(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g", options={"sasl.username": "somebody"})
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reading(receiver, fetcher=Fetcher())._fetch()
        assert [message for _, message, _ in made.reporter.events] == ["the Kafka client can't log in"]
        assert "SASL authentication failed" in made.reporter.events[0][2]
