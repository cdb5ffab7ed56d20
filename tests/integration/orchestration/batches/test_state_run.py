"""Test outputs with a state on real local Spark: each batch reads what the one before has left, after any failure."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from forebay import DeclarationError, ParquetSink, Pipeline, State, Stream
from forebay.sources import SocketText
from orchestration.batches.stateful.state_run import StateWaitsError
from orchestration.declarations.apply import apply
from orchestration.declarations.sink import SinkError
from orchestration.replays.state_forward import replay_forward
from orchestration.sinks.parquet_names import batch_stamp
from tests.support.driver_log.attempts import fail_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_replays import (
    begin_state_replay,
    resume_state_replay,
    state_replay,
    undo_state_replay,
)
from tracker_store.connection.errors import StatefulReplayError
from tracker_store.schema.states import BatchState, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.spark.batch_rig import System

pytestmark = pytest.mark.spark

WORD, COUNT = "word STRING", "n BIGINT"


def words(lines: DataFrame) -> DataFrame:
    return lines.selectExpr("explode(split(value, ' ')) AS word")


def totals(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
    new = words(lines).groupBy("word").count()
    changed = new.join(state, "word", "left").selectExpr("word", "coalesce(n, 0) + count AS n")
    return changed.selectExpr("concat(word, ' ', n) AS value"), changed


def declare(
    system: System,
    function: Callable[..., Any] = totals,
    *,
    state: State | None = None,
    sink: ParquetSink | None = None,
    **settings: Any,  # noqa: ANN401
) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h", **settings)
    pipeline.output(
        inputs=[lines],
        sink=sink or ParquetSink(system.output),
        name="counts",
        state=state or State(WORD, COUNT, keys=words, buckets=4),
    )(function)
    apply(system.connection, [pipeline])
    return pipeline


def run(system: System, pipeline: Pipeline, hour: int, *lines: str) -> datetime:
    """Receive lines, and run the batch of an hour with them."""
    system.receive(lines)
    time = system.allocate(hour)
    system.run(pipeline, time, 1)
    return time


def of_batch(system: System, time: datetime) -> list[str]:
    """Return what readers see of one batch."""
    import pyarrow.dataset as ds  # noqa: PLC0415

    table = ds.dataset(system.output, partitioning="hive", format="parquet").to_table()
    return sorted(row["value"] for row in table.to_pylist() if batch_stamp(time) in str(row["batch_time"]))


def heads(system: System) -> list[tuple[Any, ...]]:
    rows = system.connection.execute(sa.text("SELECT batch_time, attempt FROM forebay.state_heads")).all()
    return [tuple(row) for row in rows]


def quarantine(system: System, time: datetime) -> None:
    fail_batch(
        system.connection,
        get_pipeline(system.connection, "words").pipeline_id,
        time,
        1,
        run_id="run1",
        error="bad",
        max_attempts=1,
        pauses=None,
    )
    assert system.state(time)[0] is BatchState.QUARANTINED


def test_a_total_runs_on_from_batch_to_batch_encrypted(system: System, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(base64.b64encode(bytes(32)).decode(), encoding="utf-8")
    system.use_keys(f"file:{key}")
    pipeline = declare(system)
    first = run(system, pipeline, 1, "a b a")
    second = run(system, pipeline, 2, "b c")
    third = run(system, pipeline, 3, "c")
    assert of_batch(system, first) == ["a 2", "b 1"]
    assert of_batch(system, second) == ["b 2", "c 1"]
    assert of_batch(system, third) == ["c 2"]
    assert heads(system) == [(third, 1)]


class Failing(ParquetSink):
    """A sink that takes nothing."""

    def write(self, result: DataFrame, attempt: object) -> Any:  # noqa: ANN401
        raise SinkError("the disk is full")


def test_a_version_without_a_commit_is_of_no_consequence(system: System) -> None:
    run(system, declare(system), 1, "a")
    broken = declare(system, sink=Failing(system.output), max_attempts=2)
    system.receive(["a b"])
    time = system.allocate(2)
    with pytest.raises(SinkError, match="full"):
        system.run(broken, time, 1)
    system.run(declare(system), time, 2)
    assert of_batch(system, time) == ["a 2", "b 1"]
    assert heads(system) == [(time, 2)]


def test_the_next_batch_waits_for_a_quarantined_one_until_it_is_replayed(system: System) -> None:
    pipeline = declare(system)
    run(system, pipeline, 1, "a")
    system.receive(["a b"])
    bad = system.allocate(2)
    quarantine(system, bad)
    system.receive(["b"])
    time = system.allocate(3)
    with pytest.raises(StateWaitsError, match=re.escape(f"replay words {bad.isoformat()}`") + ".*discard"):
        system.run(pipeline, time, 1)
    assert system.state(time)[0] is BatchState.BLOCKED
    system.replay(pipeline, bad)
    assert of_batch(system, bad) == ["a 2", "b 1"]
    system.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
    system.run(pipeline, time, 2)
    assert of_batch(system, time) == ["b 2"]


def test_with_skip_the_next_batch_goes_on_from_the_state_before(system: System) -> None:
    pipeline = declare(system, state=State(WORD, COUNT, keys=words, on_failure="skip"))
    run(system, pipeline, 1, "a")
    system.receive(["a b"])
    bad = system.allocate(2)
    quarantine(system, bad)
    time = run(system, pipeline, 3, "a")
    assert of_batch(system, time) == ["a 2"]
    with pytest.raises(StatefulReplayError, match="--forward"):
        system.replay(pipeline, bad)


def test_a_replay_forward_replaces_each_later_batch_and_can_be_undone(system: System) -> None:
    pipeline = declare(system)
    first = run(system, pipeline, 1, "a")
    second = run(system, pipeline, 2, "a b")
    third = run(system, pipeline, 3, "a b")
    with pytest.raises(StatefulReplayError, match="--forward"):
        system.replay(pipeline, second)

    def twice(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        return totals(lines.union(lines), state)

    changed = declare(system, twice)
    pipeline_id = get_pipeline(system.connection, "words").pipeline_id
    number = begin_state_replay(system.connection, pipeline_id=pipeline_id, output="counts", from_time=second)
    replays = replay_forward(
        changed, number, run_id="forward", settings=system.settings, session=lambda: system.session
    )
    assert next(replays).error == ""
    replays.close()
    assert state_replay(system.connection, number).state is StateReplayState.STOPPED
    assert (of_batch(system, second), of_batch(system, third)) == (["a 3", "b 2"], ["a 3", "b 2"])
    system.receive(["a"])
    fourth = system.allocate(4)
    with pytest.raises(StateWaitsError, match=f"waits for replay {number}"):
        system.run(changed, fourth, 1)

    def go_on(pipeline: Pipeline) -> None:
        done = replay_forward(
            pipeline, number, run_id="forward", settings=system.settings, session=lambda: system.session
        )
        assert [replayed.error for replayed in done if replayed.error] == []

    resume_state_replay(system.connection, number)
    go_on(changed)
    assert [of_batch(system, time) for time in (first, second, third)] == [["a 1"], ["a 3", "b 2"], ["a 5", "b 4"]]
    undo_state_replay(system.connection, number)
    go_on(declare(system))
    assert [of_batch(system, time) for time in (second, third)] == [["a 2", "b 1"], ["a 3", "b 2"]]
    assert state_replay(system.connection, number).state is StateReplayState.UNDONE
    system.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
    system.run(declare(system), fourth, 2)
    assert of_batch(system, fourth) == ["a 4"]


def test_a_key_expires_in_an_interval_without_records(system: System) -> None:
    def seen(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        changed = words(lines).groupBy("word").count().selectExpr("word", "count AS n")
        return state.where("is_expired").selectExpr("concat(word, ' is gone') AS value"), changed

    pipeline = declare(system, seen, state=State(WORD, COUNT, keys=words, ttl="2h"))
    run(system, pipeline, 1, "a b")
    run(system, pipeline, 2, "b")
    time = system.allocate(3)
    assert system.state(time)[0] is BatchState.ALLOCATED
    system.run(pipeline, time, 1)
    assert of_batch(system, time) == ["a is gone"]
    assert system.state(system.allocate(4))[0] is BatchState.ALLOCATED


def test_a_state_begins_with_another_systems_and_is_migrated(system: System) -> None:
    def initial(session: SparkSession) -> DataFrame:
        return session.createDataFrame([("a", 10), ("b", 20)], f"{WORD}, {COUNT}")

    run(system, declare(system, state=State(WORD, COUNT, keys=words, initial=initial)), 1, "a c")
    with pytest.raises(DeclarationError, match="raise version=2 and give migrate="):
        declare(system, state=State(WORD, "n STRING", keys=words))
    state = State(
        WORD,
        "n STRING",
        keys=words,
        version=2,
        migrate=lambda state: state.selectExpr("word", "CAST(n AS STRING) AS n"),
    )

    def longer(lines: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        changed = words(lines).distinct().join(state, "word", "left").selectExpr("word", "concat(n, '!') AS n")
        return changed.selectExpr("concat(word, ' ', n) AS value"), changed

    time = run(system, declare(system, longer, state=state), 2, "a")
    assert of_batch(system, time) == ["a 11!"]
    assert of_batch(system, run(system, declare(system, longer, state=state), 3, "b a c")) == [
        "a 11!!",
        "b 20!",
        "c 1!",
    ]
