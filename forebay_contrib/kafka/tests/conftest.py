"""Apache Kafka for the tests of its sink, one node for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.brokers.kafka import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start Apache Kafka, which ends transactions at their time limit at once."""
    made = KafkaBroker(
        tmp_path_factory.mktemp("kafka"),
        settings={"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200},
    )
    made.start()
    yield made
    made.kill()
