"""Test docs/how-to/dagster.md: each of its files is loaded as it stands there, and does what the page says."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.events import AssetMaterializationPlannedData
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._core.workspace.autodiscovery import loadable_targets_from_python_file
from dagster._core.workspace.load import location_origins_from_yaml_paths
from dagster.components.testing import create_defs_folder_sandbox

from orchestration.dagster_defs.build_definitions import build_definitions
from orchestration.dagster_defs.component import PipelineComponent
from orchestration.dagster_defs.own_definitions import with_own_definitions
from orchestration.declarations.apply import apply
from tracker_store.batches.batches import claim_attempt, fail_attempt
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import AttemptFailure, ProcessKind

if TYPE_CHECKING:
    from datetime import datetime

# Warnings from Dagster: features that it calls beta or preview, and pydantic features that its components use.
pytestmark = pytest.mark.filterwarnings(
    "ignore::dagster.BetaWarning",
    "ignore::dagster.PreviewWarning",
    "ignore::pydantic.warnings.PydanticDeprecatedSince20",
)

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "dagster.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+ file=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
OUTPUT = dg.AssetKey(["word_count", "word_counts"])
MODULES = [name.removesuffix(".py") for name in FILES if name.endswith(".py")]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a directory with all files of the page, importable while the test runs."""
    # `test_own_instance.py` has its dagster.yaml, and the Postgres that it needs.
    for name, text in (item for item in FILES.items() if item[0] != "dagster.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def definitions(module: str) -> dg.Definitions:
    defs = importlib.import_module(module).defs
    assert isinstance(defs, dg.Definitions)
    return defs


def test_every_example_is_loaded_by_its_own_test() -> None:
    assert sorted(MODULES) == [
        *("downstream", "existing", "failures", "my_assets", "owners", "pipelines", "second", "session")
    ]


def test_it_merges_into_an_existing_location(project: Path) -> None:
    keys = definitions("existing").resolve_asset_graph().get_all_asset_keys()
    assert {dg.AssetKey("customers"), OUTPUT} <= set(keys)


def test_own_assets_stand_beside_the_pipelines_and_their_sensor_is_on(project: Path) -> None:
    pipelines = build_definitions(importlib.import_module("pipelines").pipeline)
    defs = with_own_definitions(pipelines, "my_assets")
    assert {dg.AssetKey("hourly_words"), OUTPUT} <= set(defs.resolve_asset_graph().get_all_asset_keys())
    sensor = defs.resolve_sensor_def("automation")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert "word_count__word_counts_has_rows" in {node.name for node in defs.resolve_job_def("word_count_batch").nodes}
    [toml] = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert tomllib.loads(toml)["tool"]["forebay"] == {"module": "pipelines", "definitions": "my_assets"}


def test_both_locations_of_the_workspace_load(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load them as their servers do, in this process: a server for each would import Dagster again."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(project)])
    origins = location_origins_from_yaml_paths(["workspace.yaml"])
    assert [origin.location_name for origin in origins] == ["forebay", "reports"]
    for origin in origins:
        assert isinstance(origin, ManagedGrpcPythonEnvCodeLocationOrigin)
        target = origin.loadable_target_origin
        assert target.python_file is not None
        [found] = loadable_targets_from_python_file(target.python_file, target.working_directory)
        assert isinstance(found.target_definition, dg.Definitions)
        dg.Definitions.validate_loadable(found.target_definition)


def requested_below_a_busy_pipeline(defs: dg.Definitions, asset: dg.AssetKey) -> int:
    """Return how often `asset` is requested after a batch was committed, while the next one runs."""
    with dg.DagsterInstance.ephemeral() as instance:
        first = dg.evaluate_automation_conditions(defs=defs, instance=instance)
        instance.report_runless_asset_event(dg.AssetMaterialization(OUTPUT))
        job = defs.resolve_job_def("word_count_batch")
        run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.NOT_STARTED, asset_selection={OUTPUT})
        instance.report_dagster_event(
            dg.DagsterEvent(dg.DagsterEventType.PIPELINE_START.value, job.name), run_id=run.run_id
        )
        planned = dg.DagsterEvent.build_asset_materialization_planned_event(
            job.name,
            "word_count__outputs",
            AssetMaterializationPlannedData(OUTPUT),
        )
        instance.report_dagster_event(planned, run_id=run.run_id)
        return dg.evaluate_automation_conditions(
            defs=defs, instance=instance, cursor=first.cursor, asset_selection=dg.AssetSelection.assets(asset)
        ).get_num_requested(asset)


def test_without_waiting_an_asset_runs_below_a_busy_pipeline_and_with_eager_it_starves(project: Path) -> None:
    module = importlib.import_module("downstream")

    @dg.asset(deps=[OUTPUT], automation_condition=dg.AutomationCondition.eager())
    def starving() -> None: ...

    defs = dg.Definitions.merge(module.defs, dg.Definitions(assets=[starving]))
    assert requested_below_a_busy_pipeline(defs, dg.AssetKey("newest_words")) == 1
    assert requested_below_a_busy_pipeline(defs, dg.AssetKey("starving")) == 0


def test_the_failure_sensor_speaks_once_per_batch_when_it_is_given_up(
    project: Path,
    engine: sa.Engine,
    database_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check that failed attempts count, and that blocked and lost attempts have a number but do not count."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    module = importlib.import_module("failures")
    pipeline = importlib.import_module("pipelines").pipeline
    with connect(engine) as connection:
        apply(connection, [pipeline])
        row = get_pipeline(connection, pipeline.name)
        batch_time = row.last_batch_time + pipeline.interval
        connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
                "VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
            ),
            {"p": row.pipeline_id, "t": batch_time},
        )

        def fail(attempt: int, failure: AttemptFailure) -> None:
            process_id = register_process(
                connection, kind=ProcessKind.BATCH_RUN, name=str(attempt), host="here", pid=attempt
            )
            of_attempt = {"pipeline_id": row.pipeline_id, "batch_time": batch_time, "attempt": attempt}
            claim_attempt(connection, **of_attempt, run_id=str(attempt), process_id=process_id)
            fail_attempt(
                connection,
                **of_attempt,
                run_id=str(attempt),
                error="a division by zero",
                max_attempts=pipeline.max_attempts,
                pauses=[timedelta(0)],
                failure=failure,
            )

        told = []
        failed, blocked, lost = AttemptFailure
        for attempt, failure in enumerate((failed, blocked, failed, lost, failed), start=1):
            fail(attempt, failure)
            if failure_sensor(module, batch_time, attempt) is None:
                told.append(attempt)
        assert told == [5]
        assert capsys.readouterr().err.count("a division by zero") == 1
        assert isinstance(failure_sensor(module, batch_time, 3), dg.SkipReason), "asked late about an earlier attempt"


