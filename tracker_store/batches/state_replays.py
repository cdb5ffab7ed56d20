"""Read and write `state_replays`: outputs with a state that run again from one batch on.

One replay of an output is unfinished at a time, and new batches of the output wait for it
(`state_versions.state_to_read`). Its caller takes its batches in order: `next_batch`, `batches.claim_replay` with
`forward`, `state_to_read` with `forward`, `begin_version` with `replay`, and the commit, which moves the replay
(``functions/batches/move_state_head.sql``). The commit of the last batch puts the new chain in force and completes it.

To undo it, `undo_state_replay`, and the same for each batch that `next_batch` names, with two differences:
`state_to_read` says by `restores` that no version is to be written, and the commit's `state_attempt` is that. When
`next_batch` names no more, `end_undoing`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.batches.batches import is_due
from tracker_store.batches.state_versions import VersionKey
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import BlocksNotRetainedError, DriverLogError
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.state_chain import CHAIN_STEPS
from tracker_store.schema.states import UNFINISHED_STATE_REPLAYS, AttemptState, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

_REFUSED = "Nothing was changed."


@dataclass(frozen=True, slots=True)
class StateReplay:
    """Hold a replay forward as stored.

    `head` is the newest version that it committed: results up to its batch are the replay's (None: none yet).
    `process_id`: the process that runs it, or that ran it last (None: none has begun).
    """

    replay_id: int
    pipeline_id: int
    output: str
    from_time: datetime
    to_time: datetime
    state: StateReplayState
    base: VersionKey | None
    head: VersionKey | None
    began_at: datetime
    ended_at: datetime | None
    process_id: int | None

    @property
    def is_unfinished(self) -> bool:
        """Return whether new batches of the output wait for it."""
        return self.state in UNFINISHED_STATE_REPLAYS


@dataclass(frozen=True, slots=True)
class ReplayedAttempt:
    """Hold an attempt of a replay forward that has ended."""

    batch_time: datetime
    attempt: int
    state: AttemptState
    error: str


_REPLAY = """
    SELECT r.id, r.pipeline_id, r.output, r.from_time, r.to_time, r.state, r.base_batch_time, r.base_attempt,
        r.head_batch_time, r.head_attempt, r.began_at, r.ended_at, r.process_id
    FROM forebay.state_replays r
"""


def _key(batch_time: datetime | None, attempt: int) -> VersionKey | None:
    return None if batch_time is None else VersionKey(batch_time, attempt)


def _replays(connection: sa.Connection, where: str, **values: object) -> list[StateReplay]:
    with named_failures():
        rows = connection.execute(sa.text(f"{_REPLAY} {where}"), values).all()
    return [
        StateReplay(
            row.id,
            row.pipeline_id,
            row.output,
            row.from_time,
            row.to_time,
            StateReplayState(row.state),
            _key(row.base_batch_time, row.base_attempt),
            _key(row.head_batch_time, row.head_attempt),
            row.began_at,
            row.ended_at,
            row.process_id,
        )
        for row in rows
    ]


def state_replay(connection: sa.Connection, replay_id: int) -> StateReplay:
    """Return a replay forward. No locks. Raises DriverLogError."""
    found = _replays(connection, "WHERE r.id = :id", id=replay_id)
    if not found:
        raise DriverLogError(f"there is no replay {replay_id}", "`forebay status` shows those that are unfinished.")
    return found[0]


def state_replays(connection: sa.Connection, *, pipeline_id: int, output: str | None = None) -> list[StateReplay]:
    """Return a pipeline's replays forward, of one output or all, newest first. No locks."""
    return _replays(
        connection,
        "WHERE r.pipeline_id = :pipeline AND (CAST(:output AS text) IS NULL OR r.output = :output) ORDER BY r.id DESC",
        pipeline=pipeline_id,
        output=output,
    )


def begin_state_replay(
    connection: sa.Connection, *, pipeline_id: int, output: str, from_time: datetime, from_nothing: bool = False
) -> int:
    """Begin to run the output's batches again from `from_time` up to the head's; returns the replay's id.

    The first one reads what it had read, or `from_nothing` no state, as a new output does.
    From here on clean-up keeps what it reads, and no new batch of the output commits until it is COMPLETED or UNDONE.
    Locks: the pipeline's row FOR SHARE, its receivers' FOR SHARE, the output's head. Raises BlocksNotRetainedError, and
    DriverLogError if there is nothing to replay, or another replay of the output is unfinished.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail, id
                FROM forebay.begin_state_replay(:pipeline, :output, :time, :steps, :from_nothing)
            """),
            {
                "pipeline": pipeline_id,
                "output": output,
                "time": from_time,
                "steps": CHAIN_STEPS,
                "from_nothing": from_nothing,
            },
        ).one()
    if row.outcome == "not retained":
        raise BlocksNotRetainedError(row.detail)
    if row.outcome != "begun":
        raise DriverLogError(row.detail, _REFUSED)
    begun: int = row.id
    return begun


