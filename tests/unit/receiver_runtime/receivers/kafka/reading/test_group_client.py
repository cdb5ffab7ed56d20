"""Check the settings of the client that reads as a member of a group."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka")

from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.receivers.kafka.reading.group_client import _settings


def test_the_client_checks_the_checksums_of_what_it_fetches() -> None:
    """Check that no block holds what the network or a disk of the broker has altered."""
    assert _settings(Kafka(bootstrap_servers="h:1", topics="t", group="g"), "lines")["check.crcs"] is True
