"""Test that a new project passes its own test, is valid, and is loaded by Dagster's own command."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from forebay.cli.commands.new import make_project

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

# Beside other tests, the start of Spark or Dagster takes long.
_SECONDS = 240


def run(directory: Path, *command: str, **environment: str) -> str:
    """Run a program of this installation in `directory`, without settings of Forebay's; return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "PYTEST_"))}
    made = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=directory,
        env={**inherited, "PYTHONSAFEPATH": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert made.returncode == 0, made.stdout
    return made.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    make_project(tmp_path / "my-shop")
    return tmp_path / "my-shop"


@pytest.mark.spark
def test_its_own_test_passes(project: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run it in the session of this process: one of its own takes 6 s."""
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    module = importlib.import_module("test_my_shop")
    [test] = [made for name, made in vars(module).items() if name.startswith("test_")]
    test()
    assert not (project / "data").exists()


def test_pytest_finds_its_own_test(project: Path) -> None:
    """Check that pytest imports it, and with it the pipeline, by the project's own configuration."""
    assert "1 test collected" in run(project, "pytest", "--collect-only", "-q")


@pytest.mark.slow
@pytest.mark.spark
def test_pytest_runs_its_own_test(project: Path) -> None:
    assert "1 passed" in run(project, "pytest", "-q")
    assert not (project / "data").exists()


@pytest.mark.slow
@pytest.mark.core
def test_it_is_valid(project: Path) -> None:
    assert "1 pipeline(s), 1 stream(s), 1 output(s)" in run(project, "forebay.cli", "validate", "my_shop")


def test_dagster_loads_it_by_its_workspace_and_its_instance(project: Path, database_url: str) -> None:
    found = run(
        project,
        *("dagster", "definitions", "validate", "-w", "workspace.yaml"),
        DAGSTER_HOME=str(project),
        FOREBAY_DATABASE_URL=database_url,
    )
    assert "Validation successful for code location my_shop" in found
