"""Test what `build_definitions` gives Dagster, and that it merges with another project's definitions."""

from __future__ import annotations

import os
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet

from forebay import (
    ConsoleSink,
    DeltaSink,
    EnvVar,
    IcebergSink,
    ParquetSink,
    Pipeline,
    PostgresSink,
    State,
    Stream,
)
from forebay.cli.instance.dagster_home import write_dagster_home
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.batches.attempt_outputs import OutputResult
from orchestration.dagster_defs.assets.committed_outputs import address_metadata, result_metadata
from orchestration.declarations.settings import ModuleMissingError
from orchestration.declarations.sink import Column, Sink
from tests.support.commands.run_program import run_program

ROOT = Path(__file__).parents[3]


@pytest.fixture
def pipeline() -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    made = Pipeline("word_count", interval="10s")
    made.output(inputs=[lines], sink=ParquetSink("out"), name="word_counts")(lambda frame: frame)
    made.output(inputs=[lines], sink=ParquetSink("raw"), name="raw")(lambda frame: frame)
    return made


def test_assets_job_and_sensor_by_their_names(pipeline: Pipeline) -> None:
    repository = build_definitions(pipeline).get_repository_def()
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    assert keys == {
        "forebay/lines",
        "word_count/word_counts",
        "word_count/raw",
        "word_count/batches",
        "word_count/batches_1m",
    }
    assert {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")} == {
        "word_count_batch",
        "word_count_checks",
        "word_count_maintenance",
        "word_count_replay",
        "word_count_restart_receiver",
        "word_count_upkeep",
        "word_count_scaling",
        "word_count_start_streams",
        "word_count_stop_streams",
    }
    assert [sensor.name for sensor in repository.sensor_defs] == [
        "word_count_batches",
        "word_count_observations",
        "word_count_receivers",
    ]
    schedules = {schedule.name for schedule in repository.schedule_defs}
    assert schedules == {"word_count_upkeep", "word_count_maintenance_schedule", "word_count_scaling"}
    graph = repository.asset_graph
    word_counts = graph.get(dg.AssetKey(["word_count", "word_counts"]))
    assert word_counts.group_name == "word_count"
    assert word_counts.parent_keys == {dg.AssetKey(["forebay", "lines"])}
    assert graph.get(dg.AssetKey(["forebay", "lines"])).group_name == "forebay_streams"


def test_a_state_is_an_asset_below_its_output(pipeline: Pipeline) -> None:
    [lines] = pipeline.streams
    state = State("word STRING", "n BIGINT", keys=lambda frame: frame)
    pipeline.output(inputs=[lines], state=state, sink=ParquetSink("totals"), name="totals")(lambda frame, state: state)
    key = dg.AssetKey(["word_count", "totals", "state"])
    found = build_definitions(pipeline).get_repository_def().asset_graph.get(key)
    assert found.parent_keys == {dg.AssetKey(["word_count", "totals"])}
    assert found.group_name == "word_count"
    assert (found.metadata["key"], found.is_materializable) == (["word"], False)


def test_asset_key_serves_a_downstream_asset(pipeline: Pipeline) -> None:
    @dg.asset(deps=[pipeline.outputs["word_counts"].asset_key])
    def report() -> None: ...

    merged = dg.Definitions.merge(build_definitions(pipeline), dg.Definitions(assets=[report]))
    graph = merged.get_repository_def().asset_graph
    assert graph.get(dg.AssetKey("report")).parent_keys == {dg.AssetKey(["word_count", "word_counts"])}


def test_it_merges_with_a_projects_own_spark_resource_executor_and_jobs(pipeline: Pipeline) -> None:
    @dg.asset(key=["theirs", "table"], required_resource_keys={"spark"})
    def table() -> None: ...

    @dg.job
    def batch() -> None: ...

    theirs = dg.Definitions(
        assets=[table],
        jobs=[batch],
        resources={"spark": dg.ResourceDefinition.hardcoded_resource("theirs"), "io_manager": dg.FilesystemIOManager()},
        executor=dg.multiprocess_executor,
    )
    ours = build_definitions(pipeline)
    assert set(ours.resources or {}) == {"forebay_spark"}
    assert ours.executor is None
    merged = dg.Definitions.merge(theirs, ours)
    repository = merged.get_repository_def()
    assert repository.get_top_level_resources().keys() == {"forebay_spark", "io_manager", "spark"}
    assert repository.get_job("batch").executor_def is dg.multiprocess_executor
    assert repository.get_job("word_count_batch").executor_def is dg.in_process_executor


