"""Test tasks that a real cluster runs twice because they are slow or die: each record comes out once."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.integration.cluster.allocated_batch import LINES, AllocatedBatch
from tests.integration.cluster.speculation_program import OUTPUTS, declare
from tests.integration.orchestration.target_database import Target
from tests.support.spark.cluster import standalone_cluster
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import sqlalchemy as sa

    from forebay.testing.postgres import TestServer

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(500)]

EXPECTED = Counter({"all": LINES} | {f"word{number}": 1 for number in range(LINES)})


def test_speculative_tasks_and_tasks_that_die_double_nothing(
    engine: sa.Engine, database_url: str, postgres_server: TestServer, tmp_path: Path
) -> None:
    output, events = tmp_path / "output", tmp_path / "events"
    events.mkdir()
    configuration = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "450m",
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.efficiency.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{events}",
        "spark.eventLog.compress": "false",
    }
    with connect(engine) as connection:
        batch = AllocatedBatch(connection, database_url, tmp_path, declare(output))
    # A speculative attempt runs on another host than the attempt that it races.
    with (
        standalone_cluster(tmp_path, hosts=("127.0.0.1", "127.0.0.2")) as master,
        postgres_server.database(migrated=False) as url,
    ):
        target = Target(url)
        rows = batch.run(
            "speculation_program.py",
            output,
            master=master,
            configuration=configuration,
            environment={"TARGET_URL": target.url},
        )
        in_postgres = Counter(word for [word] in target.rows("SELECT word FROM words"))
        assert target.staging() == []
    catalog = {"type": "sql", "uri": f"sqlite:///{output}/catalog.db", "warehouse": f"file://{output}/iceberg"}
    found = {
        "parquet": words(ds.dataset(output / "parquet", format="parquet").to_table().column("word").to_pylist()),
        "compacted": words(ds.dataset(output / "compacted", format="parquet").to_table().column("word").to_pylist()),
        "postgres": in_postgres,
        "delta": words(DeltaTable(str(output / "delta")).to_pyarrow_table().column("word").to_pylist()),
        "iceberg": words(
            load_catalog("forebay", **catalog).load_table("shop.words").scan().to_arrow().column("word").to_pylist()
        ),
    }
    assert found == dict.fromkeys(OUTPUTS, EXPECTED)
    assert rows == [2 * LINES] * len(OUTPUTS)
    for name in OUTPUTS:
        written = {entry.name for entry in (output / "marks" / name).iterdir()}
        assert {"0-0", "0-1", "1-0", "1-1"} <= written, f"both attempts at {name} wrote"
    ended = [entry["Task Info"] for entry in entries(events) if entry["Event"] == "SparkListenerTaskStart"]
    assert sum(task["Speculative"] for task in ended) >= len(OUTPUTS), "Spark raced each output's slow task"


def words(column: Iterable[str]) -> Counter[str]:
    return Counter(column)


def entries(events: Path) -> list[dict[str, Any]]:
    """Return the entries of Spark's event log, in either of its layouts."""
    logs = [file for file in events.rglob("*") if file.is_file() and not file.name.startswith((".", "appstatus"))]
    return [json.loads(line) for file in logs for line in file.read_text(encoding="utf-8").splitlines()]
