"""Test batches of which an output fails, on real local Spark: the others are committed, and only it is tried again."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa

from forebay import Batch, EnvVar, ParquetSink, Pipeline, PostgresSink, Stream
from forebay.sources import SocketText
from orchestration.batches.attempt_outputs import OutputResult, OutputsFailedError, running_outputs
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.declarations.apply import apply
from tests.support.driver_log.attempts import fail_batch
from tests.support.machine.held_ports import held_port
from tests.support.polling import eventually
from tracker_store.batches import batches
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.errors import AttemptSupersededError, DriverLogUnavailableError
from tracker_store.schema.states import AttemptFailure, AttemptState, BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from tests.integration.orchestration.target_database import Target
    from tests.support.spark.batch_rig import System

pytestmark = pytest.mark.spark


class Killed(BaseException):
    """Stands for a kill of the process: nothing runs after it, and the driver log gets no report."""


class Outputs:
    """A pipeline `words` with outputs that count their calls, and do first what `before` says of them."""

    def __init__(
        self,
        system: System,
        *names: str,
        sinks: Mapping[str, PostgresSink] | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> None:
        self.system = system
        self.calls: list[str] = []
        self.before: dict[str, Callable[[DataFrame], DataFrame | None]] = {}
        self.reported: list[OutputResult] = []
        self.pipeline = Pipeline("words", interval="1h", **settings)
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        for name in names:
            sink = (sinks or {}).get(name) or ParquetSink(self.path(name))
            self.pipeline.output(inputs=[lines], sink=sink, name=name)(self._function(name))
        apply(system.connection, [self.pipeline])

    def path(self, name: str) -> Path:
        return self.system.output / name

    def _function(self, name: str) -> Callable[..., DataFrame]:
        def output(lines: DataFrame, batch: Batch) -> DataFrame:
            self.calls.append(f"{name} {batch.attempt}")
            does = self.before.get(name)
            return (does(lines) if does is not None else None) or lines

        return output

    def fails(self, name: str, error: BaseException) -> None:
        def does(_: DataFrame) -> None:
            raise error

        self.before[name] = does

    def run(self, time: datetime, attempt: int) -> list[OutputResult]:
        return run_batch(
            self.pipeline,
            batch_time=time,
            attempt=attempt,
            run_id=f"run{attempt}",
            settings=self.system.settings,
            session=lambda: self.system.session,
            on_committed=self.reported.append,
        )

    def replay(self, time: datetime, *, failed_outputs_only: bool) -> list[OutputResult]:
        return replay_batch(
            self.pipeline,
            batch_time=time,
            failed_outputs_only=failed_outputs_only,
            run_id="replay",
            settings=self.system.settings,
            session=lambda: self.system.session,
            on_committed=self.reported.append,
        )

    def published(self, name: str) -> list[str]:
        if not list(self.path(name).glob("date=*")):
            return []
        table = ds.dataset(self.path(name), partitioning="hive", format="parquet").to_table()
        return sorted(table["value"].to_pylist())

    def files(self, name: str) -> dict[str, int]:
        """Return the published files with the times of their last change."""
        return {str(file): file.stat().st_mtime_ns for file in self.path(name).glob("date=*/**/*.parquet")}

    def commits(self, time: datetime) -> dict[str, int]:
        pipeline_id = get_pipeline(self.system.connection, "words").pipeline_id
        return {row.output: row.attempt for row in commits_of_batch(self.system.connection, pipeline_id, time)}

    def attempts(self, time: datetime) -> list[AttemptState]:
        pipeline_id = get_pipeline(self.system.connection, "words").pipeline_id
        return [row.state for row in batches.attempts_of_batch(self.system.connection, pipeline_id, time)]

    def reason(self, time: datetime) -> str:
        row = batches.get_batch(self.system.connection, get_pipeline(self.system.connection, "words").pipeline_id, time)
        assert row is not None
        return row.reason

    def bury(self) -> None:
        """Fail the attempt that runs as the tracker does when its process's heartbeat has stopped."""
        [lost] = batches.attempts_of_ended_processes(self.system.connection)
        fail_batch(
            self.system.connection,
            lost.pipeline_id,
            lost.batch_time,
            lost.attempt,
            run_id=lost.run_id,
            error="the process ended",
            max_attempts=1,
            pauses=None,
            failure=AttemptFailure.LOST,
        )


