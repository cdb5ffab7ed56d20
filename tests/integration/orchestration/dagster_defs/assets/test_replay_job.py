"""Test the replay job and the output assets in Dagster, in process, on a real driver log and a real local Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dagster as dg
import pytest

from forebay import ParquetSink
from forebay.dagster import build_definitions
from orchestration.dagster_defs.assets.replay_job import ReplayConfig
from orchestration.declarations.apply import apply
from orchestration.replays.replay_choice import ReplayChoice, ReplayError, batches_to_replay, parsed_time
from tests.support.driver_log.log import Log
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from orchestration.declarations.pipeline import Pipeline
    from tests.support.spark.batch_rig import System

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("settings_in_environment")]


class Words:
    """A pipeline with two outputs and two completed batches, `first` and `second`, whose output says "old"."""

    def __init__(self, system: System, **settings: Any) -> None:  # noqa: ANN401
        self.word = "old"
        self.calls: list[str] = []

        def output(lines: DataFrame) -> DataFrame:
            self.calls.append("counts")
            return lines.selectExpr(f"concat(value, ' {self.word}') AS value")

        self.pipeline: Pipeline = system.declare(output, **settings)

        @self.pipeline.output(inputs=self.pipeline.streams, sink=ParquetSink(system.output.with_name("other")))
        def other(lines: DataFrame) -> DataFrame:
            self.calls.append("other")
            return lines

        apply(system.connection, [self.pipeline])
        self.times: list[datetime] = []
        for hour, value in enumerate("ab", start=1):
            system.receive([value])
            self.times.append(system.allocate(hour))
            system.run(self.pipeline, self.times[-1], 1)
        self.word = "new"
        self.calls.clear()

    def job(self, name: str) -> dg.JobDefinition:
        return build_definitions(self.pipeline).resolve_job_def(name)


def materializations(result: dg.ExecuteInProcessResult) -> list[tuple[str, str, str | None]]:
    found = []
    for event in result.all_events:
        if event.is_step_materialization:
            made = event.step_materialization_data.materialization
            found.append((made.asset_key.path[-1], str(made.metadata["batch_time"].value), made.partition))
    return found


def test_the_newest_completed_batch_is_replayed_as_the_launchpad_stands(system: System) -> None:
    words = Words(system)
    with dg.DagsterInstance.ephemeral() as instance:
        result = words.job("words_replay").execute_in_process(instance=instance)
        run = instance.get_run_by_id(result.run_id)
    assert system.published() == ["a old", "b new"]
    newest = words.times[-1].isoformat()
    assert materializations(result) == [("counts", newest, None), ("other", newest, None)]
    assert run is not None
    assert {key: value for key, value in run.tags.items() if key.startswith("forebay/")} == {
        "forebay/pipeline": "words",
        "forebay/kind": "replay",
        "forebay/replays_from": newest,
        "forebay/replays_to": newest,
        "forebay/replays": "1",
    }


def test_as_the_launchpad_stands_the_newest_failed_batch_comes_before_the_newest_completed_one(system: System) -> None:
    words = Words(system)
    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    log = Log(system.connection, 0, pipeline_id, [])
    system.receive(["c"])
    failed = system.allocate(3)
    log.end_batch(failed, fails=True)
    system.receive(["d"])
    system.run(words.pipeline, system.allocate(4), 1)
    job = words.job("words_replay")
    assert job.run_config is not None
    assert job.run_config["ops"]["words__replay"]["config"]["from_time"] == "newest_failed", "what the launchpad shows"
    result = job.execute_in_process()
    assert {made[1] for made in materializations(result)} == {failed.isoformat()}
    assert system.state(failed)[0] is BatchState.COMPLETED


def test_all_batches_of_a_range_and_one_output_of_two(system: System) -> None:
    words = Words(system)
    first, last = (time.isoformat() for time in words.times)
    config = ReplayConfig(from_time=first, to_time=last, outputs=["counts"])
    result = words.job("words_replay").execute_in_process(run_config=dg.RunConfig({"words__replay": config}))
    assert system.published() == ["a new", "b new"]
    assert words.calls == ["counts", "counts"]
    assert materializations(result) == [("counts", first, None), ("counts", last, None)]
    assert system.state(words.times[0]) == (BatchState.COMPLETED, 1)


def test_a_batch_that_can_not_be_replayed_fails_the_run_by_name_and_delays_no_other(system: System) -> None:
    words = Words(system)
    system.receive(["c"])
    system.clean_up()
    first, last = (time.isoformat() for time in words.times)
    config = ReplayConfig(from_time=first, to_time=last)
    with pytest.raises(dg.Failure, match=rf"2 of 2 batches were not replayed.*{first[:19]}.*were cleaned up"):
        words.job("words_replay").execute_in_process(run_config=dg.RunConfig({"words__replay": config}))
    assert system.published() == ["a old", "b old"]


def test_materialize_without_a_configuration_replays_the_newest_batch_of_the_selection(system: System) -> None:
    words = Words(system)
    result = words.job("words_batch").execute_in_process(
        asset_selection=[words.pipeline.outputs["counts"].asset_key], raise_on_error=True
    )
    assert result.success
    assert system.published() == ["a old", "b new"]
    assert words.calls == ["counts"]


def test_a_run_of_the_sensor_runs_its_batch(system: System) -> None:
    words = Words(system)
    system.receive(["c"])
    time = system.allocate(3)
    result = words.job("words_batch").execute_in_process(
        run_config={"ops": {"words__outputs": {"config": {"batch_time": time.isoformat(), "attempt": 1}}}}
    )
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.published() == ["a old", "b old", "c new"]
    assert {("counts", time.isoformat(), None), ("other", time.isoformat(), None)} <= set(materializations(result))


def test_a_backfill_of_an_hour_replays_its_batches_in_one_run(system: System) -> None:
    words = Words(system, partitions="hour")
    keys = [f"{time:%Y-%m-%d-%H}:00" for time in words.times]
    job = words.job("words_batch")
    result = job.execute_in_process(partition_key=keys[1])
    assert system.published() == ["a old", "b new"]
    assert ("counts", words.times[1].isoformat(), keys[1]) in materializations(result)
    words.word = "newer"
    tags = {"dagster/asset_partition_range_start": keys[0], "dagster/asset_partition_range_end": keys[1]}
    result = job.execute_in_process(tags=tags)
    assert system.published() == ["a newer", "b newer"]
    assert [made[2] for made in materializations(result) if made[0] == "counts"] == keys
    system.receive(["c"])
    time = system.allocate(3)
    result = job.execute_in_process(
        run_config={"ops": {"words__outputs": {"config": {"batch_time": time.isoformat(), "attempt": 1}}}}
    )
    assert ("counts", time.isoformat(), f"{time:%Y-%m-%d-%H}:00") in materializations(result)


def test_an_invalid_request_is_reported(system: System) -> None:
    words = Words(system)
    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    first, last = words.times

    def wanted(from_time: datetime | None, to_time: datetime | None) -> list[datetime]:
        return batches_to_replay(system.connection, pipeline_id, ReplayChoice(from_time, to_time))

    assert wanted(first, last) == [first, last]
    assert wanted(first, None) == [first]
    assert wanted(None, None) == [last]
    with pytest.raises(ReplayError, match="swap them"):
        wanted(last, first)
    with pytest.raises(ReplayError, match="no from_time"):
        wanted(None, last)
    with pytest.raises(ReplayError, match=r"no batch from .* is COMPLETED or QUARANTINED"):
        wanted(last.replace(year=2020), None)
    with pytest.raises(ReplayError, match="'noon' is no time"):
        parsed_time("noon")
    assert parsed_time("2026-01-31T12:00:00") == parsed_time("2026-01-31T12:00:00Z")
    config = ReplayConfig(outputs=["words"])
    with pytest.raises(ReplayError, match="no output 'words': it has counts, other"):
        words.job("words_replay").execute_in_process(run_config=dg.RunConfig({"words__replay": config}))
