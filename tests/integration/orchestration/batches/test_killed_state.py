"""Kill or pause the process of a batch with a state at each of its steps; the next attempt is then the one that counts.

Each attempt counts words by another factor, so a result and a state of two attempts can't be taken for those of one.
"""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow.dataset as ds
import pytest
import sqlalchemy as sa
from structlog.testing import capture_logs

from orchestration.batches.following import follow_targets
from orchestration.declarations.apply import apply
from orchestration.declarations.sink import Step
from orchestration.state.state_folder import delete_folder
from orchestration.state.state_frame import StateFrame
from orchestration.state.state_segments import StatePlace
from orchestration.state.stored_state import StoredState
from orchestration.tracker.tracker import Tracker
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.integration.orchestration import killed_state_run
from tests.integration.orchestration.killed_state_run import (
    BEFORE_COMMIT,
    COMMITTED,
    COMPLETED,
    COUNTS,
    HOUR,
    PUBLISHED,
    PUBLISHING,
    STATE,
    STATE_STEPS,
    Run,
    argument,
    declare,
)
from tests.support.driver_log.attempts import fail_batch
from tests.support.machine import forked_processes
from tests.support.polling import eventually
from tracker_store.batches import batches, state_replays, state_versions
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect
from tracker_store.reports.state_status import output_states
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete
from tracker_store.schema.states import AttemptFailure, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from tests.integration.orchestration.target_database import Target

POSTGRES, PARQUET = "postgres", "parquet"
STEPS = {
    POSTGRES: (*STATE_STEPS, *map(str, Step), BEFORE_COMMIT, COMMITTED, PUBLISHING, COMPLETED),
    PARQUET: (*STATE_STEPS, BEFORE_COMMIT, COMMITTED, PUBLISHING, Step.STAGED, Step.COMMITTED, PUBLISHED, COMPLETED),
}
Killed = tuple[str, str, bool]


def each_step(*quick: Killed, pauses: Sequence[bool] = (False, True), restores: bool = False) -> pytest.MarkDecorator:
    """Run a test at each step of each sink, with the process killed or paused; those that are not `quick` are slow.

    `restores`: of an attempt that restores a version, and writes none.
    """
    every: list[Killed] = [
        (sink, str(step), paused)
        for paused in pauses
        for sink, steps in STEPS.items()
        for step in steps
        if not (restores and step in STATE_STEPS)
    ]
    assert {*quick} <= {*every}
    return pytest.mark.parametrize(
        ("sink", "step", "pauses"),
        [
            pytest.param(
                *each,
                id=f"{each[0]}, {'paused' if each[2] else 'killed'} {each[1]}",
                marks=() if each in quick else pytest.mark.slow,
            )
            for each in every
        ],
    )


Totals = dict[str, int]
#: What a batch did: which version it read, and the factor of its attempt.
Made = dict[VersionKey, tuple[VersionKey | None, int]]