def test_m02_the_second_of_two_outputs_is_committed_where_the_first_fails(system: System) -> None:
    outputs = Outputs(system, "counts", "totals")
    outputs.fails("counts", ValueError("no number: 'x'"))
    system.receive(["a"], ["b"])
    time = system.allocate(1)
    with pytest.raises(OutputsFailedError, match="1 of 2 outputs failed: counts: ValueError: no number: 'x'"):
        outputs.run(time, 1)
    assert system.state(time) == (BatchState.FAILED, 1)
    assert outputs.reason(time) == "1 of 2 outputs failed: counts: ValueError: no number: 'x'"
    assert (outputs.commits(time), outputs.published("totals")) == ({"totals": 1}, ["a", "b"])
    assert [(result.output, result.attempt) for result in outputs.reported] == [("totals", 1)]
    before = outputs.files("totals")
    with pytest.raises(OutputsFailedError):
        outputs.run(time, 2)
    outputs.before.clear()
    results = outputs.run(time, 3)
    assert outputs.calls == ["counts 1", "totals 1", "counts 2", "counts 3"]
    assert system.state(time) == (BatchState.COMPLETED, 3)
    assert outputs.commits(time) == {"totals": 1, "counts": 3}
    assert outputs.published("counts") == ["a", "b"]
    assert outputs.files("totals") == before, "it was written again"
    assert [(result.output, result.attempt, result.committed_by) for result in results] == [
        ("counts", 3, None),
        ("totals", 1, "run1"),
    ]
    failures = system.connection.execute(
        sa.text("SELECT attempt, output, failure, error FROM forebay.output_failures ORDER BY attempt")
    ).all()
    assert [tuple(row) for row in failures] == [
        (attempt, "counts", "FAILED", "ValueError: no number: 'x'") for attempt in (1, 2)
    ]


