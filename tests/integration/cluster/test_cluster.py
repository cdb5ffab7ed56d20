"""Test the same pipeline on a Spark standalone cluster and on Spark Connect, with Forebay's code shipped there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.integration.cluster.allocated_batch import AllocatedBatch
from tests.integration.cluster.batch_program import declare
from tests.support.receivers.block_keys import files_with, key_file, spellings
from tests.support.spark.cluster import connect_server, standalone_cluster

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(500)]

PROGRAM = "batch_program.py"


@pytest.fixture
def batch(connection: sa.Connection, database_url: str, tmp_path: Path) -> AllocatedBatch:
    return AllocatedBatch(connection, database_url, tmp_path, declare(tmp_path / "output"))


@pytest.fixture
def encrypted_batch(connection: sa.Connection, database_url: str, tmp_path: Path) -> AllocatedBatch:
    key = key_file(tmp_path / "secrets" / "blocks")
    return AllocatedBatch(connection, database_url, tmp_path, declare(tmp_path / "output"), block_key=key)


EXPECTED = {"all": 40} | {f"word{number}": 1 for number in range(40)}


def counts(output: Path) -> dict[str, int]:
    rows = ds.dataset(output, format="parquet", ignore_prefixes=["_", "."]).to_table().to_pylist()
    return {row["word"]: row["count"] for row in rows}


@pytest.mark.core
def test_a_batch_on_a_standalone_cluster_of_two_workers(batch: AllocatedBatch, tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as master:
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        rows = batch.run(
            PROGRAM,
            tmp_path / "output",
            master=master,
            configuration={**loopback, "spark.cores.max": "2", "spark.executor.memory": "450m"},
        )
        started = sorted((tmp_path / "work").glob("app-*/*/stderr"))
    assert rows == [41]
    assert counts(tmp_path / "output") == EXPECTED
    # Both workers had an executor; on both, Forebay was importable only because it was shipped. Spark replaces one that
    # it loses.
    assert len(started) >= 2


def test_workers_of_a_standalone_cluster_read_the_key_where_they_run_and_spark_writes_it_nowhere(
    encrypted_batch: AllocatedBatch, tmp_path: Path
) -> None:
    (tmp_path / "events").mkdir()
    with standalone_cluster(tmp_path) as master:
        rows = encrypted_batch.run(
            PROGRAM,
            tmp_path / "output",
            master=master,
            configuration={
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.cores.max": "2",
                "spark.executor.memory": "450m",
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.rolling.enabled": "false",
                "spark.eventLog.dir": (tmp_path / "events").as_uri(),
            },
        )
    assert rows == [41]
    assert counts(tmp_path / "output") == EXPECTED
    [log] = [path for path in (tmp_path / "events").rglob("*") if path.is_file() and path.stat().st_size]
    assert b"spark.io.encryption.enabled" in log.read_bytes()
    file = tmp_path / "secrets" / "blocks"
    assert files_with(tmp_path, spellings(file.read_text().strip()), except_for=[file]) == []


def test_a_connect_server_reads_the_key_where_it_runs(encrypted_batch: AllocatedBatch, tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        rows = encrypted_batch.run(PROGRAM, tmp_path / "output", master=address)
    assert rows == [41]
    assert counts(tmp_path / "output") == EXPECTED


def test_a_batch_on_spark_connect(batch: AllocatedBatch, tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        rows = batch.run(PROGRAM, tmp_path / "output", master=address)
    assert rows == [41]
    assert counts(tmp_path / "output") == EXPECTED


def test_a_streaming_query_on_spark_connect_reads_each_record_once(batch: AllocatedBatch, tmp_path: Path) -> None:
    """Check this because the server plans a streaming source in a process that does not get what a session ships."""
    with connect_server(tmp_path, has_forebay=True) as address:
        batch.run("stream_program.py", tmp_path / "lines", master=address)
        batch.run("stream_program.py", tmp_path / "lines", master=address)
    lines = ds.dataset(tmp_path / "lines", format="parquet", ignore_prefixes=["_", "."]).to_table()
    assert sorted(lines.column("value").to_pylist()) == sorted(f"all word{number}" for number in range(40))


def test_a_connect_server_reads_and_writes_a_state(encrypted_batch: AllocatedBatch, tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        [keys, changed, expired, *rows] = encrypted_batch.run("state_program.py", tmp_path / "output", master=address)
    assert (keys, changed, expired) == (100, 10, 90)
    # The first ones have expired; the last ones were changed later, and asked for.
    assert rows == [*range(10, 100), 1000, 1001, 1002]
