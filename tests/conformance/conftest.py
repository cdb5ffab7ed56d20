"""What sources are tested against: their real brokers, one of each for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.source_rig import SourceRig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from receiver_runtime.sources.base import Source
    from tests.kafka_broker import AnyKafka, KafkaBroker, KafkaCluster

_MOCKED = pytest.StashKey[str]()


@pytest.fixture(scope="session")
def any_kafka(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[AnyKafka]:
    """Apache Kafka itself; where it is not to be had, librdkafka's mock cluster, and the summary says so."""
    from tests.kafka_broker import KafkaBroker, MockKafka, NoBrokerError, Secure, wanted  # noqa: PLC0415  an extra's

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
    """Apache Kafka itself, or the test is skipped; one that kills it starts it again."""
    from tests.kafka_broker import KafkaBroker  # noqa: PLC0415  as above

    if not isinstance(any_kafka, KafkaBroker):
        pytest.skip("librdkafka's mock cluster can't do this: needs Apache Kafka")
    return any_kafka


@pytest.fixture
def kafka_cluster(any_kafka: AnyKafka, tmp_path: Path) -> Iterator[KafkaCluster]:
    """Three brokers of a test's own."""
    from tests.kafka_broker import KafkaCluster  # noqa: PLC0415  as above

    if not any_kafka.is_real:
        pytest.skip("librdkafka's mock cluster can't do this: needs Apache Kafka")
    made = KafkaCluster(tmp_path / "kafka")
    try:
        made.start()
        yield made
    finally:
        made.kill()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Nobody is to believe that it was Apache Kafka."""
    why = config.stash.get(_MOCKED, None)
    if why is not None:
        terminalreporter.section("Kafka")
        terminalreporter.line(f"NOT on Apache Kafka, but on librdkafka's mock cluster, and in part only: {why}")


@pytest.fixture
def make_rig(database_url: str, tmp_path: Path) -> Iterator[Callable[..., SourceRig]]:
    """Makes a stream of a source, with its receivers; of the arguments that `SourceRig.make` takes."""
    made: list[SourceRig] = []

    def make(source: Source, **settings: Any) -> SourceRig:  # noqa: ANN401  of the stream
        rig = SourceRig.make(database_url, tmp_path / f"rig-{len(made)}", source, stream=f"s{len(made)}", **settings)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.close()
        print(rig.logs()[-6000:])  # noqa: T201  shown where the test fails
