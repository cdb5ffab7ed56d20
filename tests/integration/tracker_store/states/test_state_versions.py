"""Test which version of an output's state an attempt reads, and which commit moves the head."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from tests.support.driver_log.log import INTERVAL, wait_until_blocked
from tests.support.driver_log.stated_log import (
    BUCKETS,
    DECLARATION,
    OUTPUT,
    StatedLog,
    batch_time,
    frame,
    make_stated_log,
)
from tracker_store.batches import batches, outputs, state_versions
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.state_replays import begin_state_replay
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import (
    AttemptSupersededError,
    DriverLogError,
    StatefulReplayError,
    StateMovedError,
)
from tracker_store.reports.state_status import output_states
from tracker_store.schema.state_chain import CHAIN_STEPS
from tracker_store.schema.states import AttemptFailure, BatchState

if TYPE_CHECKING:
    from datetime import datetime

T1, T2, T3 = (batch_time(number) for number in (1, 2, 3))


@pytest.fixture
def stated(connection: sa.Connection) -> StatedLog:
    """Make a log with an output that has a state."""
    return make_stated_log(connection)


def follow(stated: StatedLog, time: datetime, attempt: int) -> bool:
    return outputs.follow_commit(
        stated.connection, **stated.where, batch_time=time, attempt=attempt, location="/t", rows=1
    )


def refused(stated: StatedLog, time: datetime, attempt: int) -> str:
    with pytest.raises(StateMovedError) as refusal:
        follow(stated, time, attempt)
    return str(refusal.value)


def test_each_batch_reads_what_the_one_before_committed(stated: StatedLog) -> None:
    stated.allocate(1)
    first = stated.to_read(T1)
    assert (first.head, first.ordinal, first.buckets, first.hole, first.replay) == (None, 1, None, None, None)
    one = stated.run(1, allocate=False)
    assert stated.head() == one == VersionKey(T1, 1)
    stated.allocate(2)
    second = stated.to_read(T2)
    assert (second.head, second.ordinal, second.buckets) == (one, 2, BUCKETS)
    two = stated.run(2, allocate=False)
    assert stated.head() == two
    assert stated.state_attempt(T2) == 1
    found = state_versions.version(stated.connection, **stated.where, batch_time=T2, attempt=1)
    assert found is not None
    schema = {"key": [["user", "string"]], "value": [["n", "bigint"]]}
    assert (found.read, found.ordinal, found.committed, found.schema) == (one, 2, True, schema)
    [head] = state_versions.state_heads(stated.connection, pipeline_id=stated.pipeline_id)
    assert (head.output, head.key, head.generation, head.schema_version) == (OUTPUT, two, 1, 1)
    assert (head.schema, head.buckets) == (found.schema, BUCKETS)


def test_a_version_whose_frames_are_not_noted_is_not_committed(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    with pytest.raises(StateMovedError, match="not there"):
        stated.commit(T1, 1)
    stated.begin(T1, 1, None)
    with pytest.raises(StateMovedError, match="not whole"):
        stated.commit(T1, 1)
    assert outputs.commits_of_batch(stated.connection, stated.pipeline_id, T1) == []
    assert stated.head() is None
    stated.note(T1, 1)
    stated.commit(T1, 1)
    # Its answer was lost.
    stated.commit(T1, 1)
    assert stated.head() == VersionKey(T1, 1)


def test_a_superseded_attempt_begins_notes_and_commits_nothing(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    stated.fail(T1, 1, failure=AttemptFailure.LOST)
    stated.claim(T1, 2)
    for call in (
        lambda: stated.begin(T1, 1, None),
        lambda: stated.note(T1, 1),
        lambda: stated.commit(T1, 1),
    ):
        with pytest.raises(AttemptSupersededError):
            call()
    stated.begin(T1, 2, None)
    stated.note(T1, 2)
    stated.commit(T1, 2)
    assert stated.head() == VersionKey(T1, 2)


def test_a_run_that_is_launched_again_keeps_what_it_noted_unless_it_reads_another_version(stated: StatedLog) -> None:
    def frames(time: datetime, attempt: int) -> list[list[Any]] | None:
        found = state_versions.version(stated.connection, **stated.where, batch_time=time, attempt=attempt)
        assert found is not None
        return found.frames

    quarantined = stated.quarantine(1)
    stated.allocate(2)
    stated.claim(T2)
    stated.begin(T2, 1, None)
    stated.note(T2, 1)
    noted = frames(T2, 1)
    stated.begin(T2, 1, None)
    assert frames(T2, 1) == noted is not None
    stated.begin(T2, 1, None, buckets=BUCKETS + 1)
    assert frames(T2, 1) is None
    stated.note(T2, 1)
    # The batch before it is replayed meanwhile, and fills its hole.
    filled = stated.replay(quarantined)
    with pytest.raises(StateMovedError, match="read that of no batch"):
        stated.commit(T2, 1)
    with pytest.raises(StateMovedError, match="read the version of no batch"):
        stated.begin(T2, 1, None)
    stated.begin(T2, 1, filled)
    assert frames(T2, 1) is None
    stated.note(T2, 1)
    stated.commit(T2, 1)
    for call in (lambda: stated.begin(T2, 1, filled), lambda: stated.note(T2, 1, [])):
        with pytest.raises(StateMovedError, match="committed"):
            call()
    assert stated.head() == VersionKey(T2, 1)


def test_a_target_s_commit_is_adopted_by_the_next_attempt_with_its_version(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    stated.note(T1, 1)
    stated.fail(T1, 1, failure=AttemptFailure.LOST)
    stated.claim(T1, 2)
    stated.commit(T1, 2, state_attempt=1)
    stated.complete(T1, 2)
    assert stated.head() == VersionKey(T1, 1)
    assert stated.state_attempt(T1) == 1
    assert stated.run(2) == stated.head()


def test_following_a_target_moves_the_head_too_or_records_nothing(stated: StatedLog) -> None:
    # The attempt wrote no version: the target has a result that the state lacks.
    stated.quarantine(1)
    assert "attempt 1 is not there" in refused(stated, T1, 1)
    batches.discard_batch(stated.connection, pipeline_id=stated.pipeline_id, batch_time=T1)
    # It wrote one.
    stated.allocate(2)
    stated.claim(T2)
    stated.begin(T2, 1, None)
    stated.note(T2, 1)
    assert not follow(stated, T2, 1), "it runs"
    assert stated.fail(T2, 1) is BatchState.QUARANTINED
    assert stated.to_read(T3).hole == T2
    assert follow(stated, T2, 1)
    assert not follow(stated, T2, 1)
    assert stated.head() == VersionKey(T2, 1)
    assert stated.to_read(T3).hole is None
    # The head has gone on past it.
    stated.allocate(3)
    stated.claim(T3)
    stated.begin(T3, 1, stated.head())
    stated.note(T3, 1)
    stated.fail(T3, 1)
    four = stated.run(4)
    assert "is in force" in refused(stated, T3, 1)
    assert stated.head() == four


def test_a_replay_takes_the_place_of_its_own_batch_s_version_that_was_followed_meanwhile(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    stated.note(T1, 1)
    stated.fail(T1, 1)
    attempt = stated.claim_replay(T1)
    stated.begin(T1, attempt, None)
    stated.note(T1, attempt)
    assert follow(stated, T1, 1)
    assert stated.head() == VersionKey(T1, 1)
    stated.commit(T1, attempt)
    stated.complete_replay(T1, attempt)
    assert stated.head() == VersionKey(T1, attempt)
    assert stated.versions() == [(VersionKey(T1, 1), False, False), (VersionKey(T1, attempt), True, False)]


def test_a_quarantined_batch_is_a_hole_until_it_is_replayed_or_discarded(stated: StatedLog) -> None:
    stated.run(1)
    stated.quarantine(2)
    stated.quarantine(3)
    assert stated.to_read(batch_time(4)).hole == T2
    assert stated.to_read(T3).hole == T2
    assert stated.to_read(T2).hole is None
    stated.replay(T2)
    assert stated.to_read(batch_time(4)).hole == T3
    batches.discard_batch(stated.connection, pipeline_id=stated.pipeline_id, batch_time=T3)
    assert stated.to_read(batch_time(4)).hole is None


def test_a_batch_in_which_the_output_is_not_due_is_no_hole(stated: StatedLog) -> None:
    slide = {"window": "lines", "length_ms": 20_000, "slide_ms": 20_000}
    apply_pipeline(
        stated.connection,
        name="words",
        declaration={**DECLARATION, "outputs": {OUTPUT: {"inputs": [slide], "state": {}}}},
        stream_ids=[stated.log.stream_id],
        interval=INTERVAL,
    )
    stated.quarantine(1)
    assert stated.to_read(T2).hole is None
    stated.quarantine(2)
    assert stated.to_read(T3).hole == T2


def test_a_batch_that_was_quarantined_before_the_output_had_a_state_is_no_hole(stated: StatedLog) -> None:
    def declare(outputs: dict[str, Any]) -> None:
        apply_pipeline(
            stated.connection,
            name="words",
            declaration={**DECLARATION, "outputs": outputs},
            stream_ids=[stated.log.stream_id],
            interval=INTERVAL,
        )

    with_state, without = DECLARATION["outputs"], {OUTPUT: {"inputs": ["lines"]}}
    declare(without)
    stated.quarantine(1)
    declare(with_state)
    assert stated.to_read(T2).hole is None
    stated.quarantine(2)
    declare(with_state)
    assert stated.to_read(T3).hole == T2, "it was declared by then, and is no other one now"
    stated.replay(T2)
    assert stated.to_read(T3).hole is None
    # It is left out for a while: its state goes on from what it was.
    declare(without)
    stated.quarantine(3)
    declare(with_state)
    found = stated.to_read(batch_time(4))
    assert (found.head, found.hole) == (VersionKey(T2, 2), None)
    stated.allocate(4)
    stated.claim(batch_time(4))
    stated.fail(batch_time(4), 1, failure=AttemptFailure.BLOCKED)
    [status] = output_states(stated.connection)
    assert status.waits_for is None


def test_an_earlier_batch_that_is_not_finished_is_waited_for(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.allocate(2)
    found = stated.to_read(T2)
    assert (found.hole, found.unfinished) == (None, T1)
    stated.run(1, allocate=False)
    assert stated.to_read(T2).unfinished is None


def test_only_what_no_later_batch_has_read_can_be_replayed(stated: StatedLog) -> None:
    stated.run(1)
    with pytest.raises(StatefulReplayError, match=r"has a result of output totals.*--forward"):
        stated.claim_replay(T1)
    # Other outputs of the batch can.
    attempt = stated.claim_replay(T1, stateful=[])
    stated.fail(T1, attempt)
    stated.quarantine(2)
    # It is skipped.
    stated.run(3)
    with pytest.raises(StatefulReplayError, match=r"left out of the state.*--forward"):
        stated.claim_replay(T2)
    assert batches.running_batches(stated.connection, stated.pipeline_id) == []


def test_a_commit_whose_answer_was_lost_is_repeated_after_the_head_has_gone_on(stated: StatedLog) -> None:
    stated.quarantine(1)
    attempt = stated.claim_replay(T1)
    stated.begin(T1, attempt, None)
    stated.note(T1, attempt)
    stated.commit(T1, attempt)
    two = stated.run(2)
    stated.commit(T1, attempt)
    stated.complete_replay(T1, attempt)
    assert stated.head() == two


@pytest.mark.parametrize("has_head", [False, True])
@pytest.mark.parametrize("newer_first", [False, True])
def test_two_commits_of_two_batches_that_read_the_same_version(
    stated: StatedLog, engine: sa.Engine, *, has_head: bool, newer_first: bool
) -> None:
    """Whichever comes second waits for the head, and is refused."""
    head = stated.run(1) if has_head else None
    older, newer = stated.quarantine(2), stated.allocate(3)
    stated.claim(newer)
    stated.begin(newer, 1, head)
    stated.note(newer, 1)
    attempt = stated.claim_replay(older)
    stated.begin(older, attempt, head)
    stated.note(older, attempt)
    first, second = VersionKey(older, attempt), VersionKey(newer, 1)
    if newer_first:
        first, second = second, first
    refused: list[BaseException] = []
    with connect(engine) as one, connect(engine) as two:

        def commit() -> None:
            try:
                stated.on(two).commit(second.batch_time, second.attempt)
            except StateMovedError as error:
                refused.append(error)

        one.exec_driver_sql("BEGIN")
        stated.on(one).commit(first.batch_time, first.attempt)
        thread = threading.Thread(target=commit)
        thread.start()
        wait_until_blocked(stated.connection)
        one.exec_driver_sql("COMMIT")
        thread.join(30)
    assert len(refused) == 1
    assert stated.head() == first
    assert outputs.commits_of_batch(stated.connection, stated.pipeline_id, second.batch_time) == []


def test_a_commit_that_waits_for_the_begin_of_a_replay_forward_is_refused(stated: StatedLog, engine: sa.Engine) -> None:
    one = stated.run(1)
    stated.allocate(2)
    stated.claim(T2)
    stated.begin(T2, 1, one)
    stated.note(T2, 1)
    refused: list[BaseException] = []

    with connect(engine) as other:

        def commit() -> None:
            try:
                stated.on(other).commit(T2, 1)
            except StateMovedError as error:
                refused.append(error)

        stated.connection.exec_driver_sql("BEGIN")
        begin_state_replay(stated.connection, **stated.where, from_time=T1)
        thread = threading.Thread(target=commit)
        thread.start()
        with connect(engine) as third:
            wait_until_blocked(third)
        stated.connection.exec_driver_sql("COMMIT")
        thread.join(30)
    assert "replay 1 of the output is RUNNING" in str(refused[0])
    assert stated.head() == one


def test_a_chain_begins_for_each_bucket_with_its_newest_full_frame(stated: StatedLog) -> None:
    def paths(version: VersionKey | None) -> list[list[str]]:
        found = state_versions.chain(stated.connection, **stated.where, version=version)
        return [[row[1] for row in frames] for frames in found]

    assert paths(None) == []
    one = stated.run(1, frames=[frame(0, "a0", is_full=True), frame(1, "a1", is_full=True)])
    two = stated.run(2, frames=[frame(0, "b0", is_full=False)])
    three = stated.run(3, frames=[frame(1, "c1", is_full=True), frame(0, "c0", is_full=False)])
    four = stated.run(4, frames=[])
    assert paths(one) == [["a0", "a1"]]
    assert paths(two) == [["a0", "a1"], ["b0"]]
    assert paths(three) == paths(four) == [["a0"], ["b0"], ["c1", "c0"]]
    five = stated.run(5, frames=[frame(0, "e0", is_full=True)])
    assert paths(five) == [["c1"], ["e0"]]


@pytest.mark.parametrize("changed", [{"schema_version": 2}, {"value": "m"}, {"buckets": 2 * BUCKETS}])
def test_a_chain_does_not_go_past_another_schema_or_number_of_buckets(
    stated: StatedLog, changed: dict[str, Any]
) -> None:
    one = stated.run(1, frames=[frame(0, "a0", is_full=True), frame(1, "a1", is_full=True)])
    time = stated.allocate(2)
    stated.claim(time)
    stated.begin(time, 1, one, **changed)
    stated.note(time, 1, [frame(0, "b0", is_full=True)])
    stated.commit(time, 1)
    found = state_versions.chain(stated.connection, **stated.where, version=VersionKey(time, 1))
    assert found == [[frame(0, "b0", is_full=True)]]


def test_a_chain_that_lacks_a_version_is_refused(stated: StatedLog) -> None:
    one = stated.run(1, frames=[frame(0, "a0", is_full=True)])
    two = stated.run(2, frames=[frame(0, "b0", is_full=False)])
    stated.connection.execute(
        sa.text("DELETE FROM forebay.state_versions WHERE batch_time = :t"), {"t": one.batch_time}
    )
    with pytest.raises(DriverLogError, match="what was before the version of batch 2026-01-01T12:00:20"):
        state_versions.chain(stated.connection, **stated.where, version=two)
    with pytest.raises(DriverLogError, match="the version of batch 2026-01-01T12:00:10"):
        state_versions.chain(stated.connection, **stated.where, version=one)


def test_an_interval_without_records_runs_if_a_key_expires(stated: StatedLog) -> None:
    def state(number: int) -> BatchState:
        batch = batches.get_batch(stated.connection, stated.pipeline_id, stated.allocate(number, records=False))
        assert batch is not None
        return batch.state

    def declare(**changed: object) -> None:
        apply_pipeline(
            stated.connection,
            name="words",
            declaration={**DECLARATION, **changed},
            stream_ids=[stated.log.stream_id],
            interval=INTERVAL,
        )

    stated.run(1, next_expiry=batch_time(3))
    assert state(2) is BatchState.COMPLETED
    declare(settings={"run_empty_batches": False})
    assert state(3) is BatchState.COMPLETED
    declare(outputs={OUTPUT: {"inputs": ["lines"]}})
    assert state(4) is BatchState.COMPLETED
    declare(outputs={"other": {"inputs": ["lines"], "state": {}}})
    assert state(5) is BatchState.COMPLETED
    slide = {"window": "lines", "length_ms": 20_000, "slide_ms": 20_000}
    declare(outputs={OUTPUT: {"inputs": [slide], "state": {}}})
    assert state(7) is BatchState.COMPLETED
    declare()
    assert state(8) is BatchState.ALLOCATED
    stated.run(8, allocate=False, next_expiry=None)
    assert state(9) is BatchState.COMPLETED


def test_reading_costs_no_more_than_the_chain(stated: StatedLog) -> None:
    """A long history before it is not read: at most CHAIN_STEPS versions are."""
    stated.connection.execute(
        sa.text("""
            INSERT INTO forebay.state_versions (pipeline_id, output, batch_time, attempt, ordinal, read_batch_time,
                read_attempt, schema_version, schema, buckets, folder, frames, committed_at)
            SELECT :p, :o, :t + n * interval '10 s', 1, n + 1, CASE WHEN n > 0 THEN :t + (n - 1) * interval '10 s' END,
                CASE WHEN n > 0 THEN 1 END, 1, '{}', 1, 'f' || n,
                jsonb_build_array(jsonb_build_array(0, 'p' || n, 0, 1, 1, 1, n % 32 = 0, NULL)), clock_timestamp()
            FROM generate_series(0, 320) AS n
        """),
        {"p": stated.pipeline_id, "o": OUTPUT, "t": T1},
    )
    found = state_versions.chain(stated.connection, **stated.where, version=VersionKey(T1 + 319 * INTERVAL, 1))
    assert [frames[0][1] for frames in found] == [f"p{n}" for n in range(288, 320)]
    assert len(found) == CHAIN_STEPS


def source(name: str | None, latest: datetime | None, *, seen: datetime = T1, idle: bool = False) -> dict[str, Any]:
    return {
        "stream": "lines",
        "source": name,
        "latest": None if latest is None else latest.isoformat(),
        "seen": seen.isoformat(),
        "idle": idle,
    }


def event_time_of(stated: StatedLog, time: datetime, attempt: int = 1) -> tuple[Any, ...]:
    found = state_versions.version(stated.connection, **stated.where, batch_time=time, attempt=attempt)
    assert found is not None
    total = stated.connection.execute(
        sa.text("SELECT late_total FROM forebay.state_versions WHERE batch_time = :t AND attempt = :a"),
        {"t": time, "a": attempt},
    ).scalar_one()
    return found.watermark, found.event_times, found.late, total


def test_a_version_keeps_the_watermark_and_its_chain_counts_the_late_records(stated: StatedLog) -> None:
    sources = [source("1", T1), source("2:0", None, idle=True)]
    stated.run(1, late=0, event_times=sources)
    assert event_time_of(stated, T1) == (None, sources, 0, 0)
    stated.run(2, watermark=T1, late=3, event_times=sources)
    stated.run(3, watermark=T2, late=4, event_times=[])
    assert event_time_of(stated, T2) == (T1, sources, 3, 3)
    assert event_time_of(stated, T3) == (T2, [], 4, 7)
    forward = begin_state_replay(stated.connection, **stated.where, from_time=T2)
    again = [stated.replay(time, forward=forward, watermark=T1, late=late) for time, late in ((T2, 1), (T3, 1))]
    assert stated.head() == again[-1]
    assert event_time_of(stated, T3, again[-1].attempt) == (T1, None, 1, 2), "of the chain that is in force"


def test_a_version_of_no_event_time_has_none_and_keeps_the_total_before_it(stated: StatedLog) -> None:
    stated.run(1)
    assert event_time_of(stated, T1) == (None, None, None, None)
    stated.run(2, late=2)
    stated.run(3)
    assert event_time_of(stated, T3) == (None, None, None, 2)


def test_the_same_frames_with_another_watermark_are_noted_until_they_are_committed(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    stated.note(T1, 1, [], watermark=T1, late=1, event_times=[])
    # Launched again, with another lateness.
    stated.note(T1, 1, [], watermark=T2, late=0, event_times=[source(None, T2)])
    noted = (T2, [source(None, T2)], 0, 0)
    assert event_time_of(stated, T1) == noted
    stated.commit(T1, 1)
    stated.note(T1, 1, [], watermark=T2, late=0, event_times=[source(None, T2)])
    with pytest.raises(StateMovedError, match="committed"):
        stated.note(T1, 1, [], watermark=T1, late=0, event_times=[source(None, T2)])
    assert event_time_of(stated, T1) == noted


def test_a_version_that_is_begun_from_another_one_forgets_its_watermark(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    stated.note(T1, 1, watermark=T1, late=1, event_times=[])
    stated.begin(T1, 1, None)
    assert event_time_of(stated, T1) == (T1, [], 1, 1)
    stated.begin(T1, 1, None, schema_version=2)
    assert event_time_of(stated, T1) == (None, None, None, None)


@pytest.mark.parametrize(
    "wrong", [{"latest": "12 o'clock"}, {"latest": "infinity"}, {"stream": None}, {"seen": None}, {"idle": None}]
)
def test_how_far_a_source_is_must_be_readable(stated: StatedLog, wrong: dict[str, Any]) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    with pytest.raises(sa.exc.DBAPIError):
        stated.note(T1, 1, event_times=[source("1", T1), {**source("2", T1), **wrong}])
    assert event_time_of(stated, T1) == (None, None, None, None)


def test_a_batch_driver_of_the_version_before_notes_its_versions(stated: StatedLog) -> None:
    stated.allocate(1)
    stated.claim(T1)
    stated.begin(T1, 1, None)
    outcome = stated.connection.execute(
        sa.text("SELECT outcome FROM forebay.note_state_version(:p, :t, 1, :o, '[]', NULL, 1, 0, 0, NULL)"),
        {"p": stated.pipeline_id, "t": T1, "o": OUTPUT},
    ).scalar_one()
    assert outcome == "noted"
    stated.commit(T1, 1)
