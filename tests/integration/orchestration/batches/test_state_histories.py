"""Test an output with a state, and its transactional target, against a sequential model over random histories.

Batches run, without Spark, through the real run: state, sink, driver log and block store. They are killed at each step,
or lose the answer of a statement that was applied; they are launched again, retried, quarantined, followed, replayed,
discarded, replayed forward and back, and cleaned up. After each step, each version that a commit names is the model's
of what it had read, and so are the rows in the target.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from forebay import EnvVar, Pipeline, PostgresSink, State, Stream
from forebay.sources import SocketText
from orchestration.batches.attempt_outputs import OutputsFailedError
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.batches.following import follow_output, follow_targets
from orchestration.batches.stateful.state_run import StateWaitsError
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.declarations.sink import Step
from orchestration.spark import statement_retry
from orchestration.state import state_frame
from orchestration.state.reading import read_state
from orchestration.state.state_folder import delete_folder
from orchestration.state.state_frame import StateFrame
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.integration.orchestration.frame_without_spark import SessionWithoutSpark, words
from tests.integration.orchestration.state_without_spark import Given, without_spark
from tests.support.driver_log.attempts import fail_batch
from tests.support.driver_log.log import Log
from tests.support.driver_log.stated_log import StatedLog
from tests.support.searches import examples, is_whole
from tracker_store.batches import batches, outputs, state_replays, state_versions
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import (
    AttemptSupersededError,
    BatchHeldError,
    BlocksNotRetainedError,
    DriverLogError,
    OutcomeUnknownError,
    StatefulReplayError,
    StateMovedError,
)
from tracker_store.retention import state_files
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete
from tracker_store.schema.states import AttemptFailure, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame

    from tests.integration.orchestration.target_database import Target

HOUR = timedelta(hours=1)
TTL = 3 * HOUR
WINDOW = timedelta(hours=1)
RETENTION = 4 * HOUR
STEPS_BACK = 3  # as CHAIN_STEPS and FULL_EVERY_VERSIONS, so that short histories are cleaned up
SCHEMA = State("word STRING", "n BIGINT, expires_at TIMESTAMP").schema
GONE, DELETED = -1, -2
#: In front of a statement, and after it, its process is killed; `lost`: its answer is.
STATEMENTS = ("begin_version", "note_version", "commit_output")
STEPS = [
    *(f"{name} {when}" for name in STATEMENTS for when in ("before", "after", "lost")),
    *(str(step.value) for step in Step),
    "publishing",
]
LEGAL = (
    StateWaitsError,
    StateMovedError,
    StatefulReplayError,
    AttemptSupersededError,
    BatchHeldError,
    BlocksNotRetainedError,
    OutputsFailedError,
)

Values = dict[str, tuple[int, "datetime"]]


class KilledError(BaseException):
    """Ends a run as a kill does: nothing is recorded."""


@dataclass
class Fault:
    """What happens next, and where; it happens once."""

    step: str = ""

    def at(self, step: str) -> bool:
        """Return whether it is here."""
        if self.step != step:
            return False
        self.step = ""
        return True

    def kill(self, step: str) -> None:
        """End the run if it is to die here."""
        if self.at(step):
            raise KilledError


FAULT = Fault()


class Sink(PostgresSink):
    """A sink in which runs die."""

    def reached(self, step: Step) -> None:
        FAULT.kill(step.value)

    def publish(self, location: str, *, batch_time: datetime, check: object = None) -> None:
        FAULT.kill("publishing")


def after_batch(before: Values, counts: Mapping[str, int], factor: int, time: datetime) -> tuple[Values, list[Any]]:
    """Return the model's state and result: totals; a word that comes 0 times is deleted, `c` expires after an hour."""
    left = {word: value for word, value in before.items() if value[1] > time}
    result = [(word, GONE) for word in before if word not in left and word not in counts]
    for word, count in counts.items():
        if count == 0:
            result.append((word, DELETED))
            left.pop(word, None)
            continue
        total = left.get(word, (0, time))[0] + factor * count
        result.append((word, total))
        left[word] = (total, time + (HOUR if word == "c" else TTL))
    return left, sorted(result)


