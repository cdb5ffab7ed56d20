"""Kafka in the conformance suite, on Apache Kafka, or on the client's mock cluster if that is not available.

``make kafka``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.sources import SourceConformance
from tests.conformance.kafka_source import KafkaTopic

if TYPE_CHECKING:
    from tests.support.brokers.kafka import AnyKafka


# In seconds. The mock cluster is slow to complete each change of a group.
@pytest.mark.timeout(300)
@pytest.mark.kafka
class TestKafka(SourceConformance):
    """Exactly once."""

    reports_unread = True

    @pytest.fixture
    def adapter(self, any_kafka: AnyKafka) -> KafkaTopic:
        return KafkaTopic(any_kafka)