class Words:
    """A pipeline with a driver log, a block store and a target, and the model of it."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection, url: str, home: Path, target: Target) -> None:
        self.engine = engine
        self.connection = connection
        self.target = target
        self.factors: dict[tuple[datetime, int], int] = {}
        self.paused: list[forked_processes.ForkedProcess] = []
        self.run = Run(str(home), url, POSTGRES, "2026-01-01T00:00:00+00:00", 0)

    def declare(self, sink: str) -> None:
        apply(self.connection, [declare(replace(self.run, sink=sink))])
        found = get_pipeline(self.connection, "words")
        self.where: dict[str, Any] = {"pipeline_id": found.pipeline_id, "output": "counts"}
        self.begin = found.last_batch_time
        self.run = replace(self.run, sink=sink, begin=self.begin.isoformat())
        self.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '1 year'"))
        for hour in COUNTS:
            self.connection.execute(
                sa.text(
                    "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
                    "VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
                ),
                {"p": found.pipeline_id, "t": self.run.at(hour)},
            )

    def start(self, run: Run) -> forked_processes.ForkedProcess:
        """Start a process that does this; what it says goes to a file in its home."""
        with (Path(run.home) / "said.txt").open("ab") as said, Path(os.devnull).open("rb") as nothing:
            descriptors = (nothing.fileno(), said.fileno(), said.fileno())
            return forked_processes.fork(killed_state_run.__name__, [argument(run)], descriptors=descriptors)

    def said(self) -> str:
        return (Path(self.run.home) / "said.txt").read_text(encoding="utf-8")

    def complete(self, hour: int, attempt: int = 1, factor: int = 1) -> None:
        """Run an attempt to its end: the first one at a batch here, which costs less, others in a new process."""
        self.factors[self.run.at(hour), attempt] = factor
        run = replace(self.run, hour=hour, attempt=attempt, factor=factor)
        if attempt > 1:
            self.ended(self.start(run), 0)
            return
        with pytest.MonkeyPatch.context() as monkeypatch:
            killed_state_run.act(run, monkeypatch)

    def ended(self, process: forked_processes.ForkedProcess, code: int) -> None:
        assert process.wait(60) == code, self.said()

    def killed_or_paused(self, run: Run, *, buries: bool = True) -> forked_processes.ForkedProcess:
        """Start a process, and return it when it has got to its step and is dead, or stopped; then bury it."""
        process = self.start(run)
        if run.pauses:
            status = psutil.Process(process.pid)
            eventually(
                lambda: status.status() == psutil.STATUS_STOPPED or process.poll() is not None, f"step {run.step!r}"
            )
            assert process.poll() is None, self.said()
            self.paused.append(process)
        else:
            self.ended(process, -signal.SIGKILL)
        if buries:
            self.bury()
        return process

    def give_up(self, hour: int) -> None:
        """Let a batch whose process is taken for dead be quarantined, and discard it."""
        fail_batch(
            self.connection,
            self.where["pipeline_id"],
            self.run.at(hour),
            run_id="run1",
            error="killed",
            failure=AttemptFailure.LOST,
            max_lost_attempts=1,
        )
        batches.discard_batch(self.connection, pipeline_id=self.where["pipeline_id"], batch_time=self.run.at(hour))

    def bury(self) -> None:
        """Let a tracker declare dead what has no heartbeat; its clock goes faster than the database's."""
        now = [1000.0]
        leader = Tracker(self.engine, heartbeat_limit_seconds=10.0, clock=lambda: now[0], name="t")
        for _ in range(8):
            leader.tick(self.connection)
            now[0] += 3.0
        running = self.connection.execute(sa.text("SELECT FROM forebay.batch_attempts WHERE state = 'RUNNING'")).all()
        assert running == []
        # The servers end an idle transaction after a minute.
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%%'"
        self.target.rows(f"{end} AND datname = current_database()")
        self.connection.exec_driver_sql(f"{end} AND datname = current_database() AND pid <> pg_backend_pid()")

    def have_an_empty_interval_after(self, hour: int) -> None:
        """Make a batch without records, as allocation does: it is completed, and no output runs."""
        self.connection.execute(
            sa.text(
                "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks, "
                "completed_at) VALUES (:p, :t, :t, 'COMPLETED', 0, 0, 0, clock_timestamp())"
            ),
            {"p": self.where["pipeline_id"], "t": self.run.at(hour) + HOUR / 2},
        )

    # -- replays forward -----------------------------------------------------------------------------------------------

    def begin_forward(self, hour: int) -> int:
        return state_replays.begin_state_replay(self.connection, **self.where, from_time=self.run.at(hour))

    def forward(self, replay: int, factor: int, hour: int = 0, step: str = "", *, pauses: bool = False) -> Run:
        return replace(self.run, replay=replay, factor=factor, hour=hour, step=step, pauses=pauses)

    # -- what holds ----------------------------------------------------------------------------------------------------

    def check(self, hours: int) -> None:
        """Compare each result and version that counts, in these first hours, with the model."""
        commits = [
            commit
            for hour in range(1, hours + 1)
            for commit in commits_of_batch(self.connection, self.where["pipeline_id"], self.run.at(hour))
        ]
        assert [commit.batch_time for commit in commits] == [self.run.at(hour) for hour in range(1, hours + 1)]
        before: VersionKey | None = None
        totals: Totals = {}
        seen = self.seen()
        for hour, commit in enumerate(commits, start=1):
            assert commit.state_attempt is not None
            key = VersionKey(commit.batch_time, commit.state_attempt)
            found = state_versions.version(
                self.connection, **self.where, batch_time=key.batch_time, attempt=key.attempt
            )
            assert found is not None
            assert (found.read, found.committed) == (before, True)
            factor = self.factors[commit.batch_time, commit.state_attempt]
            result = {word: totals.get(word, 0) + factor * n for word, n in COUNTS[hour].items()}
            totals = {**totals, **result}
            assert self.stored(key) == totals
            assert seen[hour] == sorted(result.items())
            before = key
        assert state_versions.head_version(self.connection, self.where["pipeline_id"], "counts") == before
        assert set(seen) == set(range(1, hours + 1))

    def stored(self, key: VersionKey) -> Totals:
        chain = state_versions.chain(self.connection, **self.where, version=key)
        frames = [[StateFrame.of_row(row) for row in version] for version in chain]
        place = StatePlace(self.run.settings.block_store_roots, "", {})
        rows = [
            row
            for table in StoredState(STATE.schema, frames, place, key.batch_time).tables()
            for row in table.to_pylist()
        ]
        assert len({row["word"] for row in rows}) == len(rows)
        return {row["word"]: row["n"] for row in rows}

    def seen(self) -> dict[int, list[tuple[str, int]]]:
        """Return the rows that a reader sees, by hour."""
        if self.run.sink == POSTGRES:
            rows = self.target.rows("SELECT word, n FROM counts")
        else:
            files = ds.dataset(Path(self.run.home) / "output", partitioning="hive", format="parquet")
            rows = [(row["word"], row["n"]) for row in files.to_table().to_pylist()]
        found: dict[int, list[tuple[str, int]]] = defaultdict(list)
        for word, n in rows:
            hour, _, rest = word.partition(" ")
            found[int(hour)].append((rest, n))
        return {hour: sorted(rows) for hour, rows in found.items()}

    def everything(self) -> Any:  # noqa: ANN401  rows to compare
        """Return all that must not change when a process goes on whose attempt is over."""
        tables = {
            name: self.connection.exec_driver_sql(f"SELECT * FROM forebay.{name} ORDER BY 1, 2, 3, 4").all()
            for name in ("output_commits", "state_heads", "state_versions", "state_replays")
        }
        states = self.connection.exec_driver_sql(
            "SELECT batch_time, state, attempt FROM forebay.batches ORDER BY 1"
        ).all()
        return tables, states, self.seen()

    def clean_up(self) -> None:
        """Clean up as after a day, and check that what is left is known."""
        self.connection.exec_driver_sql("UPDATE forebay.batch_attempts SET ended_at = ended_at - interval '2 hours'")
        self.connection.exec_driver_sql(
            "UPDATE forebay.state_versions SET created_at = created_at - interval '2 hours'"
        )
        store = open_block_store(self.run.settings.block_store_roots)
        for found in state_versions_to_delete(self.connection, restore_window=HOUR, keep=14 * 24 * HOUR, limit=100):
            delete_folder(store, found.folder)
            forget_state_version(self.connection, found)
        folders = set(self.connection.exec_driver_sql("SELECT folder FROM forebay.state_versions").scalars())
        roots = Path(self.run.settings.block_store_roots)
        files = {str(path.parent.relative_to(roots)) for path in roots.glob("state/**/*.segment")}
        assert files <= folders
        uncommitted = "SELECT FROM forebay.state_versions WHERE committed_at IS NULL"
        assert self.connection.exec_driver_sql(uncommitted).all() == []