@dataclass
class History:
    """A pipeline with a driver log, a block store and a target, and the model of it."""

    engine: sa.Engine
    connection: sa.Connection
    settings: Settings
    target: Target
    number: int
    on_failure: Any
    counts: dict[datetime, Mapping[str, int]] = field(default_factory=dict)
    factors: dict[tuple[datetime, int], int] = field(default_factory=dict)
    states: dict[VersionKey | None, Values] = field(default_factory=lambda: {None: {}})
    results: dict[VersionKey, list[Any]] = field(default_factory=dict)
    reads: dict[VersionKey, VersionKey | None] = field(default_factory=dict)
    factor: int = 1
    launches: itertools.count[int] = field(default_factory=itertools.count)
    relaunch: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        """Declare the pipeline."""
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        self.pipeline = Pipeline(f"words{self.number}", interval="1h", max_attempts=50)
        sink = Sink(EnvVar("TARGET_URL"), f"counts{self.number}")
        state = State(
            "word STRING",
            "n BIGINT, expires_at TIMESTAMP",
            keys=lambda _: self.keys(),
            ttl=TTL,
            on_failure=self.on_failure,
            buckets=3,
        )

        def counts(lines: object, state: list[dict[str, Any]], batch: Any) -> tuple[DataFrame, Given]:  # noqa: ANN401
            del lines
            return self.compute(state, batch.time, batch.attempt)

        self.pipeline.output(inputs=[lines], sink=sink, name="counts", state=state)(counts)
        apply(self.connection, [self.pipeline])
        self.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = :r"), {"r": RETENTION})
        found = get_pipeline(self.connection, self.pipeline.name)
        # So long ago that the retention of every batch can pass.
        self.id, self.begin = found.pipeline_id, found.last_batch_time - timedelta(days=30)
        self.where: dict[str, Any] = {"pipeline_id": self.id, "output": "counts"}
        self.now = self.begin

    def keys(self) -> Given:
        counts = self.counts[self.now]
        return Given(pa.table({"word": pa.array([*counts, *counts], pa.string())}))

    def compute(self, state: list[dict[str, Any]], time: datetime, attempt: int) -> tuple[DataFrame, Given]:
        """Do what the model does, from what the run was given."""
        self.factors[time, attempt] = factor = self.factor
        counts = self.counts[time]
        held = {row["c0"]: row for row in state}
        assert len(held) == len(state), "a key was given twice"
        result: list[tuple[str, int]] = []
        changes: list[dict[str, Any]] = []
        for word, count in counts.items():
            row = held.pop(word, None)
            if count == 0:
                result.append((word, DELETED))
                changes.append({"word": word, "n": None, "expires_at": None})
                continue
            total = factor * count + (0 if row is None or row["c3"] else row["c1"])
            result.append((word, total))
            changes.append({"word": word, "n": total, "expires_at": time + HOUR if word == "c" else None})
        assert all(row["c3"] for row in held.values()), "a key was given that does not occur"
        result += [(word, GONE) for word in held]
        hour = (time - self.begin) // HOUR
        table = pa.Table.from_pylist(changes, schema=arrow_schema(SCHEMA.arrow_columns()))
        return words(*((f"{hour} {word}", n) for word, n in result)), Given(table)

    # -- what happens --------------------------------------------------------------------------------------------------

    def batches(self) -> list[Any]:
        return list(
            self.connection.execute(
                sa.text("SELECT batch_time, state, attempt FROM forebay.batches WHERE pipeline_id = :p ORDER BY 1"),
                {"p": self.id},
            )
        )

    def unfinished(self) -> Any:  # noqa: ANN401
        return next((b for b in self.batches() if b.state in ("ALLOCATED", "RUNNING", "FAILED", "BLOCKED")), None)

    def running(self) -> list[Any]:
        return list(
            self.connection.execute(
                sa.text(
                    "SELECT batch_time, attempt, run_id FROM forebay.batch_attempts "
                    "WHERE pipeline_id = :p AND state = 'RUNNING'"
                ),
                {"p": self.id},
            )
        )

    def launch(self, run: Callable[[], object], step: str) -> bool:
        """Run until the fault; return whether it came to its end. What ended by a kill can be launched again."""
        FAULT.step = step
        self.relaunch = None
        try:
            run()
        except KilledError:
            self.relaunch = lambda: self.launch(run, "")
            return False
        except LEGAL:
            return False
        finally:
            FAULT.step = ""
        return True

    def allocate(self, counts: Mapping[str, int]) -> None:
        if self.unfinished() is not None:
            return
        time = self.begin + (len(self.counts) + 1) * HOUR
        self.counts[time] = counts
        self.connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :t WHERE id = :p"), {"p": self.id, "t": time}
        )
        self.connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
                "VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
            ),
            {"p": self.id, "t": time},
        )

    def run(self, step: str) -> None:
        batch = self.unfinished()
        if batch is None or batch.state == "RUNNING":
            return
        self.connection.execute(sa.text("UPDATE forebay.batches SET retry_at = NULL"))
        self.now, number, run_id = batch.batch_time, batch.attempt + 1, f"run{next(self.launches)}"
        session: Any = SessionWithoutSpark()
        time = batch.batch_time

        def go() -> None:
            self.now = time
            run_batch(
                self.pipeline,
                batch_time=time,
                attempt=number,
                run_id=run_id,
                settings=self.settings,
                session=lambda: session,
            )

        self.launch(go, step)

    def replay(self, time: datetime, step: str, *, forward: int | None = None, failed_only: bool = False) -> bool:
        session: Any = SessionWithoutSpark()
        run_id = f"replay{next(self.launches)}"

        def go() -> None:
            self.now = time
            replay_batch(
                self.pipeline,
                batch_time=time,
                outputs=["counts"],
                forward=forward,
                failed_outputs_only=failed_only,
                run_id=run_id,
                settings=self.settings,
                session=lambda: session,
            )

        return self.launch(go, step)

    def bury(self, *, quarantines: bool) -> None:
        """End what was killed, as the tracker does."""
        self.relaunch = None
        for attempt in self.running():
            fail_batch(
                self.connection,
                self.id,
                attempt.batch_time,
                attempt.attempt,
                run_id=attempt.run_id,
                error="killed",
                max_attempts=50,
                pauses=None,
                failure=AttemptFailure.LOST,
                max_lost_attempts=1 if quarantines else 50,
            )

    def follow(self) -> None:
        follow_targets(self.engine, self.pipeline, self.id)

    def discard(self, pick: int) -> None:
        chosen = [b for b in self.batches() if b.state == "QUARANTINED"]
        if chosen:
            try:
                batches.discard_batch(
                    self.connection, pipeline_id=self.id, batch_time=chosen[pick % len(chosen)].batch_time
                )
            except DriverLogError:
                return

    def forward(self) -> Any:  # noqa: ANN401
        found = state_replays.state_replays(self.connection, **self.where)
        return found[0] if found else None

    def begin_forward(self, pick: int) -> None:
        times = list(self.counts)
        try:
            state_replays.begin_state_replay(self.connection, **self.where, from_time=times[pick % len(times)])
        except (DriverLogError, BlocksNotRetainedError):
            return

    def move_forward(self, how: str) -> None:
        found = self.forward()
        if found is None:
            return
        move = {
            "stop": state_replays.stop_state_replay,
            "resume": state_replays.resume_state_replay,
            "undo": state_replays.undo_state_replay,
        }[how]
        try:
            move(self.connection, found.replay_id)
        except DriverLogError:
            return

    def step_forward(self, step: str) -> bool:
        """Run the next batch of a replay forward, or of its undoing; return whether there was one."""
        found = self.forward()
        if found is None or self.running():
            return False
        follow_output(self.engine, self.pipeline.outputs["counts"], self.id)
        found = self.forward()
        time = state_replays.next_batch(self.connection, found.replay_id)
        if time is None:
            if found.state is StateReplayState.UNDOING:
                state_replays.end_undoing(self.connection, found.replay_id)
            return False
        self.factor = 1 + found.replay_id
        if found.state is StateReplayState.UNDOING:
            to_read = state_versions.state_to_read(
                self.connection, **self.where, batch_time=time, forward=found.replay_id
            )
            assert to_read.restores is not None
            self.factor = self.factors[time, to_read.restores]
        try:
            self.replay(time, step, forward=found.replay_id)
        finally:
            self.factor = 1
        return True

    def clean_up(self) -> None:
        """Clean up as after a day."""
        for table, column in (
            ("batch_attempts", "ended_at"),
            ("state_versions", "created_at"),
            ("state_versions", "committed_at"),
        ):
            self.connection.execute(sa.text(f"UPDATE forebay.{table} SET {column} = {column} - interval '2 hours'"))
        store = open_block_store(self.settings.block_store_roots)
        for found in state_versions_to_delete(
            self.connection, restore_window=WINDOW, keep=timedelta(days=14), limit=100
        ):
            delete_folder(store, found.folder)
            forget_state_version(self.connection, found)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare each result that counts, and the state in force, with the model."""
        commits = list(
            self.connection.execute(
                sa.text(
                    "SELECT batch_time, attempt, state_attempt FROM forebay.output_commits WHERE pipeline_id = :p "
                    "ORDER BY batch_time"
                ),
                {"p": self.id},
            )
        )
        for commit in commits:
            if commit.state_attempt is not None:
                self.learn(VersionKey(commit.batch_time, commit.state_attempt))
        head = next(iter(state_versions.state_heads(self.connection, pipeline_id=self.id)), None)
        key = None if head is None else head.key
        assert self.stored(key) == self.states[key]
        forward = self.forward()
        if forward is None:
            named = [VersionKey(row.batch_time, row.state_attempt) for row in commits if row.state_attempt is not None]
            assert [self.reads[each] for each in named] == [None, *named][: len(named)]
        of_target = self.of_target()
        in_target = dict(
            self.target.rows("SELECT batch_time, attempt FROM forebay_commits WHERE pipeline_id = %s", self.id)
            if self.target.rows("SELECT to_regclass('forebay_commits')") != [(None,)]
            else []
        )
        for commit in commits:
            if in_target[commit.batch_time] == commit.attempt and commit.state_attempt is not None:
                version = VersionKey(commit.batch_time, commit.state_attempt)
                assert of_target.get(commit.batch_time, []) == self.results[version]

    def learn(self, key: VersionKey) -> None:
        if key in self.reads:
            return
        found = state_versions.version(self.connection, **self.where, batch_time=key.batch_time, attempt=key.attempt)
        assert found is not None
        factor = self.factors[key.batch_time, key.attempt]
        time = key.batch_time
        self.reads[key] = found.read
        self.states[key], self.results[key] = after_batch(self.states[found.read], self.counts[time], factor, time)

    def stored(self, key: VersionKey | None) -> Values:
        chain = state_versions.chain(self.connection, **self.where, version=key)
        session: Any = SessionWithoutSpark()
        long_ago = self.begin - timedelta(days=1)
        rows: Any = read_state(
            session,
            SCHEMA,
            [[StateFrame.of_row(row) for row in version] for version in chain],
            None,
            batch_time=long_ago,
            buckets=3,
            roots=self.settings.block_store_roots,
            block_keys="",
            expected={},
        )
        expires = {word: value[1] for word, value in self.states[key].items()}
        return {row["c0"]: (row["c1"], expires.get(row["c0"], long_ago)) for row in rows}

    def of_target(self) -> dict[datetime, list[Any]]:
        table = f"counts{self.number}"
        found: dict[datetime, list[Any]] = {}
        if self.target.rows("SELECT to_regclass(%s)", table) == [(None,)]:
            return found
        for word, n in self.target.rows(f"SELECT word, n FROM {table} ORDER BY 1, 2"):
            hour, _, rest = word.partition(" ")
            found.setdefault(self.begin + int(hour) * HOUR, []).append((rest, n))
        return {time: sorted(rows) for time, rows in found.items()}

    def calm(self) -> None:
        """Let everything come to its end; then the target has what the driver log has, and a new batch goes on."""
        self.bury(quarantines=False)
        self.follow()
        self.move_forward("resume")
        while self.step_forward(""):
            pass
        for _ in range(2 * len(self.counts) + 2):
            self.run("")
            for batch in self.batches():
                if batch.state == "QUARANTINED":
                    self.replay(batch.batch_time, "", failed_only=True)
        self.follow()
        self.allocate({"a": 1, "c": 2})
        self.run("")
        self.check()
        assert self.unfinished() is None
        rows = list(
            self.connection.execute(
                sa.text("SELECT batch_time, state_attempt FROM forebay.output_commits WHERE pipeline_id = :p"),
                {"p": self.id},
            )
        )
        counted = {row.batch_time: row.state_attempt for row in rows}
        for time, found in self.of_target().items():
            assert time in counted, "the target has a result that the state has not"
            if counted[time] is not None:
                assert found == self.results[VersionKey(time, counted[time])]


ANY = st.integers(0, 100)
FAULTS = st.sampled_from(["", "", *STEPS])
COUNTS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 3), max_size=4)
EVENTS = st.one_of(
    st.tuples(st.just("batch"), COUNTS, FAULTS),
    st.tuples(st.just("batch"), COUNTS, FAULTS),
    st.tuples(st.just("batch"), COUNTS, FAULTS),
    st.tuples(st.just("run"), st.just(0), FAULTS),
    st.tuples(st.just("bury"), st.booleans(), st.just("")),
    st.tuples(st.just("relaunch"), st.just(0), st.just("")),
    st.tuples(st.just("follow"), st.just(0), st.just("")),
    st.tuples(st.just("discard"), ANY, st.just("")),
    st.tuples(st.just("replay"), ANY, FAULTS),
    st.tuples(st.just("forward"), ANY, FAULTS),
    st.tuples(st.just("step forward"), st.just(0), FAULTS),
    st.tuples(st.sampled_from(["stop", "resume", "undo"]), st.just(0), st.just("")),
    st.tuples(st.just("clean up"), st.just(0), st.just("")),
)


def apply_event(history: History, kind: str, what: Any, step: str) -> None:  # noqa: ANN401, C901
    if kind == "batch":
        history.allocate(what)
        history.run(step)
    elif kind == "run":
        history.run(step)
    elif kind == "bury":
        history.bury(quarantines=what)
    elif kind == "relaunch" and history.relaunch is not None:
        history.relaunch()
    elif kind == "follow":
        history.follow()
    elif kind == "discard":
        history.discard(what)
    elif kind == "replay":
        chosen = [b for b in history.batches() if b.state == "QUARANTINED"]
        if chosen and not history.running():
            history.replay(chosen[what % len(chosen)].batch_time, step, failed_only=what % 2 == 0)
    elif kind == "forward" and history.counts and not history.running():
        history.begin_forward(what)
        history.step_forward(step)
    elif kind == "step forward":
        history.step_forward(step)
    elif kind in ("stop", "resume", "undo"):
        history.move_forward(kind)
    elif kind == "clean up":
        history.clean_up()


def _faulty(name: str, real: Callable[..., None]) -> Callable[..., None]:
    def statement(*arguments: object, **named: object) -> None:
        FAULT.kill(f"{name} before")
        real(*arguments, **named)
        FAULT.kill(f"{name} after")
        if FAULT.at(f"{name} lost"):
            raise OutcomeUnknownError("the connection was lost")

    return statement


def with_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs die before and after each statement, or lose its answer."""
    for module, name in zip((state_versions, state_versions, outputs), STATEMENTS, strict=True):
        monkeypatch.setattr(module, name, _faulty(name, getattr(module, name)))
    monkeypatch.setattr(statement_retry, "FIRST_PAUSE_SECONDS", 0.001)