def test_dagsters_own_command_loads_the_workspace_without_a_warning_of_ours(tmp_path: Path) -> None:
    """Check as in the repository's root, without an installation: the working directory alone makes it importable."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    finished = run_program(
        [sys.executable, "-W", "default", "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        env=environment | {"DAGSTER_HOME": str(tmp_path), "FOREBAY_MODULE": "forebay.demo.pipeline"},
        cwd=ROOT,
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    assert "All code locations passed validation" in output
    ours = [
        line
        for line in output.splitlines()
        if "Warning" in line and any(f"{ROOT}/{p}/" in line for p in ("forebay", "orchestration", "tracker_store"))
    ]
    assert ours == []


def test_a_code_location_without_a_module_has_no_pipeline_of_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("FOREBAY_", "DAGSTER_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    monkeypatch.chdir(ROOT)
    with pytest.raises(ModuleMissingError, match=r"^No module of pipelines is named.*set FOREBAY_MODULE"):
        runpy.run_module("orchestration.definitions")


def test_the_workspace_names_its_working_directory() -> None:
    [location] = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))["load_from"]
    assert location["python_module"] == {
        "module_name": "orchestration.definitions",
        "working_directory": ".",
        "location_name": "forebay",
    }


def test_a_backfill_of_partitions_is_one_run_and_there_is_none_without_partitions() -> None:
    """Check this because a run per partition would start a Spark of its own each time."""

    def assets(partitions: Literal["hour", "day"] | None) -> dg.AssetsDefinition:
        declared = Pipeline("word_count", interval="10s", partitions=partitions)
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        declared.output(inputs=[lines], sink=ParquetSink("out"), name="counts")(lambda frame: frame)
        definitions = build_definitions(declared).get_repository_def()
        return definitions.assets_defs_by_key[dg.AssetKey(["word_count", "counts"])]

    for definition in (assets("hour"), assets("day")):
        assert definition.backfill_policy == dg.BackfillPolicy.single_run()
        assert definition.partitions_def is not None
    assert assets(None).partitions_def is None


def test_a_materialization_has_its_rows_and_columns_under_dagsters_own_names() -> None:
    """Check this because Dagster shows a table by those names alone."""
    time = datetime(2026, 1, 1, tzinfo=UTC)
    columns = (Column("word", "string", nullable=True), Column("n", "bigint", nullable=False))
    shown = result_metadata(OutputResult("counts", 1, "/out", 7, columns=columns), time)
    table = TableMetadataSet.extract(shown)
    assert (table.row_count, table.partition_row_count) == (7, 7)
    assert table.column_schema is not None
    assert [(column.name, column.type, column.constraints.nullable) for column in table.column_schema.columns] == [
        ("word", "string", True),
        ("n", "bigint", False),
    ]
    unknown = TableMetadataSet.extract(result_metadata(OutputResult("counts", 1, "/out", None), time))
    assert (unknown.row_count, unknown.partition_row_count, unknown.column_schema) == (None, None, None)


@pytest.mark.parametrize(
    ("sink", "name", "uri"),
    [
        (ParquetSink("/out/a b"), None, "file:///out/a%20b"),
        (ParquetSink("s3://bucket/out?region=x"), None, "s3://bucket/out"),
        (ParquetSink(EnvVar("RESULTS_URL")), None, None),
        (DeltaSink("/out"), None, "file:///out"),
        (IcebergSink("shop.counts", catalog={"type": "sql"}), "shop.counts", None),
        (PostgresSink("postgresql://me@db/shop", "counts"), "shop.public.counts", "postgresql://db:5432/shop"),
        (PostgresSink(EnvVar("TARGET_URL"), "main.counts"), "main.counts", None),
        (ConsoleSink(), None, None),
    ],
    ids=str,
)
def test_a_table_has_its_name_and_uri_under_dagsters_own_names(sink: Sink, name: str | None, uri: str | None) -> None:
    shown = address_metadata(sink.address())
    assert (TableMetadataSet.extract(shown).table_name, UriMetadataSet.extract(shown).uri) == (name, uri)


def test_forebays_own_instance_has_what_waiting_sensors_and_short_intervals_require(tmp_path: Path) -> None:
    write_dagster_home(tmp_path, code_server=tmp_path / "socket")
    config = yaml.safe_load((tmp_path / "dagster.yaml").read_text(encoding="utf-8"))
    # A tick that waits for its boundary must not delay another sensor.
    assert config["sensors"]["use_threads"] is True
    assert config["run_launcher"]["class"] == "BatchRunLauncher"
    # The run of a driver that died in it must be checked.
    assert config["run_monitoring"]["enabled"] is True
    assert config["run_monitoring"]["poll_interval_seconds"] <= 5
    for kind in ("sensor", "schedule"):
        days = config["retention"][kind]["purge_after_days"]
        assert set(days) == {"skipped", "success", "failure", "started"}, "a tick every few seconds is kept for ever"
        assert days["skipped"] <= 1