@pytest.fixture
def words(engine: sa.Engine, database_url: str, tmp_path: Path, target: Target) -> Iterator[Words]:
    with connect(engine) as connection:
        made = Words(engine, connection, database_url, tmp_path, target)
        yield made
    for process in made.paused:
        process.kill()
        process.wait(60)


@each_step((PARQUET, COMMITTED, False), (POSTGRES, STATE_STEPS[4], True))
def test_the_next_attempt_counts_wherever_the_process_of_a_batch_is_killed_or_paused(
    words: Words, sink: str, step: str, *, pauses: bool
) -> None:
    words.declare(sink)
    words.complete(1)
    words.factors[words.run.at(2), 1] = 10
    ended = step == COMPLETED
    zombie = words.killed_or_paused(replace(words.run, hour=2, factor=10, step=step, pauses=pauses))
    if not ended:
        words.complete(2, attempt=2, factor=100)
    words.check(2)
    if pauses:
        before = words.everything()
        zombie.send_signal(signal.SIGCONT)
        zombie.wait(60)
        assert words.everything() == before
    words.complete(3)
    words.check(3)
    words.clean_up()
    words.check(3)
    assert follow_targets(words.engine, declare(words.run), words.where["pipeline_id"]) == 0


@each_step((POSTGRES, BEFORE_COMMIT, True))
def test_another_process_goes_on_with_a_replay_forward_wherever_its_own_is_killed_or_paused(
    words: Words, sink: str, step: str, *, pauses: bool
) -> None:
    words.declare(sink)
    for hour in (1, 2, 3):
        words.complete(hour)
    words.have_an_empty_interval_after(2)
    replay = words.begin_forward(2)
    words.factors |= {(words.run.at(hour), 2): 10 if hour == 2 else 100 for hour in (2, 3)}
    words.factors[words.run.at(2), 3] = 100
    zombie = words.killed_or_paused(words.forward(replay, 10, 2, step, pauses=pauses))
    [status] = output_states(words.connection)
    assert (status.replay_state, status.replay_runs) == ("RUNNING", False)
    words.ended(words.start(words.forward(replay, 100)), 0)
    words.check(3)
    if pauses:
        before = words.everything()
        zombie.send_signal(signal.SIGCONT)
        zombie.wait(60)
        assert words.everything() == before
    words.complete(4)
    words.check(4)
    words.clean_up()
    words.check(4)