@dataclass
class Rig:
    """Makes a pipeline of its own for each history, and lets it happen."""

    engine: sa.Engine
    settings: Settings
    target: Target
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def play(self, on_failure: str, events: list[tuple[str, Any, str]]) -> None:
        """Let events happen, and compare with the model after each, and when all has calmed down."""
        with connect(self.engine) as connection:
            history = History(self.engine, connection, self.settings, self.target, next(self.numbers), on_failure)
            for kind, what, step in events:
                apply_event(history, kind, what, step)
                history.check()
            history.calm()


@pytest.fixture
def rig(engine: sa.Engine, database_url: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    without_spark(monkeypatch)
    with_faults(monkeypatch)
    monkeypatch.setattr(state_frame, "FULL_EVERY_VERSIONS", STEPS_BACK)
    for module in (state_versions, state_replays, state_files):
        monkeypatch.setattr(module, "CHAIN_STEPS", STEPS_BACK)
    return Rig(engine, Settings(home=tmp_path, database_url=database_url), target)


THREE = [("batch", {"a": 1, "b": 2}, ""), ("batch", {"a": 2}, ""), ("batch", {"a": 3, "c": 1}, "")]


@pytest.mark.parametrize(
    ("on_failure", "events"),
    [
        pytest.param(
            "halt",
            [*THREE, ("forward", 1, "committed"), ("bury", False, ""), ("undo", 0, "")],
            id="undone after a kill between the target's commit and its row",
        ),
        pytest.param(
            "halt",
            [*THREE, ("forward", 1, ""), ("step forward", 0, "committed"), ("bury", False, ""), ("undo", 0, "")],
            id="undone after a kill of a later batch of the replay",
        ),
        pytest.param(
            "skip",
            [("batch", {"a": 1}, ""), ("batch", {"a": 1}, "committed"), ("bury", True, ""), ("batch", {"a": 1}, "")],
            id="skipped although the target has its result",
        ),
        pytest.param(
            "halt",
            [
                ("batch", {"a": 1}, ""),
                ("batch", {"a": 1}, "committed"),
                ("bury", True, ""),
                ("discard", 0, ""),
                ("batch", {"a": 1}, ""),
            ],
            id="discarded although the target has its result",
        ),
    ],
)
def test_what_the_target_has_is_in_the_state(rig: Rig, on_failure: str, events: list[tuple[str, Any, str]]) -> None:
    rig.play(on_failure, events)


def test_the_oldest_batch_that_is_retained_can_run_again_after_each_clean_up(rig: Rig) -> None:
    with connect(rig.engine) as connection:
        history = History(rig.engine, connection, rig.settings, rig.target, next(rig.numbers), "halt")
        for hour in range(10):
            history.allocate({"a": 1, "bcde"[hour % 4]: 1})
            history.run("")
            history.clean_up()
            history.check()
        left = [key.batch_time for key, _, _ in StatedLog(Log(connection, 0, history.id, [])).versions()]
        oldest = min(time for time in history.counts if time > history.now - RETENTION)
        assert min(history.counts) < min(left) < oldest
        history.begin_forward([*history.counts].index(oldest))
        assert history.step_forward("committed")
        history.bury(quarantines=False)
        history.clean_up()
        history.calm()
        assert history.forward().state is StateReplayState.COMPLETED
        history.clean_up()
        history.move_forward("undo")
        assert history.forward().state is StateReplayState.COMPLETED, "a later batch has read it"


@pytest.mark.search
@pytest.mark.timeout(900)
def test_state_and_results_are_the_models_whatever_happens(rig: Rig) -> None:
    @settings(
        max_examples=200 if is_whole() else examples(12),
        deadline=None,
        suppress_health_check=list(HealthCheck),
        # Each example takes a second: its events say enough without a search for fewer.
        phases=[Phase.explicit, Phase.generate],
    )
    @given(st.lists(EVENTS, min_size=5, max_size=14), st.sampled_from(["halt", "skip"]))
    def search(events: list[tuple[str, Any, str]], on_failure: str) -> None:
        rig.play(on_failure, events)

    search()
