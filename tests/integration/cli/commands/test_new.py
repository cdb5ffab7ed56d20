"""Test that a new project passes its own test, is valid, and is loaded by Dagster's own command."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import confluent_kafka
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from forebay.cli.commands.new import ProjectSource, make_project
from forebay.cli.main import app
from forebay.sources import FollowedFiles, Http, Kafka
from forebay.testing import run_batch
from forebay_contrib.opentelemetry.route import signal_route
from forebay_contrib.opentelemetry.signals import LOGS
from receiver_runtime.receivers.http.requests.parsing_limits import UNLIMITED
from receiver_runtime.receivers.http.requests.pushed import PushedRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from forebay import Pipeline, Stream

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


def first_records(source: ProjectSource, readme: str, project: Path, stream: Stream) -> list[dict[str, Any]]:
    """Return the rows that the first record becomes: the one that README.md says how to send."""
    if source is ProjectSource.OTLP:
        body = re.findall(r" -d '(\{.*?\})'$", readme, re.DOTALL | re.MULTILINE)[0].encode()
        headers = [(b"content-type", b"application/json")]
        parsed = signal_route(LOGS).parse(headers, body, Http(listen="127.0.0.1:0"), UNLIMITED)
        assert isinstance(parsed, PushedRows)
        batch = parsed.batch
        return [*batch.to_pylist()]
    if source is ProjectSource.KAFKA_AVRO:
        [record] = sent_to_kafka(re.findall(r"^```python\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)[0])
    else:
        [text] = re.findall(r"(?:BODY=| -d |echo )'([^']*)'", readme)
        record = text.encode()
    if isinstance(stream.source, FollowedFiles):
        assert str(Path(stream.source.path).parent).replace(str(Path.home()), "~") in readme
    elif not isinstance(stream.source, Kafka):
        assert f"http://{stream.source.listen}/v1/{stream.name}" in readme  # type: ignore[attr-defined]
    assert stream.records is not None
    found = stream.records.load_reader()(stream.records).read(pa.array([record], pa.binary()))
    assert not found.faults
    rows: list[dict[str, Any]] = found.batch.to_pylist()
    return rows


def sent_to_kafka(program: str) -> list[bytes]:
    """Run a program that sends to Kafka; return what it would send, where there is no broker."""
    sent: list[bytes] = []

    class Kept(confluent_kafka.Producer):
        def produce(self, *given: Any, **_: Any) -> None:  # noqa: ANN401  the client's own
            topic, value = given
            assert topic == "orders"
            sent.append(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confluent_kafka, "Producer", Kept)
        exec(program, {})
    return sent


@pytest.mark.spark
@pytest.mark.parametrize("source", ProjectSource)
def test_each_passes_its_own_test_is_valid_and_counts_its_first_record(
    source: ProjectSource, tmp_path: Path, session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run it in the session of this process: one of its own takes 6 s."""
    project = tmp_path / f"my-{source}-shop"
    make_project(project, source)
    name = f"my_{source.replace('-', '_')}_shop"
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    module = importlib.import_module(f"test_{name}")
    [test] = [made for name, made in vars(module).items() if name.startswith("test_")]
    test()
    pipeline: Pipeline = vars(module)["pipeline"]
    answer = CliRunner().invoke(app, ["validate", name, "--offline", "--no-plans"])
    assert answer.exit_code == 0, answer.output
    [stream] = pipeline.streams
    records = first_records(source, (project / "README.md").read_text(encoding="utf-8"), project, stream)
    [result] = run_batch(pipeline, {stream: records}).values()
    assert result.num_rows == 1
    assert not any(column.null_count for column in result.columns)
    needs = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    extra = stream.source.needs_extra
    assert needs == ["forebay" if extra is None else f"forebay[{extra}]"]
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