def next_batch(connection: sa.Connection, replay_id: int) -> datetime | None:
    """Return the batch that a RUNNING replay runs next, or that an UNDOING one restores next; None: there is none.

    No locks; costs the batches that are left. Raises DriverLogError.
    """
    replay = state_replay(connection, replay_id)
    values = {
        "pipeline": replay.pipeline_id,
        "output": replay.output,
        "from": replay.from_time,
        "to": replay.to_time,
        "after": None if replay.head is None else replay.head.batch_time,
        "replay": replay_id,
    }
    if replay.state is StateReplayState.UNDOING:
        with named_failures():
            restored: datetime | None = connection.execute(
                sa.text("""
                    SELECT c.batch_time
                    FROM forebay.output_commits c
                    JOIN forebay.state_versions v ON v.pipeline_id = c.pipeline_id
                      AND v.output = c.output
                      AND v.batch_time = c.batch_time
                      AND v.attempt = c.state_attempt
                    WHERE c.pipeline_id = :pipeline
                      AND c.output = :output
                      AND c.batch_time BETWEEN :from AND :to
                      AND v.replay_id = :replay
                      AND v.replaced_attempt IS NOT NULL
                    ORDER BY c.batch_time LIMIT 1
                """),
                values,
            ).scalar_one_or_none()
        return restored
    if replay.state is not StateReplayState.RUNNING:
        return None
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT b.batch_time, c.output IS NOT NULL AS has_result, p.declaration
                FROM forebay.batches b
                JOIN forebay.pipelines p ON p.id = b.pipeline_id
                LEFT JOIN forebay.output_commits c ON c.pipeline_id = b.pipeline_id
                  AND c.output = :output
                  AND c.batch_time = b.batch_time
                WHERE b.pipeline_id = :pipeline
                  AND b.batch_time BETWEEN :from AND :to
                  AND (CAST(:after AS timestamptz) IS NULL OR b.batch_time > :after)
                  AND (c.output IS NOT NULL OR b.state = 'QUARANTINED')
                ORDER BY b.batch_time
            """),
            values,
        ).all()
    return _first_due(connection, replay, rows)


def ended_attempts(
    connection: sa.Connection, replay: StateReplay, run_id: str, *, after: datetime | None
) -> list[ReplayedAttempt]:
    """Return the attempts of one run at the replay's batches behind `after` that have ended, in the batches' order.

    No locks; costs the attempts at these batches.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT a.batch_time, a.attempt, a.state, coalesce(a.error, '') AS error
                FROM forebay.batch_attempts a
                WHERE a.pipeline_id = :pipeline
                  AND a.batch_time BETWEEN :from AND :to
                  AND (CAST(:after AS timestamptz) IS NULL OR a.batch_time > :after)
                  AND a.run_id = :run
                  AND a.state <> 'RUNNING'
                ORDER BY a.batch_time, a.attempt
            """),
            {
                "pipeline": replay.pipeline_id,
                "from": replay.from_time,
                "to": replay.to_time,
                "after": after,
                "run": run_id,
            },
        ).all()
    return [ReplayedAttempt(row.batch_time, row.attempt, AttemptState(row.state), row.error) for row in rows]


def _first_due(
    connection: sa.Connection,
    replay: StateReplay,
    rows: Sequence[sa.Row[tuple[datetime, bool, dict[str, object]]]],
) -> datetime | None:
    """Return the first batch with a result, or that is quarantined and in which the output is due."""
    for row in rows:
        declared = PipelineDeclaration.of(row.declaration)
        if row.has_result or is_due(connection, replay.pipeline_id, declared, replay.output, row.batch_time):
            found: datetime = row.batch_time
            return found
    return None


def take_state_replay(connection: sa.Connection, replay_id: int, process_id: int) -> None:
    """Begin to run a replay that is RUNNING or UNDOING in this process, which alone may claim its batches from here on.

    Locks: the output's head, then the replay's row. Raises DriverLogError if another process that lives runs it.
    """
    with named_failures():
        row = connection.execute(
            sa.text("SELECT outcome, detail FROM forebay.take_state_replay(:replay, :process)"),
            {"replay": replay_id, "process": process_id},
        ).one()
    if row.outcome != "taken":
        raise DriverLogError(row.detail, _REFUSED)


def _move(connection: sa.Connection, replay_id: int, wanted: StateReplayState, process_id: int | None = None) -> None:
    with named_failures():
        row = connection.execute(
            sa.text("SELECT outcome, detail FROM forebay.move_state_replay(:replay, :wanted, :process)"),
            {"replay": replay_id, "wanted": wanted.value, "process": process_id},
        ).one()
    if row.outcome != "moved":
        raise DriverLogError(row.detail, _REFUSED)


def stop_state_replay(connection: sa.Connection, replay_id: int, *, process_id: int | None = None) -> None:
    """Stop a replay after the batch that runs. New batches of the output go on waiting. Locks: the output's head.

    `process_id`: the process that stops what it runs. Raises DriverLogError, also if another has taken it over.
    """
    _move(connection, replay_id, StateReplayState.STOPPED, process_id)


def resume_state_replay(connection: sa.Connection, replay_id: int) -> None:
    """Let a stopped replay go on where it was. Locks: the output's head. Raises DriverLogError."""
    _move(connection, replay_id, StateReplayState.RUNNING)