def failure_sensor(module: Any, batch_time: datetime, attempt: int) -> object:  # noqa: ANN401
    """Return the answer of the page's sensor to a failed run."""
    job = module.defs.resolve_job_def("word_count_batch")
    tags = {
        "forebay/pipeline": "word_count",
        "forebay/batch_time": batch_time.isoformat(),
        "forebay/attempt": str(attempt),
    }
    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.create_run_for_job(job, tags=tags)
        event = dg.DagsterEvent(dg.DagsterEventType.PIPELINE_FAILURE.value, job.name, message="a division by zero")
        context = dg.build_run_status_sensor_context(
            "batch_given_up", dagster_instance=instance, dagster_run=run, dagster_event=event
        ).for_run_failure()
        return module.batch_given_up(context)


def test_an_asset_of_the_page_and_the_batches_ask_for_one_resource(project: Path) -> None:
    """Check the definitions alone: `test_own_instance.py` runs them, with the page's dagster.yaml."""
    graph = definitions("session").resolve_asset_graph()
    asked = {key.to_user_string() for key in (dg.AssetKey("word_total"), OUTPUT) if asks(graph, key)}
    assert asked == {"word_total", "word_count/word_counts"}


def asks(graph: Any, key: dg.AssetKey) -> bool:  # noqa: ANN401
    """Return whether an asset asks for the batches' Spark session."""
    return "forebay_spark" in graph.get(key).assets_def.required_resource_keys


def test_owners_and_freshness_are_on_the_assets(project: Path) -> None:
    graph = definitions("owners").resolve_asset_graph()
    ours = [key for key in graph.get_all_asset_keys() if key.path[0] == "word_count"]
    assert {tuple(graph.get(key).owners) for key in ours} == {("team:streams",)}
    assert [key for key in ours if graph.get(key).freshness_policy is not None] == [OUTPUT]


def test_the_component_loads_a_module_by_the_name_that_dg_finds(project: Path) -> None:
    with create_defs_folder_sandbox() as sandbox:
        sandbox.scaffold_component(
            component_cls=PipelineComponent,
            defs_path="streams",
            defs_yaml_contents={
                "type": "forebay.components.PipelineComponent",
                "attributes": {"module": "pipelines"},
            },
        )
        with sandbox.load_component_and_build_defs(defs_path=Path("streams")) as (component, defs):
            assert isinstance(component, PipelineComponent)
            assert OUTPUT in defs.resolve_asset_graph().get_all_asset_keys()
            assert [sensor.name for sensor in defs.sensors or [] if sensor.name == "word_count_batches"]


def test_the_workspace_of_a_socket_can_be_loaded(project: Path) -> None:
    [origin] = location_origins_from_yaml_paths([str(project / "socket_workspace.yaml")])
    assert isinstance(origin, GrpcServerCodeLocationOrigin)
    assert (origin.location_name, origin.port) == ("forebay", None)
    assert origin.socket == "/run/forebay/code_server/socket"