def test_outputs_whose_target_is_unavailable_hold_up_no_other_and_are_not_each_tried(
    system: System, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = {"records": "TARGET_URL", "items": "TARGET_URL", "secret": "OTHER_URL"}
    sinks = {name: PostgresSink(EnvVar(url), name) for name, url in urls.items()}
    outputs = Outputs(system, *sinks, "files", sinks=sinks)
    system.receive(["a"])
    time = system.allocate(1)
    monkeypatch.delenv("OTHER_URL", raising=False)
    with held_port() as port:
        monkeypatch.setenv("TARGET_URL", f"postgresql://u@127.0.0.1:{port}/d")
        with pytest.raises(OutputsFailedError):
            outputs.run(time, 1)
    assert (system.state(time), outputs.attempts(time)) == ((BatchState.BLOCKED, 1), [AttemptState.BLOCKED])
    reason = outputs.reason(time).partition("\n")[0]
    assert reason.startswith(
        "2 of 4 outputs failed (not run: items): records: output 'records' of pipeline 'words': no connection"
    )
    assert "; secret: output 'secret' of pipeline 'words': " in reason
    assert (outputs.commits(time), outputs.published("files")) == ({"files": 1}, ["a"])
    before = outputs.files("files")
    for url in ("TARGET_URL", "OTHER_URL"):
        monkeypatch.setenv(url, target.url)
    outputs.run(time, 2)
    assert outputs.calls == ["files 1", "records 2", "items 2", "secret 2"]
    assert outputs.attempts(time) == [AttemptState.BLOCKED, AttemptState.SUCCEEDED]
    assert outputs.files("files") == before
    assert [target.rows(f"SELECT value FROM {name}") for name in sinks] == [[("a",)]] * 3


def test_a_failure_in_a_spark_task_is_one_outputs_too(system: System) -> None:
    outputs = Outputs(system, "counts", "totals", max_attempts=1)
    outputs.before["counts"] = lambda lines: lines.selectExpr(
        "CASE WHEN value = 'a' THEN raise_error('bad word') ELSE value END AS value"
    )
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(OutputsFailedError, match="bad word"):
        outputs.run(time, 1)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    assert outputs.reason(time).startswith("partially committed (only totals): 1 of 2 outputs failed: counts: ")
    assert outputs.published("totals") == ["a"]


def test_m02_a_replay_of_failed_outputs_writes_nothing_of_the_others_again(system: System) -> None:
    outputs = Outputs(system, "counts", "totals", max_attempts=1)
    outputs.fails("counts", ValueError("x"))
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(OutputsFailedError):
        outputs.run(time, 1)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    system.receive(["later"])
    outputs.before.clear()
    outputs.run(system.allocate(2), 1)
    system.receive(["newest"])
    assert system.clean_up() > 0
    before = outputs.files("totals")
    outputs.calls.clear()
    outputs.fails("counts", ValueError("still"))
    with pytest.raises(OutputsFailedError):
        outputs.replay(time, failed_outputs_only=True)
    assert system.state(time) == (BatchState.QUARANTINED, 1)
    outputs.before.clear()
    outputs.reported.clear()
    outputs.replay(time, failed_outputs_only=True)
    assert outputs.calls == ["counts 2", "counts 3"]
    assert outputs.files("totals") == before
    assert outputs.commits(time) == {"totals": 1, "counts": 3}
    assert system.state(time) == (BatchState.COMPLETED, 3)
    assert outputs.published("counts") == ["a", "later"]
    assert [(result.output, result.committed_by) for result in outputs.reported] == [
        ("totals", "run1"),
        ("counts", None),
    ]


def test_a_batch_whose_outputs_all_have_a_result_is_completed_without_computing_one(system: System) -> None:
    """Check a batch that was quarantined because a result could not be published, or whose target had the commit."""
    outputs = Outputs(system, "counts", "totals", max_attempts=1)
    outputs.fails("totals", ValueError("x"))
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(OutputsFailedError):
        outputs.run(time, 1)
    system.connection.execute(
        sa.text(
            "INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location, rows) "
            "SELECT pipeline_id, 'totals', batch_time, attempt, location, rows FROM forebay.output_commits"
        )
    )
    outputs.calls.clear()
    results = outputs.replay(time, failed_outputs_only=True)
    assert (outputs.calls, system.state(time)) == ([], (BatchState.COMPLETED, 2))
    assert [result.seconds for result in results] == [None, None]


def test_an_attempt_killed_between_two_outputs_is_continued_with_the_second(system: System) -> None:
    outputs = Outputs(system, "counts", "totals")
    outputs.fails("totals", Killed())
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(Killed):
        outputs.run(time, 1)
    outputs.bury()
    outputs.before.clear()
    outputs.run(time, 2)
    assert outputs.calls == ["counts 1", "totals 1", "totals 2"]
    assert outputs.attempts(time) == [AttemptState.LOST, AttemptState.SUCCEEDED]
    assert outputs.commits(time) == {"counts": 1, "totals": 2}


def test_an_output_that_kills_its_process_holds_up_those_after_it_for_two_attempts(system: System) -> None:
    outputs = Outputs(system, "counts", "totals", "words")
    outputs.fails("counts", Killed())
    system.receive(["a"])
    time = system.allocate(1)
    for attempt in (1, 2, 3):
        with pytest.raises(Killed):
            outputs.run(time, attempt)
        outputs.bury()
    assert outputs.calls == ["counts 1", "counts 2", "totals 3", "words 3", "counts 3"]
    assert outputs.commits(time) == {"totals": 3, "words": 3}


def test_an_attempt_that_was_superseded_runs_no_other_output(system: System) -> None:
    outputs = Outputs(system, "counts", "totals")

    def superseded(_: DataFrame) -> None:
        fail_batch(
            system.connection,
            get_pipeline(system.connection, "words").pipeline_id,
            at,
            run_id="run1",
            error="lost",
            pauses=None,
            failure=AttemptFailure.LOST,
        )

    outputs.before["counts"] = superseded
    system.receive(["a"])
    at = system.allocate(1)
    with pytest.raises(OutputsFailedError, match="not run: totals") as raised:
        outputs.run(at, 1)
    assert isinstance(raised.value.__cause__, AttemptSupersededError)
    assert (outputs.calls, outputs.commits(at)) == (["counts 1"], {})
    outputs.before.clear()
    outputs.run(at, 2)
    assert outputs.commits(at) == {"counts": 2, "totals": 2}


def test_m02_outputs_run_at_the_same_time_in_the_job_group_of_their_run(system: System) -> None:
    outputs = Outputs(system, "counts", "totals", "words", concurrent_outputs=3)
    together = threading.Barrier(3, timeout=60)
    context = system.session.sparkContext
    seen: list[tuple[str | None, bool]] = []

    def does(_: DataFrame) -> None:
        from pyspark.sql import SparkSession as Session  # noqa: PLC0415  as a user's function may

        together.wait(60)
        seen.append((context.getLocalProperty("spark.jobGroup.id"), Session.getActiveSession() is not None))

    outputs.before = dict.fromkeys(("counts", "totals", "words"), does)
    context.setJobGroup("the run", "its description", interruptOnCancel=True)
    try:
        system.receive(["a"], ["b"])
        time = system.allocate(1)
        results = outputs.run(time, 1)
        assert context.getLocalProperty("spark.job.description") == "its description"
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type] # None unsets it
        context.setLocalProperty("spark.job.description", None)  # type: ignore[arg-type]
        context.setInterruptOnCancel(False)
    assert seen == [("the run", True)] * 3
    assert [result.output for result in results] == ["counts", "totals", "words"]
    assert system.state(time) == (BatchState.COMPLETED, 1)
    assert [outputs.published(name) for name in ("counts", "totals", "words")] == [["a", "b"]] * 3


