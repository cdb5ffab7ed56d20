"""Check where a partition is read from, depending on the topic id that brokers report; without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from receiver_runtime.receivers.kafka import topic_ids
from receiver_runtime.receivers.kafka.broker_questions import BrokerQuestions
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.places import KafkaPlaces, Look
from receiver_runtime.receivers.kafka.receiver import KafkaReceiver
from tests.unit.receiver_runtime.rig import rig
from tracker_store.blocks.blocks import Position
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = ("t", 0)
TOPIC_ID = "topic id of 0"


class Consumer:
    """A consumer whose broker has offsets 0 to 100."""

    low = 0

    def get_watermark_offsets(self, _: object, *, timeout: float) -> tuple[int, int]:
        assert timeout
        return self.low, 100

    def list_topics(self, topic: str, *, timeout: float) -> SimpleNamespace:
        """Return a topic of one partition."""
        assert timeout
        return SimpleNamespace(topics={topic: SimpleNamespace(partitions={0: None}, error=None)})


class Places(KafkaPlaces):
    """Places with a dict as the driver log, and brokers that report the ids of the test."""

    ids: list[int]
    log: dict[str, Position]
    said: list[str]

    def next_ids(self) -> dict[str, int]:
        return {"t": self.ids.pop(0) if len(self.ids) > 1 else self.ids[0]}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """Give places at which offset 10 is next, read under the topic's id 1."""
    monkeypatch.setattr(topic_ids, "_LOOK_SECONDS", 0.0)
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        found = Places(receiver, source, Consumer(), {})  # type: ignore[arg-type]
        found.log = {"0": Position(0, 10), TOPIC_ID: Position(0, 1)}
        found.ids = [1]
        found.said = []
        monkeypatch.setattr(receiver, "report_error", found.said.append)
        monkeypatch.setattr(BrokerQuestions, "topic_ids", lambda *_: found.next_ids())
        monkeypatch.setattr(
            made.supervisor.block_path,
            "positions",
            SimpleNamespace(
                all_of=lambda _: found.log,
                open_partition=lambda _, partition, start: found.log.setdefault(partition, Position(0, start)),
            ),
        )
        yield found


def opened(places: Places) -> tuple[int, int]:
    """Return the partition's generation and position that follow from what the brokers report now."""
    found = places.open(KEY, Look({KEY: 1}, places.next_ids()))
    return found.generation, found.position


@pytest.mark.parametrize(("at_beginning", "is_gap"), [(0, True), (1, False), (None, False)])
def test_what_is_gone_of_a_partition_that_was_added_later_is_a_gap(
    places: Places, monkeypatch: pytest.MonkeyPatch, at_beginning: int | None, is_gap: bool
) -> None:
    """With start="earliest" too: what was gone before the stream began is none. None: it begins now."""
    monkeypatch.setattr(Consumer, "low", 6)
    del places.log["0"]
    if at_beginning is not None:
        places.log["partitions at the beginning"] = Position(0, at_beginning)
    found = places.open(KEY, Look({KEY: 1}, places.next_ids()))
    assert (found.generation, found.position) == (0, 6)
    assert [link.kind for link in found.links] == [LinkKind.LOST] * is_gap
    assert places.log["0"] == Position(0, 0 if is_gap else 6)
    assert bool(places.said) is is_gap
    assert all("offsets 0 up to 6, 6 of them, are gone unread" in one for one in places.said)


def test_another_id_begins_the_next_generation(places: Places) -> None:
    assert opened(places) == (0, 10)
    places.ids = [2]
    assert places.made_anew([KEY]) == [KEY]
    assert opened(places) == (1, 0)
    assert places.made_anew([KEY]) == []


def test_partitions_that_the_new_topic_lacks_are_reported(places: Places) -> None:
    places.log |= {"2": Position(0, 4), "topic id of 2": Position(0, 1)}
    assert opened(places) == (0, 10)
    assert places.said == []
    places.ids = [2]
    opened(places)
    _, lacking = places.said
    assert lacking.startswith("t/2: offset 4 is next, the topic was created again with 1 partitions, without this one")
    assert "(a gap of unknown size)" in lacking


def test_an_id_that_is_not_confirmed_is_ignored(places: Places) -> None:
    places.ids = [2, 1]
    assert opened(places) == (0, 10)


def test_an_outdated_broker_does_not_bring_the_old_topic_back(places: Places) -> None:
    places.ids = [2]
    assert opened(places) == (1, 0)
    places.log = {"0": Position(1, 5), TOPIC_ID: Position(1, 2)}
    places.ids = [1]
    assert places.made_anew([KEY]) == []
    assert opened(places) == (1, 5)


def test_a_position_stored_by_another_receiver_overrules_an_outdated_broker(places: Places) -> None:
    assert opened(places) == (0, 10)
    places.log = {"0": Position(1, 5), TOPIC_ID: Position(1, 2)}
    assert opened(places) == (1, 5)
    places.ids = [2]
    assert places.made_anew([KEY]) == [KEY]
    assert opened(places) == (1, 5)
    places.ids = [1]
    assert places.made_anew([KEY]) == []


def test_a_broker_without_topic_ids_is_read_as_before(places: Places) -> None:
    found = places.open(KEY, Look({KEY: 1}, {}))
    assert (found.generation, found.position, found.links) == (0, 10, [])
