"""Check that a batch driver's session is made with what build_definitions(spark=...) says in its module."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.apply import apply
from orchestration.declarations.modules import load_pipelines
from tests.integration.orchestration import driver_program
from tests.support.commands.run_program import run_program
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    import sqlalchemy as sa

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
DEFINITIONS = """\
from dagster_pyspark import PySparkResource

from forebay import ConsoleSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText

pipeline = Pipeline("words", interval="1h")


@pipeline.output(inputs=[Stream("lines", SocketText(host="127.0.0.1", port=9999))], sink=ConsoleSink())
def lines(lines):
    return lines


spark = PySparkResource(spark_config={"spark": {"executor.memory": "567m"}, "spark.master": "local[1]"})
defs = build_definitions(pipeline, spark=spark)
"""


@pytest.mark.slow
def test_a_driver_has_the_resources_configuration_and_is_replaced_when_it_changes(
    engine: sa.Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").touch()
    (tmp_path / "definitions.py").write_text(DEFINITIONS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with connect(engine) as connection:
        apply(connection, load_pipelines("definitions.py"))
    done = run_program(
        [sys.executable, str(Path(driver_program.__file__)), "spark.executor.memory"],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DAGSTER_HOME": str(home),
            "FOREBAY_HOME": str(tmp_path / "home"),
            "FOREBAY_DATABASE_URL": database_url,
            "FOREBAY_MODULE": "definitions.py",
            "FOREBAY_SPARK_CONFIGURATION": '{"spark.executor.memory": "999m"}',
        },
        cwd=tmp_path,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if not line.startswith("20")]
    assert said[0] == "567m"
    assert said[1].endswith("definitions.py is not as it was loaded")