def test_a_failing_output_holds_up_none_that_runs_beside_it(system: System) -> None:
    outputs = Outputs(system, "counts", "totals", "words", concurrent_outputs=2)
    outputs.fails("counts", ValueError("x"))
    system.receive(["a"])
    time = system.allocate(1)
    with pytest.raises(OutputsFailedError, match="1 of 3 outputs failed"):
        outputs.run(time, 1)
    assert outputs.commits(time) == {"totals": 1, "words": 1}
    outputs.before.clear()
    outputs.run(time, 2)
    assert outputs.commits(time) == {"totals": 1, "words": 1, "counts": 2}
    assert sorted(outputs.calls) == ["counts 1", "counts 2", "totals 1", "words 1"]


def test_an_attempt_that_is_over_cancels_the_spark_jobs_of_its_other_outputs(system: System) -> None:
    outputs = Outputs(system, "counts", "totals", concurrent_outputs=2)
    running = system.output.with_name("running")

    def slow(batches_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        open(str(running), "w").close()  # noqa: PTH123  in Spark's worker
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            time.sleep(0.05)
        yield from batches_

    def superseded(_: DataFrame) -> None:
        eventually(running.exists, "the other output's job runs")
        raise AttemptSupersededError("the batch is RUNNING at attempt 2")

    outputs.before = {"counts": superseded, "totals": lambda lines: lines.mapInArrow(slow, "value string")}
    system.receive(["a"])
    at = system.allocate(1)
    began = time.monotonic()
    with pytest.raises(OutputsFailedError, match="not run: totals"):
        outputs.run(at, 1)
    assert time.monotonic() - began < 200, "it waited for the job's own end"
    assert outputs.commits(at) == {}


def test_an_output_that_hangs_does_not_keep_the_attempts_failure_from_being_recorded(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check also that what the output does after that has no effect: a newer attempt has its number."""
    monkeypatch.setattr("orchestration.batches.attempt_outputs.OVER_SECONDS", 1.0)
    outputs = Outputs(system, "counts", "totals", concurrent_outputs=2)
    hangs, for_ever = threading.Event(), threading.Event()

    def hang(_: DataFrame) -> None:
        hangs.set()
        assert for_ever.wait(300)

    def unavailable(_: DataFrame) -> None:
        assert hangs.wait(60)
        raise DriverLogUnavailableError("gone")

    outputs.before = {"counts": unavailable, "totals": hang}
    system.receive(["a"])
    at = system.allocate(1)
    try:
        with pytest.raises(OutputsFailedError, match="not run: totals"):
            outputs.run(at, 1)
        assert outputs.attempts(at) == [AttemptState.LOST]
        assert (
            system.connection.execute(
                sa.text("SELECT count(*) FROM forebay.processes WHERE ended_at IS NULL AND kind = 'BATCH_RUN'")
            ).scalar_one()
            == 0
        )
        outputs.before.clear()
        outputs.run(at, 2)
        assert running_outputs() == ["totals"]
    finally:
        for_ever.set()
    eventually(lambda: not running_outputs(), "the output ends")
    assert outputs.commits(at) == {"counts": 2, "totals": 2}
    assert outputs.published("totals") == ["a"]


def test_threads_leave_no_connection_to_the_jvm_behind(system: System) -> None:
    """Check this because a batch driver runs thousands of batches in one process."""
    outputs = Outputs(system, "counts", "totals", concurrent_outputs=2)
    gateway: Any = system.session.sparkContext._gateway
    connections = gateway._gateway_client.deque

    def run(hour: int) -> int:
        system.receive([str(hour)])
        outputs.run(system.allocate(hour), 1)
        return len(connections)

    first = run(1)
    assert max(run(hour) for hour in range(2, 6)) <= first + 1
