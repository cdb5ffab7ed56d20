"""What sources are tested against: their real brokers, one of each for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.source_rig import SourceRig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from receiver_runtime.sources.base import Source
    from tests.kafka_broker import KafkaBroker


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """Apache Kafka itself; a test that kills it starts it again."""
    from tests.kafka_broker import KafkaBroker  # noqa: PLC0415  its client is an extra

    made = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    made.start()
    yield made
    made.kill()


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
