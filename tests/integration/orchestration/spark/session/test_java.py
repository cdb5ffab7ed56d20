"""Test Spark on the JRE from PyPI, as on a machine that has no Java."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from orchestration.spark.session.java import JavaOrigin, find_java, find_java_home
from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
from pyspark.sql import SparkSession

session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
arrow = session.range(1000).mapInArrow(lambda batches: batches, "id long")
print("counted", arrow.count(), session._jvm.System.getProperty("java.home"))
session.stop()
"""


@pytest.mark.slow
@pytest.mark.spark
def test_spark_counts_on_the_packaged_jre(tmp_path: Path) -> None:
    nothing = {"PATH": "/nowhere"}
    found = find_java(nothing)
    assert found.origin is JavaOrigin.PACKAGE
    assert not found.has_vector_module, "otherwise the wrapper is no longer needed"
    home = find_java_home(tmp_path / "state directory", nothing)

    environment = {**os.environ, "JAVA_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    answer = run_program([sys.executable, "-c", _PROGRAM], env=environment, cwd=tmp_path, timeout=150)
    assert answer.returncode == 0, answer.stderr
    told = next(line for line in answer.stdout.splitlines() if "counted" in line)
    assert told.split("counted ")[1] == f"1000 {found.executable.parents[1]}"
