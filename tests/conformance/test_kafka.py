"""Kafka by the conformance suite, on Apache Kafka itself. ``make kafka``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.kafka_source import KafkaTopic
from tests.conformance.suite import ConformanceSuite

if TYPE_CHECKING:
    from tests.kafka_broker import KafkaBroker


@pytest.mark.kafka
class TestKafka(ConformanceSuite):
    """Exactly once."""

    @pytest.fixture
    def adapter(self, kafka_broker: KafkaBroker) -> KafkaTopic:
        return KafkaTopic(kafka_broker)
