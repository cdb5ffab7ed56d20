"""What a reader of Kafka does with what the client says; no broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("confluent_kafka")

from confluent_kafka import KafkaError

from receiver_runtime.receivers.kafka import KafkaReceiver
from receiver_runtime.receivers.kafka_reader import KafkaReader, _Partition
from receiver_runtime.sources.kafka import Kafka
from tests.unit.receiver_runtime.rig import rig

if TYPE_CHECKING:
    from pathlib import Path

KEY = ("t", 0)


def test_a_reset_whose_position_is_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a log that an unclean election cut before it, and that has grown past it since."""
    source = Kafka(bootstrap_servers="127.0.0.1:1", topics="t", group="g")
    receiver = KafkaReceiver(source)
    with rig(tmp_path, receiver, start=False) as made:
        reader = KafkaReader(receiver, source)
        reader._partitions[KEY] = _Partition(0, 100)
        monkeypatch.setattr(reader, "_open", lambda *_: _Partition(0, 100))
        reader._on_partition_error(KEY, KafkaError(KafkaError._AUTO_OFFSET_RESET, "Partition log truncation detected"))
        [(_, message, detail)] = made.reporter.events
        assert message == "Kafka says an error, reading goes on from the position"
        assert "Partition log truncation detected" in detail
        assert reader._unsure == {KEY}
