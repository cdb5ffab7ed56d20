"""Where a partition is read from, by what brokers say of a topic's id; no broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from receiver_runtime.receivers.kafka import places as kafka_places
from receiver_runtime.receivers.kafka.places import KafkaPlaces, Look
from receiver_runtime.receivers.kafka.receiver import KafkaReceiver
from receiver_runtime.sources.kafka import Kafka
from tests.unit.receiver_runtime.rig import rig
from tracker_store.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = ("t", 0)
TOPIC_ID = "topic id of 0"


class Consumer:
    """Of a broker that has offsets 0 up to 100."""

    def get_watermark_offsets(self, _: object, *, timeout: float) -> tuple[int, int]:
        assert timeout
        return 0, 100


class Places(KafkaPlaces):
    """The driver log is a dict, and the brokers say what the test has them say."""

    ids: list[int]
    log: dict[str, Position]

    def _ask_ids(self, topics: object, seconds: float) -> dict[str, int]:
        assert topics
        assert seconds
        return {"t": self.ids.pop(0) if len(self.ids) > 1 else self.ids[0]}


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """Offset 10 is next, read by the topic's id 1."""
    monkeypatch.setattr(kafka_places, "_LOOK_SECONDS", 0.0)
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        found = Places(receiver, source, Consumer(), {})  # type: ignore[arg-type]
        found.log = {"0": Position(0, 10), TOPIC_ID: Position(0, 1)}
        found.ids = [1]
        monkeypatch.setattr(
            made.supervisor.block_path,
            "_positions",
            SimpleNamespace(
                open_partition=lambda _, partition, start: found.log.setdefault(partition, Position(0, start))
            ),
        )
        yield found


def opened(places: Places) -> tuple[int, int]:
    """The partition's generation and position, by what the brokers say now."""
    found = places.open(KEY, Look({KEY: 1}, places._ask_ids({"t"}, 1.0)))
    return found.generation, found.position


def test_another_id_begins_the_next_generation(places: Places) -> None:
    assert opened(places) == (0, 10)
    places.ids = [2]
    assert places.made_anew([KEY]) == [KEY]
    assert opened(places) == (1, 0)
    assert places.made_anew([KEY]) == []


def test_an_id_that_a_broker_takes_back_is_not_believed(places: Places) -> None:
    places.ids = [2, 1]
    assert opened(places) == (0, 10)


def test_a_broker_that_has_not_heard_of_the_new_topic_does_not_bring_the_old_one_back(places: Places) -> None:
    places.ids = [2]
    assert opened(places) == (1, 0)
    places.log = {"0": Position(1, 5), TOPIC_ID: Position(1, 2)}
    places.ids = [1]
    assert places.made_anew([KEY]) == []
    assert opened(places) == (1, 5)


def test_one_that_has_not_heard_of_it_is_refuted_by_what_another_receiver_has_put_down(places: Places) -> None:
    assert opened(places) == (0, 10)
    places.log = {"0": Position(1, 5), TOPIC_ID: Position(1, 2)}
    assert opened(places) == (1, 5)
    places.ids = [2]
    assert places.made_anew([KEY]) == [KEY]
    assert opened(places) == (1, 5)
    places.ids = [1]
    assert places.made_anew([KEY]) == []


def test_a_broker_without_ids_is_read_as_before(places: Places) -> None:
    found = places.open(KEY, Look({KEY: 1}, {}))
    assert (found.generation, found.position, found.links) == (0, 10, [])
