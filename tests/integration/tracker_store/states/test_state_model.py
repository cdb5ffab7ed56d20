"""Test the versions of an output's state against a plain-Python model of them, over random histories (hypothesis).

Attempts, kills between any two of their steps, zombies, adopted and followed commits of a transactional target, batches
that are skipped, discarded and replayed, clean-up, and replays forward that are stopped, resumed and undone, in any
order. The model knows what each version must have read. After each step the head's state is made of exactly the batches
whose commits name a version, each once and in order; a calm at the end shows that nothing waits for ever.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.driver_log.state_moves import MACHINES, RECORDER, SEEN, illegal_moves
from tests.support.driver_log.stated_log import StatedLog, batch_time, frame, make_stated_log
from tests.support.searches import examples
from tracker_store.batches import batches, outputs, state_replays, state_versions
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import (
    AttemptSupersededError,
    BatchHeldError,
    DriverLogError,
    StatefulReplayError,
    StateMovedError,
)
from tracker_store.retention import state_files
from tracker_store.retention.state_files import forget_state_version, state_versions_to_delete
from tracker_store.schema.states import AttemptFailure, BatchState, StateReplayState
from tracker_store.schema.tables import SCHEMA, metadata

if TYPE_CHECKING:
    from datetime import datetime

STEPS = 3  # as CHAIN_STEPS, so that short histories are cleaned up
WINDOW = timedelta(hours=1)
any_one = st.integers(0, 10**6)
UNFINISHED = (StateReplayState.RUNNING, StateReplayState.STOPPED, StateReplayState.UNDOING)


@dataclass
class Version:
    """A version: what it read, and which versions make it up, oldest first."""

    key: VersionKey
    read: VersionKey | None
    lineage: tuple[VersionKey, ...]
    forward: int | None
    noted: bool = False
    committed: bool = False
    replaced: VersionKey | None = None


@dataclass
class Batch:
    """A batch: its attempts count from 1, replays too."""

    time: datetime
    state: BatchState = BatchState.ALLOCATED
    attempts: int = 0
    #: (attempt, the attempt of the version), of the result that counts.
    commit: tuple[int, int | None] | None = None
    #: The attempt whose result a transactional target has.
    target: int | None = None


@dataclass
class Run:
    """A run of an attempt or a replay, up to where it is; what it has read is in its memory."""

    batch: Batch
    attempt: int
    is_replay: bool
    forward: int | None = None
    read: VersionKey | None = None
    restores: int | None = None
    begun: bool = False
    noted: bool = False

    @property
    def key(self) -> VersionKey:
        """Return the version that it writes."""
        return VersionKey(self.batch.time, self.attempt)


@dataclass
class Forward:
    """A replay forward of the model."""

    number: int
    first: datetime
    last: datetime
    old_head: VersionKey
    base: VersionKey | None
    head: VersionKey | None = None
    state: StateReplayState = StateReplayState.RUNNING
    made: list[VersionKey] = field(default_factory=list)


class StateMachine(RuleBasedStateMachine):
    """The state machine of the model, as the module describes it."""

    def __init__(self, engine: sa.Engine, moves: set[tuple[str, str, str]]) -> None:
        super().__init__()
        self.moves = moves
        self.lease = ExitStack()
        connection = self.lease.enter_context(connect(engine))
        tables = ", ".join(f"{SCHEMA}.{name.name}" for name in metadata.sorted_tables if name.name != "leadership")
        connection.execute(sa.text(f"TRUNCATE {tables}, moves.seen"))
        self.stated: StatedLog = make_stated_log(connection)
        # Blocks stay, and so do versions that a replay of any batch would read, unless a rule lets them go.
        connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '1 year'"))
        self.connection = connection
        self.batches: list[Batch] = []
        self.versions: dict[VersionKey, Version] = {}
        self.head: VersionKey | None = None
        self.runs: list[Run] = []
        self.zombies: list[Run] = []
        self.forwards: list[Forward] = []
        self.gone: set[VersionKey] = set()
        #: Batches that have a result which no version belongs to: their replay forward was undone.
        self.without: set[datetime] = set()

    def teardown(self) -> None:
        with self.lease:
            self.calm()

    # -- helpers -------------------------------------------------------------------------------------------------------

    def forward(self) -> Forward | None:
        return next((each for each in self.forwards if each.state in UNFINISHED), None)

    def run_of(self, *, is_replay: bool) -> Run | None:
        return next((run for run in self.runs if run.is_replay is is_replay), None)

    def batch_at(self, time: datetime) -> Batch:
        return next(batch for batch in self.batches if batch.time == time)

    def end(self, run: Run) -> None:
        self.runs.remove(run)
        self.zombies.append(run)

    def in_force(self, forward: Forward | None) -> VersionKey | None:
        return self.head if forward is None else forward.head or forward.base

    def lineage(self, key: VersionKey | None) -> tuple[VersionKey, ...]:
        return () if key is None else self.versions[key].lineage

    # -- batches -------------------------------------------------------------------------------------------------------

    def unfinished(self) -> Batch | None:
        return next(
            (b for b in self.batches if b.state in (BatchState.ALLOCATED, BatchState.RUNNING, BatchState.FAILED)), None
        )

    @precondition(lambda self: self.unfinished() is None and len(self.batches) < 12)
    @rule()
    def allocate(self) -> None:
        self.batches.append(Batch(self.stated.allocate(len(self.batches) + 1)))

    @precondition(lambda self: self.run_of(is_replay=False) is None and self.unfinished() is not None)
    @rule()
    def claim(self) -> None:
        batch = self.unfinished()
        assert batch is not None
        batch.attempts += 1
        self.stated.claim(batch.time, batch.attempts)
        batch.state = BatchState.RUNNING
        self.runs.append(Run(batch, batch.attempts, is_replay=False))

    @precondition(lambda self: self.run_of(is_replay=True) is None and self.batches)
    @rule(pick=any_one)
    def claim_replay(self, pick: int) -> None:
        batch = self.batches[pick % len(self.batches)]
        forward = self.forward()
        stateful = (
            batch.commit is not None
            or forward is not None
            or (self.head is not None and batch.time <= self.head.batch_time)
        )
        if batch.state not in (BatchState.COMPLETED, BatchState.QUARANTINED):
            with pytest.raises(BatchHeldError):
                self.stated.claim_replay(batch.time)
        elif stateful:
            with pytest.raises(StatefulReplayError if forward is None else BatchHeldError):
                self.stated.claim_replay(batch.time)
        else:
            batch.attempts += 1
            assert self.stated.claim_replay(batch.time) == batch.attempts
            self.runs.append(Run(batch, batch.attempts, is_replay=True))

    def next_forward(self) -> datetime | None:
        """Return the batch that the replay forward runs, or restores, next."""
        forward = self.forward()
        assert forward is not None
        if forward.state is StateReplayState.UNDOING:
            for key in forward.made:
                commit = self.batch_at(key.batch_time).commit
                if self.versions[key].replaced is not None and commit is not None and commit[1] == key.attempt:
                    return key.batch_time
            return None
        if forward.state is not StateReplayState.RUNNING:
            return None
        after = forward.head.batch_time if forward.head else forward.first - timedelta(seconds=1)
        return next(
            (
                batch.time
                for batch in self.batches
                if after < batch.time <= forward.last
                and (batch.commit is not None or batch.state is BatchState.QUARANTINED)
            ),
            None,
        )

    @precondition(lambda self: self.run_of(is_replay=True) is None and self.forward() is not None)
    @rule()
    def claim_of_a_replay_forward(self) -> None:
        forward = self.forward()
        assert forward is not None
        time = self.next_forward()
        assert state_replays.next_batch(self.connection, forward.number) == time
        if time is None:
            return
        batch = self.batch_at(time)
        batch.attempts += 1
        assert self.stated.claim_replay(time, forward=forward.number) == batch.attempts
        self.runs.append(Run(batch, batch.attempts, is_replay=True, forward=forward.number))

    # -- the steps of a run --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.runs)
    @rule(pick=any_one)
    def read_and_begin(self, pick: int) -> None:
        run = self.runs[pick % len(self.runs)]
        if run.batch.commit is not None and run.batch.commit[0] >= run.attempt:
            return
        forward = self.forward()
        try:
            found = self.stated.to_read(run.batch.time, forward=run.forward)
        except StateMovedError:
            # A replay forward that was stopped, or has ended, since.
            assert run.forward is not None
            assert forward is None or forward.number != run.forward or self.next_forward() != run.batch.time
            return
        if run.forward is None:
            assert found.head == self.head
            assert found.replay == (None if forward is None else forward.number)
            assert found.hole == self.hole(run.batch.time)
        else:
            assert forward is not None
            restored = self.versions[self.key_of_commit(run.batch)].replaced if forward.state == "UNDOING" else None
            assert found.restores == (None if restored is None else restored.attempt)
            assert found.head == (self.in_force(forward) if restored is None else self.versions[restored].read)
        assert found.ordinal == len(self.lineage(found.head)) + 1
        run.read, run.restores = found.head, found.restores
        run.begun = run.noted = False
        if run.restores is not None:
            return
        blocked = run.forward is None and (
            forward is not None or (found.head is not None and run.batch.time <= found.head.batch_time)
        )
        if blocked:
            with pytest.raises(StateMovedError):
                self.stated.begin(run.batch.time, run.attempt, found.head)
            return
        self.stated.begin(run.batch.time, run.attempt, found.head, replay=run.forward)
        before = self.versions.get(run.key)
        if before is None or before.read != found.head:
            self.versions[run.key] = Version(run.key, found.head, (*self.lineage(found.head), run.key), run.forward)
        run.begun = True

    def key_of_commit(self, batch: Batch) -> VersionKey:
        assert batch.commit is not None
        assert batch.commit[1] is not None
        return VersionKey(batch.time, batch.commit[1])

    def hole(self, time: datetime) -> datetime | None:
        after = batch_time(-1) if self.head is None else self.head.batch_time
        return next(
            (
                b.time
                for b in self.batches
                if after < b.time < time and b.state is BatchState.QUARANTINED and b.commit is None
            ),
            None,
        )

    @precondition(lambda self: self.runs)
    @rule(pick=any_one, steps=st.integers(1, 4))
    def go_on(self, pick: int, steps: int) -> None:
        """Take a run's next steps, as far as nothing is in its way: random steps alone seldom get to a commit."""
        run = self.runs[pick % len(self.runs)]
        number = self.runs.index(run)
        for _ in range(steps):
            if run.batch.commit is not None and run.batch.commit[0] >= run.attempt:
                self.end_a_run(number, "complete")
                return
            if not (run.noted or run.restores):
                self.read_and_begin(number)
                self.note()
            self.commit(number, adopt=False)

    @precondition(lambda self: self.unfinished() is None and len(self.batches) < 12 and not self.runs)
    @rule(end=st.sampled_from(["complete", "complete", "fail"]))
    def run_a_batch(self, end: str) -> None:
        self.allocate()
        self.claim()
        if end == "complete":
            self.go_on(0, 2)
        if self.runs:
            self.end_a_run(0, end)

    @precondition(lambda self: any(run.begun for run in self.runs))
    @rule()
    def note(self) -> None:
        for run in self.runs:
            if run.begun and not self.versions[run.key].committed:
                is_full = len(self.versions[run.key].lineage) % STEPS == 1
                self.stated.note(run.batch.time, run.attempt, [frame(0, _path(run.key), is_full=is_full)])
                self.versions[run.key].noted = run.noted = True

    @precondition(lambda self: any(run.noted or run.restores for run in self.runs))
    @rule()
    def commit_in_the_target(self) -> None:
        """Commit in a transactional target, which never goes back to an older attempt; then anything may happen."""
        for run in self.runs:
            if run.noted or run.restores is not None:
                run.batch.target = max(run.batch.target or 0, run.attempt)

    @precondition(lambda self: self.runs)
    @rule(pick=any_one, adopt=st.booleans())
    def commit(self, pick: int, *, adopt: bool) -> None:
        run = self.runs[pick % len(self.runs)]
        of_version = run.restores if run.restores is not None else run.attempt
        if adopt and run.batch.target is not None and not run.is_replay:
            of_version = run.batch.target
        allowed = self.may_commit(run.batch, run.attempt, of_version)
        if not allowed:
            with pytest.raises(StateMovedError):
                self.stated.commit(run.batch.time, run.attempt, state_attempt=of_version)
            return
        self.stated.commit(run.batch.time, run.attempt, state_attempt=of_version)
        self.committed(run.batch, run.attempt, of_version)

    def may_commit(self, batch: Batch, attempt: int, of_version: int) -> bool:
        if batch.commit is not None and batch.commit[0] >= attempt:
            return True
        key = VersionKey(batch.time, of_version)
        version = self.versions.get(key)
        if version is None or not version.noted:
            return False
        forward = self.forward()
        if forward is None:
            return self.may_be_head(batch, version)
        return self.restores(batch, key, forward) or (
            version.forward == forward.number
            and not version.committed
            and version.read == self.in_force(forward)
            and (forward.head is None or forward.head.batch_time < batch.time)
        )

    def restores(self, batch: Batch, key: VersionKey, forward: Forward) -> bool:
        """Return whether a commit gives the batch what the replay forward, which is undone, had replaced."""
        if forward.state is not StateReplayState.UNDOING or batch.commit is None or batch.commit[1] is None:
            return False
        made = self.versions[self.key_of_commit(batch)]
        return made.forward == forward.number and made.replaced == key

    def may_be_head(self, batch: Batch, version: Version) -> bool:
        if version.forward is not None:
            return False
        if self.head is not None and self.head.batch_time == batch.time:
            return version.read == self.versions[self.head].read
        return version.read == self.head and (self.head is None or self.head.batch_time < batch.time)

    def committed(self, batch: Batch, attempt: int, of_version: int) -> None:
        """Do in the model what an allowed commit does."""
        if batch.commit is not None and batch.commit[0] >= attempt:
            return
        key = VersionKey(batch.time, of_version)
        version, forward = self.versions[key], self.forward()
        before = None if batch.commit is None or batch.commit[1] is None else self.key_of_commit(batch)
        restores = forward is not None and self.restores(batch, key, forward)
        batch.commit = (attempt, of_version)
        version.committed = True
        self.without.discard(batch.time)
        if forward is None:
            if before is not None and before != key:
                self.versions[before].committed = False
            self.head = key
        elif restores:
            assert before is not None
            self.versions[before].committed = False
        else:
            version.replaced = before
            forward.head = key
            forward.made.append(key)
            if batch.time == forward.last and forward.state is not StateReplayState.UNDOING:
                forward.state = StateReplayState.COMPLETED
                self.head = key

    @precondition(lambda self: self.runs)
    @rule(pick=any_one, how=st.sampled_from(["fail", "lose", "complete", "complete", "complete"]))
    def end_a_run(self, pick: int, how: str) -> None:
        run = self.runs[pick % len(self.runs)]
        batch = run.batch
        if how == "complete":
            if batch.commit is None or (run.is_replay and batch.commit[0] != run.attempt):
                return
            if run.is_replay:
                self.stated.complete_replay(batch.time, run.attempt)
            else:
                self.stated.complete(batch.time, run.attempt)
            batch.state = BatchState.COMPLETED
        else:
            failure = AttemptFailure.FAILED if how == "fail" else AttemptFailure.LOST
            state = self.stated.fail(batch.time, run.attempt, failure=failure, max_attempts=2)
            assert state is not None
            assert state is batch.state or not run.is_replay
            batch.state = state
        self.end(run)

    @precondition(lambda self: self.zombies)
    @rule(pick=any_one)
    def a_zombie_changes_nothing(self, pick: int) -> None:
        run = self.zombies[pick % len(self.zombies)]
        for call in (
            lambda: self.stated.begin(run.batch.time, run.attempt, run.read, replay=run.forward),
            lambda: self.stated.note(run.batch.time, run.attempt, [frame(0, "zombie", is_full=True)]),
            lambda: self.stated.commit(run.batch.time, run.attempt, state_attempt=run.restores),
        ):
            with pytest.raises(AttemptSupersededError):
                call()

    @precondition(lambda self: any(batch.target for batch in self.batches))
    @rule(pick=any_one)
    def follow_the_target(self, pick: int) -> None:
        found = [batch for batch in self.batches if batch.target]
        batch = found[pick % len(found)]
        attempt = batch.target
        assert attempt is not None
        ended = batch.state in (BatchState.COMPLETED, BatchState.QUARANTINED, BatchState.DISCARDED)
        running = any(run.batch is batch and run.attempt == attempt for run in self.runs)
        is_new = batch.commit is None or batch.commit[0] < attempt
        allowed = ended and not running and is_new and self.may_commit(batch, attempt, attempt)
        try:
            followed = outputs.follow_commit(
                self.connection, **self.stated.where, batch_time=batch.time, attempt=attempt, location="/t", rows=1
            )
        except StateMovedError:
            followed = False
        assert allowed == followed
        if allowed:
            self.committed(batch, attempt, attempt)

    @precondition(lambda self: any(batch.state is BatchState.QUARANTINED for batch in self.batches))
    @rule(pick=any_one)
    def discard(self, pick: int) -> None:
        found = [batch for batch in self.batches if batch.state is BatchState.QUARANTINED]
        batch = found[pick % len(found)]
        forward = self.forward()
        needed = forward is not None and batch.commit is not None and forward.first <= batch.time <= forward.last
        if needed or any(run.batch is batch for run in self.runs):
            with pytest.raises(DriverLogError):
                batches.discard_batch(self.connection, pipeline_id=self.stated.pipeline_id, batch_time=batch.time)
            return
        batches.discard_batch(self.connection, pipeline_id=self.stated.pipeline_id, batch_time=batch.time)
        batch.state = BatchState.DISCARDED

    # -- replays forward -----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.batches)
    @rule(pick=any_one)
    def begin_a_replay_forward(self, pick: int) -> None:
        batch = self.batches[pick % len(self.batches)]
        has_version = batch.commit is not None and batch.commit[1] is not None
        possible = (
            self.head is not None
            and self.forward() is None
            and batch.time <= self.head.batch_time
            and (has_version or batch.state is BatchState.QUARANTINED)
        )
        arguments = {**self.stated.where, "from_time": batch.time}
        if has_version:
            base = self.versions[self.key_of_commit(batch)].read
        else:
            base = next((key for key in reversed(self.lineage(self.head)) if key.batch_time < batch.time), None)
        # Clean-up may have deleted what it would read.
        given_up = self.head is not None and any(
            each.state is BatchState.DISCARDED and each.commit is not None
            for each in self.batches
            if batch.time <= each.time <= self.head.batch_time
        )
        if not possible or given_up or self.gone.intersection(self.lineage(base)[-STEPS:]):
            with pytest.raises(DriverLogError):
                state_replays.begin_state_replay(self.connection, **arguments)
            return
        number = state_replays.begin_state_replay(self.connection, **arguments)
        assert self.head is not None
        self.forwards.append(Forward(number, batch.time, self.head.batch_time, self.head, base))

    @precondition(lambda self: self.forwards)
    @rule(how=st.sampled_from(["stop", "resume", "undo", "end"]))
    def move_a_replay_forward(self, how: str) -> None:
        forward = self.forwards[-1]
        state = forward.state
        wanted = {
            "stop": StateReplayState.STOPPED,
            "resume": StateReplayState.RUNNING,
            "undo": StateReplayState.UNDOING,
            "end": StateReplayState.UNDONE,
        }[how]
        allowed = state is wanted or (state, wanted) in {
            (StateReplayState.RUNNING, StateReplayState.STOPPED),
            (StateReplayState.STOPPED, StateReplayState.RUNNING),
            (StateReplayState.RUNNING, StateReplayState.UNDOING),
            (StateReplayState.STOPPED, StateReplayState.UNDOING),
        }
        allowed |= (
            wanted is StateReplayState.UNDOING and state is StateReplayState.COMPLETED and (self.head == forward.head)
        )
        allowed |= (
            wanted is StateReplayState.UNDONE and state is StateReplayState.UNDOING and self.next_forward() is None
        )
        move = {
            "stop": state_replays.stop_state_replay,
            "resume": state_replays.resume_state_replay,
            "undo": state_replays.undo_state_replay,
            "end": state_replays.end_undoing,
        }[how]
        if not allowed:
            with pytest.raises(DriverLogError):
                move(self.connection, forward.number)
            return
        move(self.connection, forward.number)
        if how == "end" and state is StateReplayState.UNDOING:
            for key in forward.made:
                batch = self.batch_at(key.batch_time)
                if batch.commit is not None and batch.commit[1] == key.attempt:
                    batch.commit = (batch.commit[0], None)
                    self.without.add(batch.time)
                self.versions[key].committed = False
            if self.head == forward.head:
                self.head = forward.old_head
        forward.state = wanted

    # -- clean-up ------------------------------------------------------------------------------------------------------

    @rule(retains=st.booleans())
    def clean_up(self, *, retains: bool) -> None:
        """Delete what nothing needs; batches that run, or a target's results, may need what is left."""
        self.stated.age(2 * WINDOW)
        self.connection.execute(
            sa.text("UPDATE forebay.pipelines SET applied_at = clock_timestamp(), retention = CAST(:keep AS interval)"),
            {"keep": timedelta(days=365) if retains else timedelta(0)},
        )
        found = state_versions_to_delete(self.connection, restore_window=WINDOW, keep=timedelta(days=14), limit=2)
        self.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '1 year'"))
        gone = {VersionKey(state.batch_time, state.attempt) for state in found}
        running = {run.key for run in self.runs}
        assert not gone & running
        needed = self.head
        for _ in range(STEPS):
            if needed is not None:
                assert needed not in gone
                needed = self.versions[needed].read
        for state in found:
            forget_state_version(self.connection, state)
        for key in gone:
            # Nothing may be committed with it any more; what it was made of is still known here.
            self.versions[key].noted = False
        self.gone |= gone

    # -- what holds after each step ------------------------------------------------------------------------------------

    @invariant()
    def rows_are_the_models(self) -> None:
        assert self.stated.head() == self.head
        rows = self.connection.execute(
            sa.text("SELECT batch_time, attempt, state_attempt FROM forebay.output_commits ORDER BY 1")
        )
        assert [(row.batch_time, (row.attempt, row.state_attempt)) for row in rows] == [
            (batch.time, batch.commit) for batch in self.batches if batch.commit is not None
        ]
        for forward in self.forwards[-1:]:
            found = state_replays.state_replay(self.connection, forward.number)
            assert (found.state, found.base, found.head) == (forward.state, forward.base, forward.head)

    @invariant()
    def the_state_is_made_of_each_batch_once_and_in_order(self) -> None:
        lineage = self.lineage(self.head)
        times = [key.batch_time for key in lineage]
        assert times == sorted(set(times))
        for before, key in zip((None, *lineage), lineage, strict=False):
            assert self.versions[key].read == before
        forward = self.forward()
        if forward is None:
            named = [self.key_of_commit(b) for b in self.batches if b.commit is not None and b.time not in self.without]
            assert tuple(named) == lineage
        for version, head in (
            (self.head, lineage),
            *([] if forward is None else [(self.in_force(forward), self.lineage(self.in_force(forward)))]),
        ):
            found = state_versions.chain(self.connection, **self.stated.where, version=version)
            whole = max((n for n in range(len(head)) if n % STEPS == 0), default=0)
            assert [frames[0][1] for frames in found] == [_path(key) for key in head[whole:]]

    @invariant()
    def every_move_is_in_its_table_of_transitions(self) -> None:
        seen = {(row.machine, row.old, row.new) for row in self.connection.execute(sa.text(SEEN))}
        assert illegal_moves(seen) == []
        self.moves |= seen

    # -- liveness ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """End what runs and what is unfinished; then a new batch reads the head, and commits."""
        for run in list(self.runs):
            if run.batch.commit is None or (run.is_replay and run.batch.commit[0] != run.attempt):
                self.stated.fail(run.batch.time, run.attempt, max_attempts=1)
            elif run.is_replay:
                self.stated.complete_replay(run.batch.time, run.attempt)
            else:
                self.stated.complete(run.batch.time, run.attempt)
            self.end(run)
        forward = self.forward()
        if forward is not None:
            if forward.state is StateReplayState.STOPPED:
                state_replays.resume_state_replay(self.connection, forward.number)
            while (time := state_replays.next_batch(self.connection, forward.number)) is not None:
                self.stated.replay(time, forward=forward.number)
            if forward.state is StateReplayState.UNDOING:
                state_replays.end_undoing(self.connection, forward.number)
            assert not state_replays.state_replay(self.connection, forward.number).is_unfinished
        batch = self.unfinished()
        if batch is not None and batch.state is not BatchState.RUNNING:
            self.stated.claim(batch.time, batch.attempts + 1)
            self.stated.fail(batch.time, batch.attempts + 1, max_attempts=1)
        while (hole := self.stated.to_read(batch_time(99)).hole) is not None:
            self.stated.replay(hole)
        assert self.stated.run(50) == self.stated.head()


def _path(key: VersionKey) -> str:
    return f"{key.batch_time:%M%S}-{key.attempt}"


@pytest.mark.search
@pytest.mark.timeout(600)
def test_random_histories_are_the_models(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state_versions, state_replays, state_files):
        monkeypatch.setattr(module, "CHAIN_STEPS", STEPS)
    moves: set[tuple[str, str, str]] = set()
    with connect(engine) as connection:
        connection.execute(sa.text(RECORDER))

    class Machine(StateMachine):
        def __init__(self) -> None:
            super().__init__(engine, moves)

    default = settings.default
    assert default is not None
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(24),
            stateful_step_count=50,
            deadline=None,
            derandomize=default.derandomize,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert "state_replays" in MACHINES
    assert any(machine == "state_replays" for machine, _, _ in moves)