@each_step(pauses=[False], restores=True)
def test_another_process_goes_on_with_undoing_a_replay_wherever_its_own_is_killed(
    words: Words, sink: str, step: str, *, pauses: bool
) -> None:
    assert not pauses
    words.declare(sink)
    for hour in (1, 2, 3):
        words.complete(hour)
    replay = words.begin_forward(2)
    words.factors |= {(words.run.at(hour), 2): 100 for hour in (2, 3)}
    words.ended(words.start(words.forward(replay, 100)), 0)
    words.check(3)
    state_replays.undo_state_replay(words.connection, replay)
    words.killed_or_paused(words.forward(replay, 1, 2, step))
    words.ended(words.start(words.forward(replay, 1)), 0)
    assert state_replays.state_replay(words.connection, replay).state is StateReplayState.UNDONE
    words.check(3)
    words.complete(4)
    words.check(4)


def test_a_result_in_the_target_that_the_state_can_not_have_is_logged(words: Words) -> None:
    """Check a process that commits in the target after its batch was discarded, and the state has gone on."""
    words.declare(POSTGRES)
    words.complete(1)
    zombie = words.killed_or_paused(replace(words.run, hour=2, step=Step.STAGED, pauses=True), buries=False)
    words.give_up(2)
    words.complete(3)
    head = state_versions.head_version(words.connection, words.where["pipeline_id"], "counts")
    zombie.send_signal(signal.SIGCONT)
    zombie.wait(60)
    with capture_logs() as logged:
        assert follow_targets(words.engine, declare(words.run), words.where["pipeline_id"]) == 0
    [warning] = [entry for entry in logged if entry["event"] == "the target has a result that the output's state lacks"]
    assert (warning["batch_time"], "is in force" in warning["error"]) == (words.run.at(2).isoformat(), True)
    assert state_versions.head_version(words.connection, words.where["pipeline_id"], "counts") == head
    assert commits_of_batch(words.connection, words.where["pipeline_id"], words.run.at(2)) == []
    assert words.stored(VersionKey(words.run.at(3), 1)) == {"a": 4, "b": 3, "d": 2}
