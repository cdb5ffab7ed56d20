"""Check where a group goes on whose positions only the brokers have, and what is reported; without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from receiver_runtime.receivers.kafka import places as of_places
from receiver_runtime.receivers.kafka.places import Look, OutOfRangeError
from receiver_runtime.receivers.kafka.reading.group_positions import GroupPositions
from tests.unit.receiver_runtime.receivers.kafka.test_places import KEY, Consumer, Places
from tests.unit.receiver_runtime.receivers.kafka.test_places import places as places  # noqa: PLC0414  a fixture

LOOK = Look({KEY: 1})


def group(places: Places, *, committed: object = None, **changes: object) -> GroupPositions:
    """Return the positions of another start of the group, which has committed this."""
    found = TopicPartition(*KEY) if committed is None else committed
    client = SimpleNamespace(places=places, consumer=SimpleNamespace(committed=lambda *_, **__: [found]))
    source = places._source = places._source.model_copy(update=changes)
    return GroupPositions(places._receiver, source, cast("Any", client))


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_places, "_LOOK_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("at", "low", "out_of_range", "goes_on", "said"),
    [
        (10, 16, "earliest", 16, "offsets 10 up to 16, 6 of them, are gone unread"),
        (10, 16, "latest", 100, "offsets 10 up to 100, 90 of them, are gone unread"),
        (200, 16, "earliest", 16, "offset 200 is next, the broker has 16 up to 100"),
        (200, 16, "latest", 100, "offset 200 is next, the broker has 16 up to 100"),
        (None, 16, "earliest", 16, "has no position, although the stream has read here, and begins at offset 16"),
        (50, 16, "earliest", 50, "Kafka refused offset 50, which it has"),
    ],
)
def test_what_a_group_leaves_out_is_reported(
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    at: int | None,
    low: int,
    out_of_range: str,
    goes_on: int,
    said: str,
) -> None:
    first = group(places)
    assert first.open(KEY, LOOK, None).position == 0
    assert places.said == []
    monkeypatch.setattr(Consumer, "low", low)
    again = group(places, out_of_range=out_of_range)
    assert again.open(KEY, LOOK, at).position == goes_on
    [found] = places.said
    assert said in found


def test_a_truncated_log_is_no_lost_position(places: Places) -> None:
    """The client says no offset then, and it may have read nothing yet."""
    group(places).note_read([KEY])
    assert group(places, committed=TopicPartition(*KEY, 50)).open(KEY, LOOK, None).position == 50
    [said] = places.said
    assert "Kafka refused offset 50, which it has" in said


def test_a_group_that_does_not_say_its_position_has_not_lost_it(places: Places) -> None:
    group(places).note_read([KEY])
    silent = SimpleNamespace(error=KafkaError(KafkaError._TIMED_OUT), offset=-1001)
    with pytest.raises(KafkaException):
        group(places, committed=silent).open(KEY, LOOK, None)
    assert places.said == []


@pytest.mark.parametrize("low", [0, 16])
def test_a_group_whose_partition_was_never_read_has_lost_nothing(
    places: Places, monkeypatch: pytest.MonkeyPatch, low: int
) -> None:
    monkeypatch.setattr(Consumer, "low", low)
    assert group(places).open(KEY, LOOK, None).position == low
    assert places.said == []


@pytest.mark.parametrize(("out_of_range", "goes_on"), [("earliest", 6), ("latest", 100)])
def test_what_is_gone_of_a_partition_that_was_added_later_is_reported(
    places: Places, monkeypatch: pytest.MonkeyPatch, out_of_range: str, goes_on: int
) -> None:
    """Also if the group had its own positions when the stream began, and opened no partition."""
    group(places).look({"t"})
    now = SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: None, 1: None}, error=None)})
    monkeypatch.setattr(Consumer, "list_topics", lambda *_, **__: now)
    monkeypatch.setattr(Consumer, "low", 6)
    added = group(places, start="latest", out_of_range=out_of_range)
    assert added.open(("t", 1), LOOK, None).position == goes_on
    [said] = places.said
    assert f"t/1: offset 0 is next, the broker has 6 up to 100: offsets 0 up to {goes_on}, {goes_on} of them" in said


def test_a_position_that_the_group_had_from_elsewhere_is_lost_too(places: Places) -> None:
    group(places).note_read([KEY])
    group(places).open(KEY, LOOK, None)
    [said] = places.said
    assert "t/0: the group 'g' has no position" in said


@pytest.mark.parametrize(("at", "low"), [(10, 16), (200, 0)])
def test_a_position_out_of_range_may_stop_the_receiver(
    places: Places, monkeypatch: pytest.MonkeyPatch, at: int, low: int
) -> None:
    monkeypatch.setattr(Consumer, "low", low)
    with pytest.raises(OutOfRangeError, match=f"offset {at} is next"):
        group(places, out_of_range="stop").open(KEY, LOOK, at)


def test_an_end_that_goes_back_for_a_moment_moves_no_position(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    ends = [100, 100, 250]
    monkeypatch.setattr(Consumer, "get_watermark_offsets", lambda *_, **__: (0, ends.pop(0)))
    assert group(places).open(KEY, LOOK, 200).position == 200


def test_a_topic_that_was_created_again_is_reported_once(places: Places) -> None:
    first, other = group(places), group(places)
    # A broker's metadata may be out of date.
    places.ids = [1, 1, 2, 2, 1, 2]
    for _ in range(3):
        first.look({"t"})
        other.look({"t"})
    [said] = places.said
    assert said.startswith("t: the topic was created again")
