"""Check how a Kafka reader reacts to what the client reports; without a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ClusterMetadata, TopicMetadata  # type: ignore[attr-defined]
from structlog.testing import capture_logs

from receiver_runtime.receivers.kafka.broker_reports import BrokerReports, ClientLog
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.library import Fault, FetchedColumns
from receiver_runtime.receivers.kafka.partition_rates import PartitionRates
from receiver_runtime.receivers.kafka.places import Look, Partition
from receiver_runtime.receivers.kafka.reader import KafkaReader, _settings
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


@pytest.mark.parametrize("most_bytes", [3000, 10**9])
def test_a_rate_per_partition_leaves_nothing_out(tmp_path: Path, most_bytes: int) -> None:
    """Partition 0 has more records than its rate allows, 1 has fewer; another receiver moves a position meanwhile."""
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g", max_rate_per_partition=40)
    receiver = KafkaReceiver(source)
    clock = ManualClock()
    with rig(tmp_path, receiver, start=False) as made:
        reader = KafkaReader(receiver, source)
        # With little room most of what is fetched is dropped and fetched again.
        reader._rates = PartitionRates(40, most_bytes=most_bytes, every=0.05, clock=clock)
        reader._places = Places()  # type: ignore[assignment]
        reader._consumer = Client()  # type: ignore[assignment]
        reader._fetcher = fetcher = EndlessPartitions()  # type: ignore[assignment]
        reader._open_all([KEY, ("t", 1)])
        started = clock.monotonic()
        for turn in range(200):
            if turn == 100:
                made.log.offset_conflicts = 1
                eventually(lambda: _conflicts(reader, clock, fetcher))
                reader._recover()
                # The driver log's positions, as a real one says them.
                for key, partition in reader._partitions.items():
                    partition.position = _position(made.log.chain(1), key)
            reader._pass_waiting()
            reader._read_columns(fetcher)  # type: ignore[arg-type]
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


def _conflicts(reader: KafkaReader, clock: ManualClock, fetcher: EndlessPartitions) -> bool:
    reader._pass_waiting()
    reader._read_columns(fetcher)  # type: ignore[arg-type]
    clock.advance(0.05)
    reader._hand_over.collect()
    return reader._hand_over.has_conflict


def _position(chain: Iterable[NewBlock], key: Key) -> int:
    return max([100, *(link.to_offset for item in chain for link in item.links if link.partition == str(key[1]))])


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
        reader = KafkaReader(receiver, source)
        reader._partitions[KEY] = Partition(0, 100)
        reader._places = places = Places()  # type: ignore[assignment]
        reader._consumer = Client()  # type: ignore[assignment]
        reader._on_partition_error(KEY, KafkaError(KafkaError._AUTO_OFFSET_RESET, said))
        [(_, message, detail)] = made.reporter.events
        assert message == "Kafka says an error, reading goes on from the position"
        assert "Partition log truncation detected" in detail
        assert reader._unsure == {KEY}
        assert places.cuts == [cut]


@pytest.mark.parametrize(
    "code",
    [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED],
)
def test_a_receiver_is_degraded_until_it_has_partitions_of_a_missing_topic(tmp_path: Path, code: int) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics=["t", "u"], group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reader = KafkaReader(receiver, source)
        reader._consumer = client = Client()  # type: ignore[assignment]
        reader._on_partition_error(KEY, KafkaError(code, "not available"))
        assert made.reporter.reasons[-1].startswith("degraded: the ")
        assert "not available" in made.reporter.reasons[-1]
        if code != KafkaError.GROUP_AUTHORIZATION_FAILED:
            reader._on_assign(client, [TopicPartition("u", 0)])  # type: ignore[arg-type]
            assert made.reporter.reasons[-1].startswith("degraded: the topic 't'")
        reader._on_assign(client, [TopicPartition("t", 0)])  # type: ignore[arg-type]
        assert made.reporter.reasons[-1].startswith("connected to")


def test_a_topic_whose_partitions_others_have_is_no_longer_missing(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics=["t", "u"], group="g")
    receiver = KafkaReceiver(source)
    says: dict[str, KafkaError | None] = {}
    asked: list[str] = []

    class Brokers:
        def list_topics(self, topic: str, timeout: float) -> ClusterMetadata:
            asked.append(topic)
            if topic not in says:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            found = TopicMetadata()
            found.error = says[topic]
            answer = ClusterMetadata()
            answer.topics = {topic: found}
            return answer

    def reason(brokers: BrokerReports) -> str:
        brokers._ask_at = 0.0
        brokers.look_for_topics(Brokers())  # type: ignore[arg-type]
        return made.reporter.reasons[-1]

    with rig(tmp_path, receiver, start=False) as made:
        brokers = BrokerReports(receiver, source)
        brokers.look_for_topics(Brokers())  # type: ignore[arg-type]
        assert asked == []
        missing = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        brokers.on_unread_topic("t", missing)
        assert reason(brokers).startswith("degraded: the topic 't'")
        says["t"] = missing
        assert reason(brokers).startswith("degraded: the topic 't'")
        says["t"] = None
        before = len(asked)
        brokers.look_for_topics(Brokers())  # type: ignore[arg-type]
        assert len(asked) == before, "asked again at once"
        assert "the topic 't'" not in reason(brokers)


def test_refused_positions_are_reported_once(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reader = KafkaReader(receiver, source)
        refused = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
        for _ in range(9):
            reader._commits.on_commit(refused, [])
        reader._commits.on_commit(None, [])
        for _ in range(9):
            reader._commits.on_commit(refused, [])
        assert made.reporter.events == []
        for _ in range(9):
            reader._commits.on_commit(refused, [])
        [(_, message, _)] = made.reporter.events
        assert message == "the broker does not take the group's positions"


def test_an_error_of_the_fetching_client_is_reported_like_the_consumers(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g", options={"sasl.username": "somebody"})
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reader = KafkaReader(receiver, source)
        reader._consumer = Client()  # type: ignore[assignment]
        reader._read_columns(Fetcher())  # type: ignore[arg-type]
        assert [message for _, message, _ in made.reporter.events] == ["the Kafka client can't log in"]
        assert "SASL authentication failed" in made.reporter.events[0][2]


def test_repeated_lines_of_the_client_are_logged_once_in_a_while() -> None:
    """The client tries an unavailable broker ten times a second."""
    client_log = ClientLog()
    with capture_logs() as logged:
        for number in range(100):
            client_log.log(3, "Connect to %s failed (after %dms)", "127.0.0.1:9092", number)
        client_log.log(3, "another")
    assert [line["message"] for line in logged] == ["Connect to 127.0.0.1:9092 failed (after 0ms)", "another"]


def test_an_unavailable_broker_is_reported_once_while_others_send_records(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reader = KafkaReader(receiver, source)
        for number in range(10):
            refused = f"a.example:9092/2: Connect failed: Connection refused (after {number}ms in state CONNECT)"
            reader._brokers.on_error(KafkaError(KafkaError._TRANSPORT, refused))
            reader._brokers.note_answer()
        reader._brokers.on_error(KafkaError(KafkaError._TRANSPORT, "b.example:9092/3: Connect failed"))
        reader._brokers.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
        reader._brokers.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "2/2 brokers are down"))
        reader._brokers.note_answer()
        # A topic that lost partitions is no broker's fault.
        reader._brokers.on_error(KafkaError(KafkaError._UNKNOWN_PARTITION, "t [3]: partition is unknown"))
        messages = [message for _, message, _ in made.reporter.events]
        assert messages[:3] == [*2 * ["a Kafka broker is unavailable"], "Kafka can't be reached"]
        assert len(messages) == 5
        assert messages[3].startswith("connected to")
        assert messages[4] == "the Kafka client has an error"


def test_the_client_checks_the_checksums_of_what_it_fetches() -> None:
    """Check that no block holds what the network or a disk of the broker has altered."""
    assert _settings(Kafka(bootstrap_servers="h:1", topics="t", group="g"), "lines")["check.crcs"] is True
