"""Test how Dagster shows a batch of which an output fails, in process: materializations, checks, observations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest
from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet

from forebay import ParquetSink, State
from forebay.dagster import build_definitions
from orchestration.dagster_defs.assets.committed_outputs import CommittedOutputs
from orchestration.dagster_defs.assets.replay_job import ReplayConfig
from orchestration.dagster_defs.checks.batch_checks import NONE_QUARANTINED, check_batches
from orchestration.dagster_defs.sensors.observation_sensor import ObservationCursor, observe
from orchestration.dagster_defs.shared.batch_plots import batches_key
from orchestration.dagster_defs.shared.stream_assets import stream_key
from orchestration.declarations.apply import apply
from orchestration.status_page import addresses
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame

    from orchestration.declarations.pipeline import Pipeline
    from tests.support.spark.batch_rig import System

# Warnings from Dagster: what evaluates conditions in a test is called beta.
pytestmark = [
    pytest.mark.spark,
    pytest.mark.usefixtures("settings_in_environment"),
    pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning"),
]


class Words:
    """A pipeline with the outputs `counts`, which fails while `broken`, and `other`; and a Dagster instance."""

    def __init__(self, system: System, instance: dg.DagsterInstance, **settings: Any) -> None:  # noqa: ANN401
        self.system = system
        self.instance = instance
        self.broken = True

        def counts(lines: DataFrame) -> DataFrame:
            if self.broken:
                raise ValueError("no number: 'x'")
            return lines

        self.pipeline: Pipeline = system.declare(counts, **settings)

        @self.pipeline.output(inputs=self.pipeline.streams, sink=ParquetSink(system.output.with_name("other")))
        def other(lines: DataFrame) -> DataFrame:
            return lines

        apply(system.connection, [self.pipeline])
        system.receive(["a"])
        self.time = system.allocate(1)

    def run(self, attempt: int) -> dg.ExecuteInProcessResult:
        config = {"batch_time": self.time.isoformat(), "attempt": attempt}
        return (
            build_definitions(self.pipeline)
            .resolve_job_def("words_batch")
            .execute_in_process(
                run_config={"ops": {"words__outputs": {"config": config}}},
                instance=self.instance,
                raise_on_error=False,
            )
        )

    def replay(self, **config: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401
        return (
            build_definitions(self.pipeline)
            .resolve_job_def("words_replay")
            .execute_in_process(
                run_config=dg.RunConfig({"words__replay": ReplayConfig(**config)}), instance=self.instance
            )
        )


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def made_by(instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult) -> list[tuple[str, Any]]:
    """Return the assets that a run has materialized in the instance, each with the attempt.

    The result itself lacks what was reported before its step failed.
    """
    return [
        (data.materialization.asset_key.path[-1], data.materialization.metadata["attempt"].value)
        for entry in instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
        if entry.dagster_event is not None
        for data in [entry.dagster_event.step_materialization_data]
    ]


def observations(
    instance: dg.DagsterInstance, result: dg.ExecuteInProcessResult
) -> list[Mapping[str, dg.MetadataValue]]:
    """Return the metadata of what a run has observed."""
    return [
        entry.dagster_event.asset_observation_data.asset_observation.metadata
        for entry in instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_OBSERVATION)
        if entry.dagster_event is not None
    ]


def error_of(result: dg.ExecuteInProcessResult) -> str:
    [failure] = [event for event in result.all_events if event.is_step_failure]
    return str(failure.step_failure_data.error)


def test_a_committed_output_is_materialized_in_the_run_in_which_another_one_fails(
    system: System, instance: dg.DagsterInstance
) -> None:
    words = Words(system, instance)
    first = words.run(1)
    assert not first.success
    assert made_by(instance, first) == [("other", 1)]
    cause = "1 of 2 outputs failed: counts: ValueError: no number: 'x'"
    assert cause in error_of(first)
    run = instance.get_run_by_id(first.run_id)
    assert run is not None
    assert run.tags["forebay/failed_because"] == cause, "where Dagster lists runs, it shows their tags"
    [metadata] = observations(instance, first)
    assert metadata["failed_because"].value == cause
    assert metadata["batch_time"].value == words.time.isoformat()
    assert str(metadata["status_page"].value).endswith(addresses.batch("words", words.time))
    words.broken = False
    second = words.run(2)
    assert second.success
    assert observations(instance, second) == []
    assert made_by(instance, second) == [("counts", 2), ("batches", 2)], "attempt 1 has reported the other output"
    assert system.state(words.time) == (BatchState.COMPLETED, 2)


def test_a_materialization_has_the_figures_that_are_known_when_its_output_is_committed(
    system: System, instance: dg.DagsterInstance
) -> None:
    words = Words(system, instance)
    words.broken = False
    result = words.run(1)
    [counts, *_] = [event.step_materialization_data for event in result.all_events if event.is_step_materialization]
    metadata = counts.materialization.metadata
    assert {"records", "input_rate", "scheduling_delay_ms", "output_duration_ms", "location"} <= metadata.keys()
    assert "total_delay_ms" not in metadata, "the batch is not complete yet"
    table = TableMetadataSet.extract(metadata)
    assert table.column_schema is not None
    assert [column.name for column in table.column_schema.columns] == ["value"]
    assert table.column_lineage is not None
    [stream] = words.pipeline.streams
    assert table.column_lineage.deps_by_column == {"value": [dg.TableColumnDep(stream_key(stream), "value")]}
    assert table.partition_row_count == metadata["records"].value
    assert UriMetadataSet.extract(metadata).uri == system.output.as_uri()
    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    versions = {commit.code_version for commit in commits_of_batch(system.connection, pipeline_id, words.time)}
    assert versions == {metadata["code_version"].value} != {None}


def test_a_batch_that_changes_a_state_is_an_event_of_its_asset(system: System, instance: dg.DagsterInstance) -> None:
    words = Words(system, instance)
    words.broken = False

    @words.pipeline.output(
        inputs=words.pipeline.streams,
        state=State("value STRING", "n BIGINT", buckets=2),
        sink=ParquetSink(system.output.with_name("totals")),
    )
    def totals(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        new = lines.where("value <> 'none'").groupBy("value").count()
        changed = new.join(state, "value", "left").selectExpr("value", "coalesce(n, 0) + count AS n")
        return changed, changed

    apply(system.connection, [words.pipeline])
    key = dg.AssetKey(["words", "totals", "state"])

    def events(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
        return [
            {name: value.value for name, value in data.materialization.metadata.items()}
            for entry in instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION)
            if entry.dagster_event is not None
            for data in [entry.dagster_event.step_materialization_data]
            if data.materialization.asset_key == key
        ]

    [event] = events(words.run(1))
    assert (event["batch_time"], event["attempt"]) == (words.time.isoformat(), 1)
    assert (event["changed_keys"], event["deleted_keys"], event["keys"]) == (1, 0, 1)
    assert event["bytes"] > 0
    system.receive(["none"])
    words.time = system.allocate(2)
    unchanged = words.run(1)
    assert unchanged.success
    assert events(unchanged) == []


def test_an_output_that_was_committed_and_not_reported_is_reported_by_the_next_attempt(
    system: System, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check as after a kill between the commit and Dagster's event, or while Dagster's storage is unavailable."""
    words = Words(system, instance)

    def unavailable(*_: object) -> None:
        raise OSError("no storage")

    with monkeypatch.context() as patched:
        patched.setattr(CommittedOutputs, "_report", unavailable)
        first = words.run(1)
    assert not first.success
    assert "counts: ValueError" in error_of(first), "that it can't be reported is no failure of the other output"
    assert made_by(instance, first) == []
    words.broken = False
    assert made_by(instance, words.run(2)) == [("other", 1), ("counts", 2), ("batches", 2)]


