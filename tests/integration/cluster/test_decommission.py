"""Test a worker that is decommissioned in the middle of a batch, with Spark's dynamic allocation: each record once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from tests.integration.cluster.allocated_batch import LINES, AllocatedBatch
from tests.integration.cluster.decommission_program import declare
from tests.support.pages.kubernetes import documented_configuration
from tests.support.polling import eventually
from tests.support.spark.cluster import running_cluster
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from pathlib import Path

    import sqlalchemy as sa

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(800)]

EXPECTED = {"all": LINES} | {f"word{number}": 1 for number in range(LINES)}
#: What the page has about dynamic allocation and decommissioning, as it is there.
DOCUMENTED = {
    key: value
    for key, value in documented_configuration().items()
    if key.startswith(("spark.dynamicAllocation.", "spark.decommission.", "spark.storage.decommission."))
}
CONFIGURATION = {
    **DOCUMENTED,
    "spark.dynamicAllocation.minExecutors": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "450m",
    "spark.executor.cores": "1",
}


def test_a_batch_whose_worker_is_decommissioned_has_each_record_once(
    engine: sa.Engine, database_url: str, tmp_path: Path
) -> None:
    assert {
        "spark.dynamicAllocation.enabled",
        "spark.dynamicAllocation.shuffleTracking.enabled",
        "spark.decommission.enabled",
        "spark.storage.decommission.enabled",
        "spark.storage.decommission.shuffleBlocks.enabled",
    } <= DOCUMENTED.keys()
    output, marks = tmp_path / "output", tmp_path / "output-marks"
    with connect(engine) as connection:
        batch = AllocatedBatch(connection, database_url, tmp_path, declare(output))
    with (
        running_cluster(tmp_path, decommission=True) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        run = pool.submit(batch.run, "decommission_program.py", output, master=cluster.url, configuration=CONFIGURATION)
        try:
            eventually(
                lambda: run.done() or len(list(marks.glob("task-*"))) >= 2,
                "a task on each worker",
                seconds=300,
                step=0.1,
            )
            assert not run.done(), run.result(60)
            cluster.workers[0].signal("SIGPWR")
            eventually(lambda: decommissioned_executors(tmp_path), "an executor that is decommissioned", step=0.1)
        finally:
            marks.mkdir(exist_ok=True)
            (marks / "go").touch()
        rows = run.result(300)
    assert rows == [1 + LINES]
    table = ds.dataset(output, format="parquet", ignore_prefixes=["_", "."]).to_table().to_pylist()
    assert {row["word"]: row["count"] for row in table} == EXPECTED
    assert len(table) == 1 + LINES
    assert len(decommissioned_executors(tmp_path)) == 1, "the other worker's executor ran the rest"
    with connect(engine) as connection:
        assert batch_states(connection) == ["COMPLETED"]


def decommissioned_executors(directory: Path) -> list[Path]:
    """Return the logs of executors that were told to end after their running tasks."""
    logs = (directory / "work").glob("app-*/*/stderr")
    return [path for path in logs if "Decommission executor" in path.read_text(encoding="utf-8")]


def batch_states(connection: sa.Connection) -> list[str]:
    return [row.state for row in connection.exec_driver_sql("SELECT state FROM forebay.batches")]
