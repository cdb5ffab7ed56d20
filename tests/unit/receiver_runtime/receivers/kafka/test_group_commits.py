"""Check what a receiver reports of the positions that its group commits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError, KafkaException

from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.group_commits import GroupCommits
from receiver_runtime.receivers.kafka.receiver import KafkaReceiver
from tests.unit.receiver_runtime.rig import rig

if TYPE_CHECKING:
    from pathlib import Path


def test_refused_positions_are_reported_once(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        commits = GroupCommits(receiver)
        refused = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
        for _ in range(9):
            commits.on_commit(refused, [])
        commits.on_commit(None, [])
        for _ in range(9):
            commits.on_commit(refused, [])
        assert made.reporter.events == []
        for _ in range(9):
            commits.on_commit(refused, [])
        [(_, message, _)] = made.reporter.events
        assert message == "the broker does not take the group's positions"


def test_what_is_refused_is_to_be_committed_again_and_nothing_else(tmp_path: Path) -> None:
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    def refuse(**_: object) -> None:
        raise KafkaException(refused)

    with rig(tmp_path, receiver, start=False) as made:
        commits = GroupCommits(receiver)
        for _ in range(9):
            # If a broker takes some of the positions, the client says no error of the whole commit.
            some: list[Any] = [
                SimpleNamespace(topic="t", partition=0, offset=5, error=refused),
                SimpleNamespace(topic="t", partition=1, offset=6, error=None),
            ]
            commits.on_commit(None, some)
            assert commits.take_registered({("t", 0), ("t", 1)}) == {("t", 0): 5}
        assert made.reporter.events == []
        commits.commit(cast("Any", SimpleNamespace(commit=refuse)), {("t", 0): 5})
        assert commits.take_registered({("t", 0)}) == {("t", 0): 5}
        [(_, message, _)] = made.reporter.events
        assert message == "the broker does not take the group's positions"