def test_an_asset_below_goes_on_while_the_batch_has_failed(system: System, instance: dg.DagsterInstance) -> None:
    words = Words(system, instance)
    soon = dg.AutomationCondition.eager().without(~dg.AutomationCondition.any_deps_in_progress())
    seen: list[str] = []

    @dg.asset(deps=[words.pipeline.outputs["other"].asset_key], automation_condition=soon)
    def below() -> None:
        seen.append("other")

    @dg.asset(deps=[words.pipeline.outputs["counts"].asset_key], automation_condition=soon)
    def below_the_failed_one() -> None:
        seen.append("counts")

    defs = dg.Definitions.merge(build_definitions(words.pipeline), dg.Definitions(assets=[below, below_the_failed_one]))
    before = dg.evaluate_automation_conditions(defs=defs, instance=instance)
    assert not words.run(1).success
    after = dg.evaluate_automation_conditions(defs=defs, instance=instance, cursor=before.cursor)
    assert after.get_num_requested(dg.AssetKey("below")) == 1
    assert after.get_num_requested(dg.AssetKey("below_the_failed_one")) == 0
    assert dg.materialize([below], instance=instance).success
    assert seen == ["other"]


def test_a_partially_committed_batch_says_so_in_its_check_and_its_observation(
    system: System, instance: dg.DagsterInstance
) -> None:
    words = Words(system, instance, max_attempts=1)
    words.run(1)
    assert system.state(words.time) == (BatchState.QUARANTINED, 1)
    [check] = [
        result for result in check_batches(system.connection, words.pipeline) if result.check_name == NONE_QUARANTINED
    ]
    assert not check.passed
    assert check.metadata is not None
    assert check.metadata["partially_committed"].value == 1
    assert "1 batch(es) were given up, 1 of them partially committed" in str(check.description)
    assert "partially committed (only other): 1 of 2 outputs failed: counts: ValueError" in str(check.description)

    def observed(cursor: ObservationCursor) -> tuple[list[dg.AssetObservation], ObservationCursor]:
        events, after = observe(system.connection, words.pipeline, words.pipeline.streams, cursor)
        return [
            event
            for event in events
            if isinstance(event, dg.AssetObservation) and event.asset_key == batches_key(words.pipeline)
        ], ObservationCursor.parse(after.model_dump_json())

    [observation], cursor = observed(ObservationCursor())
    assert observation.description == (
        f"batch {words.time.isoformat()} is QUARANTINED, partially committed: other committed; counts not"
    )
    metadata = {name: value.value for name, value in observation.metadata.items()}
    assert metadata["partially_committed"] is True
    assert metadata["output other"] == "COMMITTED"
    assert metadata["output counts"] == "FAILED: ValueError: no number: 'x'"
    again, _ = observed(cursor)
    assert again == [], "it was reported"


def test_the_replay_job_runs_failed_outputs_only(system: System, instance: dg.DagsterInstance) -> None:
    words = Words(system, instance, max_attempts=1)
    words.run(1)
    words.broken = False
    result = words.replay(failed_outputs_only=True)
    assert made_by(instance, result) == [("counts", 2)]
    assert system.state(words.time) == (BatchState.COMPLETED, 2)


def test_a_replay_materializes_what_it_replaced_before_another_output_failed(
    system: System, instance: dg.DagsterInstance
) -> None:
    words = Words(system, instance)
    words.broken = False
    words.run(1)
    words.broken = True
    with pytest.raises(dg.Failure, match=r"1 of 1 batches were not replayed.*counts: ValueError"):
        words.replay()
    newest = instance.get_latest_materialization_event(words.pipeline.outputs["other"].asset_key)
    assert newest is not None
    assert newest.asset_materialization is not None
    assert newest.asset_materialization.metadata["attempt"].value == 2
