"""The real brokers that sources are tested against, one of each per session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.source_rig import make_rig as make_rig  # noqa: PLC0414  a fixture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.brokers.kafka import AnyKafka, KafkaBroker, KafkaCluster

_MOCKED = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def any_kafka(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[AnyKafka]:
    """Start Apache Kafka, or, if it is not available, librdkafka's mock cluster; then the test summary says so."""
    from tests.support.brokers.kafka import KafkaBroker, MockKafka, NoBrokerError, Secure, wanted  # noqa: PLC0415  an extra's

    directory = tmp_path_factory.mktemp("kafka")
    made: AnyKafka | None = None
    why = "FOREBAY_TEST_KAFKA is 'mock'."
    if wanted() != "mock":
        try:
            made = KafkaBroker(directory, secure=Secure.make(directory / "secure"))
        except NoBrokerError as error:
            if wanted():
                raise
            why = str(error)
    if made is None:
        request.config.stash[_MOCKED] = why
        made = MockKafka()
    made.start()
    yield made
    made.kill()


@pytest.fixture
def kafka_broker(any_kafka: AnyKafka) -> KafkaBroker:
    """Return Apache Kafka, or skip the test. A test that kills it must start it again."""
    from tests.support.brokers.kafka import KafkaBroker  # noqa: PLC0415  as above

    if not isinstance(any_kafka, KafkaBroker):
        pytest.skip("librdkafka's mock cluster can't do this: needs Apache Kafka")
    return any_kafka


@pytest.fixture
def kafka_cluster(any_kafka: AnyKafka, tmp_path: Path) -> Iterator[KafkaCluster]:
    """Start three brokers for one test."""
    from tests.support.brokers.kafka import KafkaCluster  # noqa: PLC0415  as above

    if not any_kafka.is_real:
        pytest.skip("librdkafka's mock cluster can't do this: needs Apache Kafka")
    made = KafkaCluster(tmp_path / "kafka")
    try:
        made.start()
        yield made
    finally:
        made.kill()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report that the tests ran on the mock cluster, so that no one believes it was Apache Kafka."""
    why = config.stash.get(_MOCKED, None)
    if why is not None:
        terminalreporter.section("Kafka")
        terminalreporter.line(f"NOT on Apache Kafka, but on librdkafka's mock cluster, and in part only: {why}")
