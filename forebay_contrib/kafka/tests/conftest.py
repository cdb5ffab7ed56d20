"""Apache Kafka for the tests of its sink, one node for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.brokers.kafka import KafkaBroker, NoBrokerError, jars, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Start Apache Kafka, which ends transactions at their time limit at once. A mock can't: it has no transactions."""
    if wanted() == "mock":
        pytest.skip("needs Apache Kafka, and FOREBAY_TEST_KAFKA is 'mock'")
    try:
        jars()
    except NoBrokerError as error:
        if wanted():
            raise
        pytest.skip(str(error))
    made = KafkaBroker(
        tmp_path_factory.mktemp("kafka"),
        settings={
            "log.cleaner.backoff.ms": 100,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
        },
    )
    made.start()
    yield made
    made.kill()
