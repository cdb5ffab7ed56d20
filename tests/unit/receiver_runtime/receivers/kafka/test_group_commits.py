"""Check what a receiver reports of the positions that its group commits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError

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
