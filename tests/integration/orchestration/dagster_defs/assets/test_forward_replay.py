"""Test replays forward in Dagster's replay job, in process, on a real driver log and a real local Spark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow.dataset as ds
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from forebay import ParquetSink, Pipeline, State, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.dagster_defs.assets.replay_job import ReplayConfig
from orchestration.declarations.apply import apply
from orchestration.replays.replay_choice import ReplayError
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_replays import resume_state_replay, state_replays
from tracker_store.connection.errors import DriverLogError
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from tests.support.spark.batch_rig import System
    from tracker_store.batches.state_replays import StateReplay

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("settings_in_environment")]


class Sums:
    """A pipeline whose output adds up `step` a record, from one batch to the next."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.step = 1
        # Raised in the batch with this record.
        self.errors: dict[str, BaseException] = {}
        self.pipeline = Pipeline("words", interval="1h")

        def sums(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
            [row] = lines.collect()
            if row.value in self.errors:
                raise self.errors.pop(row.value)
            changed = lines.selectExpr("'all' AS word").join(state, "word", "left")
            changed = changed.selectExpr("word", f"coalesce(n, 0) + {self.step} AS n")
            return changed, changed

        self.pipeline.output(
            inputs=[Stream("lines", SocketText(host="127.0.0.1", port=9999))],
            state=State(key="word STRING", value="n BIGINT", keys=lambda lines: lines.selectExpr("'all' AS word")),
            sink=ParquetSink(system.output),
        )(sums)
        apply(system.connection, [self.pipeline])
        self.pipeline_id = get_pipeline(system.connection, "words").pipeline_id

    def batch(self, hour: int, value: str) -> datetime:
        self.system.receive([value])
        time = self.system.allocate(hour)
        self.system.run(self.pipeline, time, 1)
        return time

    def run(self, instance: dg.DagsterInstance, **config: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401
        return (
            build_definitions(self.pipeline)
            .resolve_job_def("words_replay")
            .execute_in_process(run_config=dg.RunConfig({"words__replay": ReplayConfig(**config)}), instance=instance)
        )

    def results(self) -> list[int]:
        found: list[int] = ds.dataset(self.system.output, format="parquet").to_table()["n"].to_pylist()
        return sorted(found)

    def newest(self) -> StateReplay:
        return state_replays(self.system.connection, pipeline_id=self.pipeline_id)[0]


def test_a_replay_forward_is_cancelled_lost_failed_and_ends(system: System) -> None:
    sums = Sums(system)
    first, second = sums.batch(1, "a").isoformat(), sums.batch(2, "b").isoformat()
    assert sums.results() == [1, 2]
    sums.step = 10
    with dg.DagsterInstance.ephemeral() as instance:
        sums.errors["b"] = DagsterExecutionInterruptedError()
        with pytest.raises(DagsterExecutionInterruptedError):
            sums.run(instance, forward=True, from_time=first)
        found = sums.newest()
        number = found.replay_id
        assert (found.state, sums.results()) == (StateReplayState.STOPPED, [2, 10])
        with pytest.raises(ReplayError, match=f"replay {number} of output sums is STOPPED.*forebay state resume"):
            sums.run(instance, forward=True, from_time=first)

        # As if the process had been killed: nothing stops the replay, and its attempt is not LOST yet.
        resume_state_replay(system.connection, number)
        with pytest.raises(dg.Failure, match=rf"is RUNNING: batch {re.escape(second)} was refused"):
            sums.run(instance, forward=True, from_time=first)
        assert sums.newest().state is StateReplayState.RUNNING
        system.connection.exec_driver_sql(
            "UPDATE forebay.batch_attempts SET state = 'LOST', ended_at = now() WHERE state = 'RUNNING'"
        )
        sums.errors["b"] = ValueError("no luck")
        said = rf"replay {number} of the state of output sums is STOPPED: batch .* ValueError: no luck"
        with pytest.raises(dg.Failure, match=said):
            sums.run(instance, forward=True, from_time=first)

        result = sums.run(instance, state_replay=number)
        run = instance.get_run_by_id(result.run_id)
    assert (sums.newest().replay_id, sums.newest().state) == (number, StateReplayState.COMPLETED)
    assert sums.results() == [10, 20]
    assert run is not None
    assert {key: value for key, value in run.tags.items() if key.startswith("forebay/")} == {
        "forebay/pipeline": "words",
        "forebay/kind": "replay",
        "forebay/state_replay": str(number),
        "forebay/replays_from": second,
        "forebay/replays_to": second,
        "forebay/replays": "1",
    }
    made = [
        event.step_materialization_data.materialization for event in result.all_events if event.is_step_materialization
    ]
    assert [
        (one.asset_key.path[-1], one.metadata["batch_time"].value) for one in made if one.asset_key.path[-1] == "sums"
    ] == [("sums", second)]


@pytest.mark.parametrize(
    ("config", "error", "said"),
    [
        ({"forward": True}, ReplayError, "needs from_time"),
        ({"forward": True, "from_time": "2026-01-01", "outputs": ["other"]}, ReplayError, "name one of sums"),
        ({"state_replay": 7}, DriverLogError, "there is no replay 7"),
    ],
)
def test_what_can_not_be_done_is_refused_by_name(
    system: System, config: dict[str, Any], error: type[Exception], said: str
) -> None:
    with dg.DagsterInstance.ephemeral() as instance, pytest.raises(error, match=said):
        Sums(system).run(instance, **config)
