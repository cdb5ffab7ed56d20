"""Run a batch of an output with a state, or a replay forward, and kill or pause this process at a step.

No Spark: tasks run in this process (`state_without_spark.py`). A test forks it, and runs the next attempt itself.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from forebay import EnvVar, ParquetSink, Pipeline, PostgresSink, State, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import run_batch
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import Step, unchecked
from orchestration.replays.state_forward import replay_forward
from orchestration.state.state_segments import StateSegment
from receiver_runtime.block_store.frames.columns import arrow_schema
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words
from tests.integration.orchestration.state_without_spark import Given, without_spark
from tracker_store.batches import batches, outputs, state_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import Check

HOUR = timedelta(hours=1)
BUCKETS = 3
STATE = State("word STRING", "n BIGINT", buckets=BUCKETS)
#: How often each word comes, by hour.
COUNTS = {
    1: {"a": 1, "b": 2},
    2: {"a": 2, "c": 1, "d": 4},
    3: {"a": 3, "b": 1, "d": 2},
    4: {"b": 1, "c": 5},
}

# The steps of a run, in order, with those of the sinks between them.
STATE_STEPS = (
    "before the version's row",
    "after the version's row",
    "a frame is written",
    "a task has written its frames",
    "before the version is noted",
    "after the version is noted",
)
BEFORE_COMMIT, COMMITTED = "before the commit's row", "after the commit's row"
PUBLISHING, PUBLISHED, COMPLETED = "before it is published", "after it is published", "after the batch is completed"


@dataclass(frozen=True, slots=True)
class Run:
    """Say what a process does, and where it ends, or is paused.

    `factor` is what each word counts for, so that results and states of two attempts differ. `replay`: go on with this
    replay forward. `hour` is the batch's, or that of the replay's batch at which `step` is meant.
    """

    home: str
    url: str
    sink: str
    begin: str
    hour: int
    attempt: int = 1
    factor: int = 1
    replay: int | None = None
    step: str = ""
    pauses: bool = False

    def at(self, hour: int) -> datetime:
        """Return the batch of an hour."""
        return datetime.fromisoformat(self.begin) + hour * HOUR

    @property
    def settings(self) -> Settings:
        return Settings(home=Path(self.home), database_url=self.url)


class _Step:
    """End or pause this process when it first gets to a step of a batch."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._step = run.step
        self.time: datetime | None = None

    def reached(self, step: str) -> None:
        if step and step == self._step and self.time == self._run.at(self._run.hour):
            self._step = ""
            os.kill(os.getpid(), signal.SIGSTOP if self._run.pauses else signal.SIGKILL)


class _InTable(PostgresSink):
    on_step: Callable[[str], None]

    def reached(self, step: Step) -> None:
        self.on_step(step)

    def publish(self, location: str, *, batch_time: datetime, check: object = None) -> None:
        self.on_step(PUBLISHING)


class _InFiles(ParquetSink):
    on_step: Callable[[str], None]

    def reached(self, step: Step) -> None:
        self.on_step(step)

    def publish(self, location: str, *, batch_time: datetime, check: Check = unchecked) -> None:
        self.on_step(PUBLISHING)
        super().publish(location, batch_time=batch_time, check=check)
        self.on_step(PUBLISHED)


def declare(run: Run, step: _Step | None = None) -> Pipeline:
    """Declare the pipeline `words`, whose only output is the total of each word that occurs."""
    step = step or _Step(run)
    pipeline = Pipeline("words", interval="1h", max_attempts=50)
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
    sink = _InTable(EnvVar("TARGET_URL"), "counts") if run.sink == "postgres" else _InFiles(Path(run.home) / "output")
    sink.on_step = step.reached

    def hour() -> int:
        assert step.time is not None
        return (step.time - datetime.fromisoformat(run.begin)) // HOUR

    def keys(_: DataFrame) -> Any:  # noqa: ANN401  as Spark's
        return Given(pa.table({"word": list(COUNTS[hour()])}))

    def counts(lines: DataFrame, state: list[dict[str, Any]]) -> tuple[DataFrame, Any]:
        del lines
        before = {row["c0"]: row["c1"] for row in state}
        totals = {word: before.get(word, 0) + run.factor * n for word, n in COUNTS[hour()].items()}
        changes = pa.Table.from_pylist(
            [{"word": word, "n": n} for word, n in totals.items()], schema=arrow_schema(STATE.schema.arrow_columns())
        )
        return words(*((f"{hour()} {word}", n) for word, n in totals.items())), Given(changes)

    state = State("word STRING", "n BIGINT", keys=keys, buckets=BUCKETS)
    pipeline.output(inputs=[lines], sink=sink, name="counts", state=state)(counts)
    return pipeline


def act(run: Run, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run the attempt, or the replay forward; return the errors of the replay's batches."""
    step = _Step(run)
    pipeline = declare(run, step)
    session: Any = SessionWithoutSpark()
    _with_steps(step, monkeypatch)
    if run.replay is None:
        step.time = run.at(run.hour)
        run_batch(
            pipeline,
            batch_time=step.time,
            attempt=run.attempt,
            run_id=f"run{run.attempt}",
            settings=run.settings,
            session=lambda: session,
        )
        return []
    real = batches.claim_replay

    def claim(connection: Any, *, batch_time: datetime, **named: Any) -> int:  # noqa: ANN401  as it is
        step.time = batch_time
        return real(connection, batch_time=batch_time, **named)

    monkeypatch.setattr(batches, "claim_replay", claim)
    replayed = replay_forward(
        pipeline, run.replay, run_id=f"replay {os.getpid()}", settings=run.settings, session=lambda: session
    )
    return [batch.error for batch in replayed if batch.error]


def _with_steps(step: _Step, monkeypatch: pytest.MonkeyPatch) -> None:
    def between(owner: Any, name: str, before: str, after: str) -> None:  # noqa: ANN401  a module or class
        real = getattr(owner, name)

        def stepped(*arguments: object, **named: object) -> object:
            step.reached(before)
            done = real(*arguments, **named)
            step.reached(after)
            return done

        monkeypatch.setattr(owner, name, stepped)

    between(state_versions, "begin_version", *STATE_STEPS[:2])
    between(StateSegment, "append", "", STATE_STEPS[2])
    between(StateSegment, "sync", "", STATE_STEPS[3])
    between(state_versions, "note_version", *STATE_STEPS[4:])
    between(outputs, "commit_output", BEFORE_COMMIT, COMMITTED)
    between(batches, "complete_batch", "", COMPLETED)
    between(batches, "complete_replay", "", COMPLETED)
    without_spark(monkeypatch)


def load() -> None:
    """Import nothing more: this module imports all that it needs."""


def main(arguments: Sequence[str]) -> int:
    """Do what the argument says; 1: a batch of the replay failed."""
    return int(bool(act(Run(**json.loads(arguments[0])), pytest.MonkeyPatch())))


def argument(run: Run) -> str:
    """Return what `main` takes."""
    return json.dumps(asdict(run))
