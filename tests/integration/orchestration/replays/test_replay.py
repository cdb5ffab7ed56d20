"""Test running a finished batch again with its own blocks: outputs are replaced, and a failure changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import Batch, ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.declarations.apply import apply
from orchestration.declarations.sink import unchecked
from tests.support.driver_log.attempts import fail_batch
from tests.support.driver_log.log import oldest_unfinished_batch
from tracker_store.batches import batches
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.errors import BatchHeldError, BlocksNotRetainedError
from tracker_store.schema.states import AttemptFailure, AttemptKind, AttemptState, BatchState

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Check, OutputAttempt, Written
    from tests.support.spark.batch_rig import System

STATS = sa.text(
    "SELECT pipeline_id, batch_time, state, attempt, kind, run_id, completed_at, processing_time "
    "FROM forebay.batch_stats ORDER BY batch_time"
)
pytestmark = pytest.mark.spark


def pipeline_id(system: System) -> int:
    return get_pipeline(system.connection, "words").pipeline_id


def attempts(system: System, time: datetime) -> list[tuple[int, AttemptKind, AttemptState]]:
    return [
        (row.attempt, row.kind, row.state)
        for row in batches.attempts_of_batch(system.connection, pipeline_id(system), time)
    ]


class Sayings:
    """An output function that adds a word to each line, or fails."""

    def __init__(self, word: str = "first") -> None:
        self.word = word
        self.broken = False

    def __call__(self, lines: DataFrame) -> DataFrame:
        if self.broken:
            raise RuntimeError("no luck")
        return lines.selectExpr(f"concat(value, ' {self.word}') AS value")


def declared(system: System, says: Sayings, sink: ParquetSink | None = None, *, max_attempts: int = 1) -> Pipeline:
    def output(lines: DataFrame) -> DataFrame:
        return says(lines)

    return system.declare(output, sink, max_attempts=max_attempts)


def test_a_replay_replaces_the_output_and_leaves_the_batch_as_it_was(system: System) -> None:
    says = Sayings()
    pipeline = declared(system, says)
    system.receive(["a"], ["b"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    system.receive(["later"])
    before = system.connection.execute(STATS).all()
    says.word = "second"
    [result] = system.replay(pipeline, time)
    assert system.published() == ["a second", "b second"]
    assert (result.attempt, result.rows) == (2, 2)
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert system.connection.execute(STATS).all() == before
    assert attempts(system, time) == [
        (1, AttemptKind.RUN, AttemptState.SUCCEEDED),
        (2, AttemptKind.REPLAY, AttemptState.SUCCEEDED),
    ]
    system.replay(pipeline, time, run_id="again")
    assert system.published() == ["a second", "b second"]


def test_a_failed_replay_leaves_state_and_output(system: System) -> None:
    says = Sayings()
    pipeline = declared(system, says)
    system.receive(["a"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    says.broken = True
    with pytest.raises(RuntimeError, match="no luck"):
        system.replay(pipeline, time)
    assert system.published() == ["a first"]
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert attempts(system, time)[1] == (2, AttemptKind.REPLAY, AttemptState.FAILED)
    says.broken = False
    system.replay(pipeline, time)


def test_w10_a_quarantined_batch_comes_out_by_replay_after_its_blocks_were_cleaned_up(system: System) -> None:
    says = Sayings()
    pipeline = declared(system, says)
    system.receive(["a"], ["b"])
    time = system.allocate(1)
    says.broken = True
    with pytest.raises(RuntimeError):
        system.run(pipeline, time, 1)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    says.broken = False
    system.receive(["later"])
    system.run(pipeline, system.allocate(2), 1)
    system.receive(["newest"])
    assert system.clean_up() > 0
    system.replay(pipeline, time)
    assert system.published() == ["a first", "b first", "later first"]
    assert system.state(time) == (BatchState.COMPLETED, 2)
    assert system.connection.execute(sa.text("SELECT count(*) FROM forebay.kept_blocks")).scalar_one() == 0


def test_blocks_that_are_gone_refuse_the_replay_by_name_before_anything_is_written(system: System) -> None:
    pipeline = declared(system, Sayings())
    system.receive(["a"], ["b"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    system.receive(["later"])
    assert system.clean_up() > 0
    with pytest.raises(
        BlocksNotRetainedError,
        match=r"of its 2 records, 2 were cleaned up.*retention",
    ):
        system.replay(pipeline, time)
    assert attempts(system, time) == [(1, AttemptKind.RUN, AttemptState.SUCCEEDED)]
    assert system.published() == ["a first", "b first"]


def test_an_attempt_that_can_not_read_its_whole_batch_writes_nothing(system: System) -> None:
    """Check this because the rest of a batch is not the batch, whatever has taken a block."""
    pipeline = declared(system, Sayings())
    system.receive(["a"], ["b"])
    time = system.allocate(1)
    system.connection.execute(sa.text("DELETE FROM forebay.blocks WHERE sequence = 2"))
    with pytest.raises(BlocksNotRetainedError, match=r"of its 2 records of stream \d+, 1 are no longer"):
        system.run(pipeline, time, 1)
    assert system.published() == []
    assert attempts(system, time) == [(1, AttemptKind.RUN, AttemptState.FAILED)]
    with pytest.raises(Exception, match="are no longer in the driver log"):
        system.session.read.format("forebay").option("database_url", system.settings.require_database_url()).option(
            "pipeline", "words"
        ).option("batch_time", time.isoformat()).option("stream", "lines").load().count()


def test_some_outputs_are_replayed_and_one_that_is_new_is_back_filled(system: System) -> None:
    says = Sayings()
    pipeline = declared(system, says)
    system.receive(["a"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    lengths = system.output.with_name("lengths")

    @pipeline.output(inputs=pipeline.streams, sink=ParquetSink(lengths))
    def lengths_of(lines: DataFrame) -> DataFrame:
        return lines.selectExpr("length(value) AS length")

    apply(system.connection, [pipeline])
    says.broken = True
    [result] = system.replay(pipeline, time, "lengths_of")
    assert (result.output, result.rows) == ("lengths_of", 1)
    assert ds.dataset(lengths, format="parquet").to_table()["length"].to_pylist() == [1]
    found = commits_of_batch(system.connection, pipeline_id(system), time)
    assert {commit.output: commit.attempt for commit in found} == {"counts": 1, "lengths_of": 2}


def test_a_quarantined_batch_keeps_the_whole_of_its_window(system: System) -> None:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    pipeline = Pipeline("words", interval="1h", max_attempts=1)
    broken = [False]

    @pipeline.output(inputs=[lines.window("2h")], sink=ParquetSink(system.output), name="counts")
    def counts(lines: DataFrame) -> DataFrame:
        if broken[0]:
            raise RuntimeError("no luck")
        return lines

    apply(system.connection, [pipeline])
    for hour, value in enumerate("abc", start=1):
        system.receive([value])
        time = system.allocate(hour)
        broken[0] = value == "c"
        if not broken[0]:
            system.run(pipeline, time, 1)
    with pytest.raises(RuntimeError):
        system.run(pipeline, time, 1)
    broken[0] = False
    system.receive(["newest"])
    system.run(pipeline, system.allocate(4), 1)
    system.receive(["after"])
    assert system.clean_up() > 0
    [own] = system.connection.execute(
        sa.text("SELECT count(*) FROM forebay.batch_blocks WHERE batch_time = :t AND kept"), {"t": time}
    ).scalars()
    assert own == 1
    system.replay(pipeline, time)
    [directory] = system.output.glob(f"date=*/hour=*/batch_time={time:%Y%m%dT%H%M%S}Z")
    assert sorted(ds.dataset(directory, format="parquet").to_table()["value"].to_pylist()) == ["b", "c"]


class Killed(BaseException):
    """An exception that stands for a kill of the process: nothing runs after it, and the driver log gets no report."""


class DiesAt(ParquetSink):
    """A sink that dies at one step, on request."""

    step = ""

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        if self.step == "before writing":
            raise Killed
        written = super().write(result, attempt)
        if self.step == "after writing":
            raise Killed
        return written

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        if self.step == "before publishing":
            raise Killed
        super().publish(location, batch_time=batch_time, check=check)
        if self.step == "after publishing":
            raise Killed


@pytest.mark.parametrize("step", ["before writing", "after writing", "before publishing", "after publishing"])
def test_a_replay_that_is_killed_at_any_step_leaves_a_whole_output_and_the_next_one_replaces_it(
    system: System, step: str
) -> None:
    says = Sayings()
    sink = DiesAt(system.output)
    pipeline = declared(system, says, sink)
    system.receive(["a"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    says.word, sink.step = "second", step
    with pytest.raises(Killed):
        system.replay(pipeline, time)
    assert system.published() == (["a second"] if step == "after publishing" else ["a first"])
    assert system.state(time) == (BatchState.COMPLETED, 1)
    sink.step = ""
    with pytest.raises(BatchHeldError, match="is running in run replay"):
        system.replay(pipeline, time, run_id="too early")
    # The tracker does this when the process's heartbeat has stopped.
    [lost] = batches.attempts_of_ended_processes(system.connection)
    assert (
        fail_batch(
            system.connection,
            lost.pipeline_id,
            lost.batch_time,
            lost.attempt,
            run_id=lost.run_id,
            error="the process ended",
            max_attempts=1,
            pauses=None,
            failure=AttemptFailure.LOST,
        )
        is BatchState.COMPLETED
    )
    assert system.state(time) == (BatchState.COMPLETED, 1)
    says.word = "third"
    system.replay(pipeline, time, run_id="next")
    assert system.published() == ["a third"]


def test_a_replay_launched_again_under_its_run_resumes(system: System) -> None:
    says = Sayings()
    sink = DiesAt(system.output)
    pipeline = declared(system, says, sink)
    system.receive(["a"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    says.word, sink.step = "second", "before publishing"
    with pytest.raises(Killed):
        system.replay(pipeline, time, run_id="same")
    says.broken, sink.step = True, ""
    [result] = system.replay(pipeline, time, run_id="same")
    assert (result.attempt, system.published()) == (2, ["a second"])


def test_a_zombie_replay_is_refused_when_a_newer_attempt_holds_the_batch(system: System) -> None:
    """Check that a replay is refused when it is declared lost while it computes, and another one completes."""
    says = Sayings()
    inner = Sayings("newer")

    def output(lines: DataFrame, batch: Batch) -> DataFrame:
        if batch.attempt == 2:
            fail_batch(system.connection, pipeline_id(system), batch.time, 2, run_id="zombie", error="lost")
            system.replay(pipeline, batch.time, run_id="newer")
        return inner(lines) if batch.attempt == 3 else says(lines)

    pipeline = system.declare(output)
    system.receive(["a"])
    time = system.allocate(1)
    system.run(pipeline, time, 1)
    with pytest.raises(Exception, match="a newer attempt holds the batch"):
        system.replay(pipeline, time, run_id="zombie")
    assert system.published() == ["a newer"]
    assert [state for _, _, state in attempts(system, time)] == [
        AttemptState.SUCCEEDED,
        AttemptState.FAILED,
        AttemptState.SUCCEEDED,
    ]


def test_an_unavailable_store_blocks_the_batch_and_uses_no_attempt(system: System) -> None:
    pipeline = declared(system, Sayings(), max_attempts=2)
    system.receive(["a"])
    time = system.allocate(1)
    root = Path(system.settings.block_store_roots)
    away = root.rename(root.with_name("unmounted"))
    for attempt in (1, 2, 3):
        with pytest.raises(Exception, match="can't be reached"):
            system.run(pipeline, time, attempt)
        assert system.state(time) == (BatchState.BLOCKED, attempt)
    batch = oldest_unfinished_batch(system.connection, pipeline_id(system))
    assert batch is not None
    assert batch.reason.startswith("the block store")
    assert batch.retry_at is not None
    away.rename(root)
    system.run(pipeline, time, 4)
    assert system.state(time) == (BatchState.COMPLETED, 4)
    assert system.published() == ["a first"]


def test_a_refused_replay_starts_no_spark(system: System) -> None:
    pipeline = declared(system, Sayings())
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(BatchHeldError, match="is ALLOCATED, and only one that is COMPLETED or QUARANTINED"):
        system.replay(pipeline, time)
