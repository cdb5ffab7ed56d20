"""Test batches and streaming queries on encrypted blocks, on real Spark: with their keys, and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session
from receiver_runtime.block_store.frames.errors import BlockKeyError
from tests.integration.orchestration.spark_jvm import end_jvm
from tests.support.polling import eventually
from tests.support.receivers.block_keys import files_with, key_file, key_id, new_key, spellings
from tests.support.spark.batch_rig import System
from tracker_store.batches import batches
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.receivers.receivers import placements, receiver_events
from tracker_store.schema.states import AttemptState, BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.core, pytest.mark.timeout(600)]

VARIABLE = "FOREBAY_TEST_BLOCK_KEY"
PRIVATE = "has the measles"
_SECONDS = 150


@pytest.fixture(scope="module")
def key_of_environment(no_shared_session: None) -> Iterator[str]:
    """Set a key in the environment, before a JVM starts: its workers inherit it."""
    key = new_key()
    end_jvm()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, key)
        yield key
    end_jvm()


@pytest.fixture(scope="module")
def spark_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("spark")


@pytest.fixture(scope="module")
def session(spark_home: Path, key_of_environment: str) -> Iterator[SparkSession]:
    """Start a session that keeps all of its files, and an event log, below `spark_home`."""
    (spark_home / "events").mkdir()
    settings = Settings.model_validate(
        {
            "home": spark_home,
            "spark_master": "local[2]",
            "block_key": f"env:{VARIABLE}",
            "spark_configuration": {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.dir": (spark_home / "events").as_uri(),
                "spark.local.dir": str(spark_home / "local"),
            },
        }
    )
    made = spark_session(settings, application="tests")
    yield made
    made.stop()


@pytest.fixture
def system(connection: sa.Connection, database_url: str, tmp_path: Path, session: SparkSession) -> System:
    return System(connection, database_url, tmp_path / "home", session)


def same(lines: DataFrame) -> DataFrame:
    return lines


def grouped(lines: DataFrame) -> DataFrame:
    """Shuffle the values."""
    return lines.groupBy("value").count().select("value")


def attempts(system: System, time: datetime) -> list[AttemptState]:
    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    return [row.state for row in batches.attempts_of_batch(system.connection, pipeline_id, time)]


def test_a_batch_reads_blocks_of_a_key_in_the_environment_and_nothing_plain_lies_anywhere(
    system: System, spark_home: Path, tmp_path: Path, key_of_environment: str
) -> None:
    system.use_keys(f"env:{VARIABLE}")
    pipeline = system.declare(grouped)
    lines = [f"patient {number} {PRIVATE}" for number in range(2000)]
    system.receive(lines)
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.published() == sorted(lines)
    secrets = spellings(key_of_environment)
    assert files_with(system.settings.home / "blocks", [PRIVATE.encode(), *secrets]) == []
    # Shuffles, the event log, Spark's own scripts and archives.
    assert [path for path in spark_home.rglob("shuffle_*.data") if path.stat().st_size > 1000]
    assert files_with(spark_home, [PRIVATE.encode(), *secrets]) == []
    assert files_with(tmp_path, secrets) == []


def test_blocks_from_before_and_after_a_rotation_are_in_one_batch(system: System, tmp_path: Path) -> None:
    old, new = key_file(tmp_path / "old"), key_file(tmp_path / "new")
    pipeline = system.declare(same)
    system.receive(["plain"])
    system.use_keys(old)
    system.receive(["by the old key"])
    system.use_keys(new, old)
    system.receive(["by the new key"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    assert system.published() == ["by the new key", "by the old key", "plain"]


@pytest.mark.parametrize("durability", ["durable", "ephemeral"])
def test_a_batch_without_its_key_is_blocked_and_loses_neither_attempts_nor_blocks(
    system: System, tmp_path: Path, durability: str
) -> None:
    key, other = key_file(tmp_path / "key"), key_file(tmp_path / "other")
    identity = key_id(key)
    pipeline = system.declare(same, max_attempts=1)
    system.use_keys(key)
    system.receive(["a"], ["b"], durability=durability)
    time = system.allocate(1)
    held = (tmp_path / "key").rename(tmp_path / "away")
    without: list[tuple[tuple[str, ...], str]] = [
        ((), "FOREBAY_BLOCK_KEY and FOREBAY_BLOCK_KEYS_FOR_READING are not set"),
        ((key,), "No such file or directory"),
        ((other,), key_id(other)),
    ]
    for number, (references, said) in enumerate(without, start=1):
        system.use_keys(*references)
        with pytest.raises(Exception, match=BlockKeyError.__name__):
            system.run(pipeline, time, number)
        assert system.state(time) == (BatchState.BLOCKED, number)
        history = batches.attempts_of_batch(
            system.connection, get_pipeline(system.connection, "words").pipeline_id, time
        )
        told = str(history[-1].error)
        assert identity in told
        assert said in told
        assert "FOREBAY_BLOCK_KEYS_FOR_READING" in told
    held.rename(tmp_path / "key")
    # Found by a worker that has looked for it in vain.
    system.use_keys(other, key)
    [result] = system.run(pipeline, time, len(without) + 1)
    assert (system.published(), result.lost_blocks) == (["a", "b"], 0)
    assert attempts(system, time) == [*[AttemptState.BLOCKED] * len(without), AttemptState.SUCCEEDED]
    [placement] = placements(system.connection)
    assert [message for _, message, _ in receiver_events(system.connection, placement.receiver_id)] == []


def test_a_streaming_query_reads_encrypted_blocks(system: System, tmp_path: Path, session: SparkSession) -> None:
    key = key_file(tmp_path / "key")
    system.use_keys(key)
    system.declare(same)
    system.receive(["a", "b"], ["c"])
    reader = (
        session.readStream.format("forebay")
        .option("database_url", system.settings.require_database_url())
        .option("block_store", system.settings.block_store_roots)
        .option("block_keys", key)
        .option("stream", "lines")
        .option("reader", "counting")
    )
    found: list[str] = []

    def keep(batch: DataFrame, _: int) -> None:
        found.extend(row[0] for row in batch.collect())

    query = (
        reader.load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    eventually(lambda: not query.isActive, "the query's end", seconds=_SECONDS)
    assert query.exception() is None
    assert found == ["a", "b", "c"]