def undo_state_replay(connection: sa.Connection, replay_id: int) -> None:
    """Begin to give each replayed batch the result and the version again that it had. Locks: the output's head.

    Raises DriverLogError, also if a later batch has read what a COMPLETED one made.
    """
    _move(connection, replay_id, StateReplayState.UNDOING)


def end_undoing(connection: sa.Connection, replay_id: int) -> None:
    """End the undoing of a replay of which `next_batch` names no more; the head is where it was. Locks: the head.

    A batch that had no result before the replay keeps the one that the replay made, and the state does not have it.
    Raises DriverLogError while a batch is left.
    """
    _move(connection, replay_id, StateReplayState.UNDONE)


@dataclass(frozen=True, slots=True)
class ForwardCost:
    """Count what a replay forward runs again; records and bytes are those of the batches' own blocks."""

    batches: int
    records: int
    bytes: int


def forward_cost(connection: sa.Connection, *, pipeline_id: int, output: str, from_time: datetime) -> ForwardCost:
    """Count what a replay forward from a batch on would run. No locks; costs these batches."""
    return _cost(connection, pipeline_id, output, first=from_time)


def batches_left(connection: sa.Connection, replay_id: int) -> int:
    """Count the batches that a replay forward, or its undoing, has left at most. No locks; costs these batches."""
    replay = state_replay(connection, replay_id)
    done = None if replay.head is None else replay.head.batch_time
    if replay.state is StateReplayState.UNDOING:
        after, last = None, done or replay.to_time
    else:
        after, last = done, replay.to_time
    return _cost(connection, replay.pipeline_id, replay.output, first=replay.from_time, after=after, last=last).batches


def _cost(
    connection: sa.Connection,
    pipeline_id: int,
    output: str,
    *,
    first: datetime,
    after: datetime | None = None,
    last: datetime | None = None,
) -> ForwardCost:
    """Count the batches with a result, or quarantined, from `first` on and behind `after`, up to `last` or the head."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT count(*) AS batches, coalesce(sum(b.records), 0)::bigint AS records,
                    coalesce(sum(b.bytes), 0)::bigint AS bytes
                FROM forebay.batches b
                JOIN forebay.state_heads h ON h.pipeline_id = b.pipeline_id AND h.output = :output
                WHERE b.pipeline_id = :pipeline
                  AND b.batch_time BETWEEN :first AND coalesce(CAST(:last AS timestamptz), h.batch_time)
                  AND (CAST(:after AS timestamptz) IS NULL OR b.batch_time > :after)
                  AND (
                      b.state = 'QUARANTINED'
                      OR EXISTS (
                          SELECT
                          FROM forebay.output_commits c
                          WHERE c.pipeline_id = b.pipeline_id AND c.output = :output AND c.batch_time = b.batch_time
                          OFFSET 0
                      )
                  )
            """),
            {"pipeline": pipeline_id, "output": output, "first": first, "after": after, "last": last},
        ).one()
    return ForwardCost(row.batches, row.records, row.bytes)
