"""Run the suite of sinks on Apache Kafka.

A committed record can't be taken back. So the suite's reader follows the tokens, as a reader may when batches are
published again; `test_exactly_once.py` has the reader that does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from forebay.testing.sinks import SinkConformance
from forebay_contrib.kafka.tests.kafka_target import KafkaTarget
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from forebay.testing.sinks import Frames
    from tests.support.brokers.kafka import KafkaBroker

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class TestKafkaSink(SinkConformance):
    @pytest.fixture
    def target(self, broker: KafkaBroker) -> KafkaTarget:
        return KafkaTarget(broker.address, on_replay="publish")

    @pytest.fixture
    def spark(self, session: SparkSession) -> SparkSession:
        return session

    @pytest.fixture
    def frames(self) -> Frames:
        return lambda rows, schema: cast(
            "DataFrame", FrameWithoutSpark(list(rows[::2]), list(rows[1::2]), schema=schema)
        )
