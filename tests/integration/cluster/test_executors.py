"""Check that a session on a standalone cluster has the wanted executors: from its start, and while it is warm (O04)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.commands.run_program import run_program
from tests.support.spark.cluster import standalone_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.cluster, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "integration" / "cluster" / "executors_program.py"
CONFIGURATION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "450m",
    "spark.executor.cores": "1",
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.mark.parametrize(("when", "found"), [("start", "1"), ("warm", "2,1,2")])
def test_o04_a_session_has_the_wanted_number_of_executors(master: str, tmp_path: Path, when: str, found: str) -> None:
    done = run_program(
        [sys.executable, str(PROGRAM), when],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "FOREBAY_HOME": str(tmp_path),
            "FOREBAY_SPARK_MASTER": master,
            "FOREBAY_SPARK_CONFIGURATION": json.dumps(CONFIGURATION),
        },
        cwd=tmp_path,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == found
