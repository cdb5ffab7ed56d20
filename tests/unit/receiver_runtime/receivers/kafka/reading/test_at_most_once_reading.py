"""Check how partitions whose positions only the brokers have are read; without a broker."""

from __future__ import annotations

import math
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from receiver_runtime.receivers.kafka.broker_reports import RESET, BrokerReports
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.group_commits import GroupCommits
from receiver_runtime.receivers.kafka.places import Look, Partition
from receiver_runtime.receivers.kafka.reading import assigned_partitions
from receiver_runtime.receivers.kafka.reading.at_most_once_reading import AtMostOnceReading
from receiver_runtime.receivers.kafka.reading.group_client import GroupClient
from receiver_runtime.receivers.kafka.reading.group_positions import GroupPositions
from receiver_runtime.receivers.kafka.receiver import KafkaReceiver
from tests.unit.receiver_runtime.rig import rig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from receiver_runtime.receivers.kafka.partition_key import Key

SILENT = 3  # the partition that can't be asked about


class Client:
    """A consumer that has partitions 0 to 4; ``done`` is what it was asked to do with them."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages
        self.done: list[tuple[str, list[tuple[int, int]]]] = []

    def subscribe(self, _: list[str], **__: object) -> None:
        """Do nothing: the partitions are there."""

    def consume(self, _: int, __: float) -> list[Message]:
        found, self.messages = self.messages, []
        return found

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("t", number) for number in range(5)]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return what came last of partitions 1 and 4, and nothing of the others."""
        return [TopicPartition("t", one.partition, {1: 7, 4: 9}.get(one.partition, -1001)) for one in partitions]

    def _note(self, what: str, partitions: Iterable[TopicPartition]) -> None:
        self.done.append((what, [(one.partition, one.offset) for one in partitions]))

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self._note("unassign", partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._note("assign", partitions)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._note("assign all", partitions)

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self._note("commit", offsets)


class Places:
    """Places at which the leader of partition 2 is unknown, and that of ``SILENT`` does not answer."""

    beginning = SimpleNamespace(record=lambda: True)

    def look(self, keys: Iterable[Key]) -> Look:
        return Look({key: KafkaError(KafkaError.LEADER_NOT_AVAILABLE) if key[1] == 2 else 1 + key[1] for key in keys})


def record(partition: int, offset: int) -> Message:
    return Message(topic="t", partition=partition, offset=offset, value=b"x", timestamp=(0, 0))


def reset(topic: str, partition: int, offset: int | None = None) -> Message:
    given: dict[str, Any] = {} if offset is None else {"offset": offset}
    return Message(topic=topic, partition=partition, error=KafkaError(RESET, "out of range"), **given)


class Reading(AtMostOnceReading):
    """Reads from ``Client``; ``opened`` is what was asked, and ``stored`` how many records were stored before.

    ``noted`` has the partitions that were noted as read, each with how many records were stored before.
    """

    client: Client
    opened: list[tuple[int, int | None]]
    stored: int
    noted: dict[int, int]


@pytest.fixture(params=[True, False], ids=["cooperative", "eager"])
def reading(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g", guarantee="at_most_once")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        client = Client([])
        group = GroupClient(
            cast("Any", client),
            None,
            cast("Any", Places()),
            BrokerReports(receiver, source),
            GroupCommits(receiver),
            request.param,
        )

        def opened(_: object, key: Key, __: Look, at: int | None) -> Partition:
            if key[1] == SILENT:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            found.opened.append((key[1], at))
            return Partition(0, 16)

        def store(batch: Any) -> None:  # noqa: ANN401  a batch of Arrow
            found.stored += batch.num_rows

        def note_read(_: object, keys: Iterable[Key]) -> None:
            for _topic, number in keys:
                found.noted.setdefault(number, found.stored)

        monkeypatch.setattr(GroupPositions, "open", opened)
        monkeypatch.setattr(GroupPositions, "note_read", note_read)
        monkeypatch.setattr(made.supervisor.block_path, "push_buffered", store)
        found = Reading(receiver, source, group, threading.Event())
        found.client, found.opened, found.stored, found.noted = client, [], 0, {}
        yield found


def test_partitions_that_the_client_can_t_continue_are_opened_apart(reading: Reading) -> None:
    reading.client.messages = [
        reset("t", SILENT, 5),
        reset("t", 2),
        record(0, 2),
        reset("t", 0, 3),
        record(1, 6),
        reset("t", 1),
    ]
    reading._fetch()
    assert reading.stored == 2
    reading._partitions.ask_if_due()
    reading._read_opened()
    # Of partition 1 the client says no offset, as of a truncated log.
    assert reading.opened == [(0, 3), (1, 7)]
    opened = [(0, 16), (1, 16)]
    if reading._client.is_cooperative:
        assert reading.client.done == [("unassign", opened), ("assign", opened), ("commit", opened)]
    else:
        # Those that wait are not the client's to read.
        assert reading.client.done == [("assign all", [*opened, (4, 9)]), ("commit", opened)]
    assert reading._partitions.waiting == {("t", SILENT): 5, ("t", 2): None}
    # Another reset of one that waits moves nothing.
    reading.client.messages = [reset("t", SILENT)]
    reading._fetch()
    assert reading._partitions.waiting["t", SILENT] == 5
    reading._on_revoke(reading.client, [TopicPartition("t", SILENT), TopicPartition("t", 2)])  # type: ignore[arg-type]
    assert reading._partitions.waiting == {}


def test_a_partition_is_noted_as_read_before_its_first_record_is_stored(reading: Reading) -> None:
    """Whatever happens to it after that: another member may get it before the next look, or its topic may go."""
    reading.client.messages = [record(0, 2), record(3, 6)]
    reading._fetch()
    assert (reading.noted, reading.stored) == ({0: 0, 3: 0}, 2)


def test_an_offset_that_is_refused_again_is_tried_after_a_pause_that_grows(reading: Reading) -> None:
    def refuse(at: int) -> float:
        """Return for how long it is not tried again."""
        reading.client.messages = [reset("t", 0, at)]
        reading._fetch()
        began = time.monotonic()
        reading._partitions.ask_if_due()
        reading._read_opened()
        return reading._partitions._refused["t", 0].not_before - began if reading._partitions.waiting else 0.0

    def end_pause() -> None:
        reading._partitions._refused["t", 0].not_before = 0.0
        reading._partitions.open_waiting()
        reading._read_opened()

    assert refuse(16) == 0.0
    pauses: list[float] = []
    for _ in range(7):
        pauses.append(refuse(16))
        assert list(reading._partitions.waiting) == [("t", 0)]
        end_pause()
    assert pauses == sorted(pauses)
    assert 0.8 < pauses[0] < 1.1
    assert 50 < pauses[-1] <= 60
    # Where it comes from another offset, it goes on at once, and so it does for the next owner's first one.
    assert refuse(17) == 0.0
    assert len(reading.opened) == 9
    reading._on_revoke(reading.client, [TopicPartition("t", 0)])  # type: ignore[arg-type]
    assert refuse(17) == 0.0


@pytest.mark.parametrize("is_revoked", [False, True])
def test_the_position_of_an_opened_partition_is_committed_again_if_it_is_refused(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, *, is_revoked: bool
) -> None:
    """The client commits none before a record comes, and does not repeat a commit that a rebalance refused."""
    reading.client.messages = [reset("t", 0, 3), reset("t", 1, 3)]
    reading._fetch()
    reading._partitions.ask_if_due()
    reading._read_opened()
    opened = [TopicPartition("t", 0, 16), TopicPartition("t", 1, 16)]
    reading._client.commits.on_commit(KafkaError(KafkaError.REBALANCE_IN_PROGRESS), opened)
    reading.client.done.clear()
    if is_revoked:
        reading._on_revoke(reading.client, opened)  # type: ignore[arg-type]
    else:
        reading._look_at = math.inf
        monkeypatch.setattr(reading._receiver, "report_unread", lambda _: reading._stopping.set())
        reading.run()
    # A record of partition 1 has come since then.
    assert reading.client.done == [("commit", [(0, 16), (1, 7)])]
    # Another member may have committed more in the meantime.
    reading._client.commits.on_commit(KafkaError(KafkaError.UNKNOWN_MEMBER_ID), opened)
    reading._on_assign(reading.client, opened)  # type: ignore[arg-type]
    reading.client.done.clear()
    reading._commit_refused()
    assert reading.client.done == []


def test_others_are_read_while_many_partitions_are_opened(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assigned_partitions, "_OPEN_SECONDS", -1.0)
    reading.client.messages = [reset("t", 0, 3), reset("t", 1, 3)]
    reading._fetch()
    reading._partitions.ask_if_due()
    reading._read_opened()
    assert reading.opened == [(0, 3)]
    reading._partitions.ask_if_due()
    assert reading.opened == [(0, 3), (1, 3)]


def test_a_reset_of_a_partition_that_is_another_s_is_ignored(reading: Reading) -> None:
    reading.client.messages = [reset("t", 9, 5), reset("u", 0)]
    reading._fetch()
    assert reading._partitions.waiting == {}
