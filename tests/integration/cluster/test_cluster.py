"""The same pipeline on a Spark standalone cluster and on Spark Connect, with Forebay's code shipped there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from orchestration.apply import apply
from orchestration.settings import Settings
from tests.integration.cluster.batch_program import declare
from tests.spark_cluster import connect_server, standalone_cluster
from tests.stored_lines import LineReceiver
from tracker_store.engine import connect
from tracker_store.pipelines import get_pipeline
from tracker_store.received_block_tracker import ReceivedBlockTracker
from tracker_store.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(500)]

ROOT = Path(__file__).parents[3]


class Batch:
    """A batch that is allocated: 40 blocks of lines, and where its output goes."""

    def __init__(self, connection: sa.Connection, url: str, directory: Path) -> None:
        self._settings = Settings(home=directory / "home", database_url=url)
        self._output = directory / "output"
        self._directory = directory
        apply(connection, [declare(self._output)])
        [placement] = placements(connection)
        lines = LineReceiver(connection, self._settings.block_store_roots, placement.receiver_id)
        for number in range(40):
            lines.receive([f"all word{number}"])
        lines.close()
        pipeline = get_pipeline(connection, "words")
        self._time: datetime = pipeline.last_batch_time
        connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": self._time - timedelta(hours=1)}
        )
        connection.execute(sa.text("UPDATE forebay.blocks SET added_at = :t"), {"t": self._time - timedelta(minutes=1)})
        ReceivedBlockTracker(connection, pipeline.pipeline_id).allocate_blocks_to_batch(self._time)

    def run(self, master: str, configuration: dict[str, str] | None = None) -> list[int]:
        """Run it in a process of its own; the rows of each output."""
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "tests" / "integration" / "cluster" / "batch_program.py"),
                str(self._output),
                self._time.isoformat(),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "FOREBAY_HOME": str(self._settings.home),
                "FOREBAY_DATABASE_URL": self._settings.require_database_url(),
                "FOREBAY_SPARK_MASTER": master,
                "FOREBAY_SPARK_CONFIGURATION": json.dumps(configuration or {}),
            },
            cwd=self._directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=400,
        )
        assert done.returncode == 0, done.stderr
        rows: list[int] = json.loads(done.stdout.splitlines()[-1])
        return rows

    def counts(self) -> dict[str, int]:
        rows = ds.dataset(self._output, format="parquet", ignore_prefixes=["_", "."]).to_table().to_pylist()
        return {row["word"]: row["count"] for row in rows}


@pytest.fixture
def batch(engine: sa.Engine, database_url: str, tmp_path: Path) -> Iterator[Batch]:
    with connect(engine) as connection:
        yield Batch(connection, database_url, tmp_path)


EXPECTED = {"all": 40} | {f"word{number}": 1 for number in range(40)}


def test_a_batch_on_a_standalone_cluster_of_two_workers(batch: Batch, tmp_path: Path) -> None:
    with standalone_cluster(tmp_path) as master:
        loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        rows = batch.run(master, {**loopback, "spark.cores.max": "2", "spark.executor.memory": "450m"})
        started = sorted((tmp_path / "work").glob("app-*/*/stderr"))
    assert rows == [41]
    assert batch.counts() == EXPECTED
    # Both workers had an executor; neither had Forebay on its path but for what was shipped.
    assert len(started) == 2


def test_a_batch_on_spark_connect(batch: Batch, tmp_path: Path) -> None:
    with connect_server(tmp_path) as address:
        rows = batch.run(address)
    assert rows == [41]
    assert batch.counts() == EXPECTED
