"""Read and write `state_versions` and `state_heads`: which version of an output's state an attempt reads and writes.

A version is what one attempt wrote. Its row is inserted before its first file (`begin_version`), its frames are noted
when all are stored (`note_version`), and it counts once a commit names it: `outputs.commit_output` moves the head from
the version that was read, or commits nothing. So nothing read here needs a lock.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.batches.batches import is_due
from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import AttemptSupersededError, DriverLogError, NotAppliedError, StateMovedError
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.state_chain import CHAIN_STEPS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

_BUCKET, _IS_FULL = 0, 6  # where a frame's row has them


@dataclass(frozen=True, slots=True)
class VersionKey:
    """Name a version of an output's state."""

    batch_time: datetime
    attempt: int


@dataclass(frozen=True, slots=True)
class StateToRead:
    """Hold what an attempt at a batch reads, and what it has to wait for.

    Attributes:
        head: the version to read; None: there is none yet.
        ordinal: of the version to be made.
        buckets: of the version to read; None without one.
        hole: the oldest quarantined batch between the head and this one that lacks a result of the output; not one from
            before the output was declared with a state.
        replay: the unfinished replay forward that new batches of the output wait for.
        unfinished: as `hole`, of a batch that will be tried again: wait for it, whatever `on_failure` says.
        restores: write no version, and commit with this `state_attempt`: a replay forward is being undone.
        to_time: the last batch of the replay forward; None without one.
    """

    head: VersionKey | None
    ordinal: int
    buckets: int | None
    hole: datetime | None
    replay: int | None
    unfinished: datetime | None = None
    restores: int | None = None
    to_time: datetime | None = None


@dataclass(frozen=True, slots=True)
class StateVersion:
    """Hold a version as stored. `frames` is None until all are stored; `committed`: a commit names it.

    `schema` is what `begin_version` was given. `replay`: the replay forward that made it. `watermark`, `event_times`
    and `late` are what `note_version` was given.
    """

    key: VersionKey
    ordinal: int
    read: VersionKey | None
    schema_version: int
    schema: Any
    buckets: int
    folder: str
    frames: list[list[Any]] | None
    keys: int | None
    changed: int | None
    deleted: int | None
    bytes: int | None
    next_expiry: datetime | None
    committed: bool
    replay: int | None
    watermark: datetime | None = None
    event_times: list[dict[str, Any]] | None = None
    late: int | None = None


def head_version(connection: sa.Connection, pipeline_id: int, output: str) -> VersionKey | None:
    """Return which version of an output's state counts; None: it has none. No locks; by the primary key."""
    with named_failures():
        row = connection.execute(
            sa.text(
                "SELECT batch_time, attempt FROM forebay.state_heads WHERE pipeline_id = :pipeline AND output = :output"
            ),
            {"pipeline": pipeline_id, "output": output},
        ).one_or_none()
    return None if row is None else VersionKey(row.batch_time, row.attempt)


def state_to_read(
    connection: sa.Connection, *, pipeline_id: int, output: str, batch_time: datetime, forward: int | None = None
) -> StateToRead:
    """Return which version of the output's state an attempt at a batch reads; `forward`: of this replay forward.

    No locks: the commit is refused if the head has moved by then. Cost: the quarantined and unfinished batches after
    the head. Raises NotAppliedError, and StateMovedError if the replay does not run or has not got to this batch.
    """
    if forward is not None:
        return _to_read_forward(connection, forward, output, batch_time)
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT h.batch_time, h.attempt, h.buckets, v.ordinal, r.id AS replay, p.declaration,
                    ARRAY(
                        SELECT b.batch_time
                        FROM forebay.batches b
                        WHERE b.pipeline_id = p.id
                          AND b.state = 'QUARANTINED'
                          AND b.batch_time < :time
                          AND b.batch_time > coalesce(
                              greatest(h.batch_time, CAST(p.states_after ->> :output AS timestamptz)), '-infinity')
                          AND NOT EXISTS (
                              SELECT
                              FROM forebay.output_commits c
                              WHERE c.pipeline_id = p.id AND c.output = :output AND c.batch_time = b.batch_time
                              OFFSET 0
                          )
                        ORDER BY b.batch_time
                    ) AS quarantined,
                    ARRAY(
                        SELECT b.batch_time
                        FROM forebay.batches b
                        WHERE b.pipeline_id = p.id
                          AND b.state IN ('ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED')
                          AND b.batch_time < :time
                          AND b.batch_time > coalesce(h.batch_time, '-infinity')
                          AND NOT EXISTS (
                              SELECT
                              FROM forebay.output_commits c
                              WHERE c.pipeline_id = p.id AND c.output = :output AND c.batch_time = b.batch_time
                              OFFSET 0
                          )
                        ORDER BY b.batch_time
                    ) AS unfinished
                FROM forebay.pipelines p
                LEFT JOIN forebay.state_heads h ON h.pipeline_id = p.id AND h.output = :output
                LEFT JOIN forebay.state_versions v ON v.pipeline_id = h.pipeline_id
                  AND v.output = h.output
                  AND v.batch_time = h.batch_time
                  AND v.attempt = h.attempt
                LEFT JOIN forebay.state_replays r ON r.pipeline_id = p.id
                  AND r.output = :output
                  AND r.state IN ('RUNNING', 'STOPPED', 'UNDOING')
                WHERE p.id = :pipeline
            """),
            {"pipeline": pipeline_id, "output": output, "time": batch_time},
        ).one_or_none()
    if row is None:
        raise NotAppliedError(f"pipeline {pipeline_id} is not in the driver log")
    declared = PipelineDeclaration.of(row.declaration)

    def oldest_due(times: Sequence[datetime]) -> datetime | None:
        return next((time for time in times if is_due(connection, pipeline_id, declared, output, time)), None)

    return StateToRead(
        head=None if row.batch_time is None else VersionKey(row.batch_time, row.attempt),
        ordinal=(row.ordinal or 0) + 1,
        buckets=row.buckets,
        hole=oldest_due(row.quarantined),
        replay=row.replay,
        unfinished=oldest_due(row.unfinished),
    )


def _to_read_forward(connection: sa.Connection, replay: int, output: str, batch_time: datetime) -> StateToRead:
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT r.state, r.output, r.from_time, r.to_time, r.head_batch_time, base.batch_time, base.attempt,
                    v.ordinal, v.buckets, restored.attempt AS restores
                FROM forebay.state_replays r
                LEFT JOIN forebay.output_commits c ON c.pipeline_id = r.pipeline_id
                  AND c.output = r.output
                  AND c.batch_time = :time
                -- The version that the replay replaced, while it is undone.
                LEFT JOIN forebay.state_versions made ON made.pipeline_id = r.pipeline_id
                  AND made.output = r.output
                  AND made.batch_time = :time
                  AND made.attempt = c.state_attempt
                  AND made.replay_id = r.id
                  AND r.state = 'UNDOING'
                LEFT JOIN forebay.state_versions restored ON restored.pipeline_id = r.pipeline_id
                  AND restored.output = r.output
                  AND restored.batch_time = :time
                  AND restored.attempt = made.replaced_attempt
                CROSS JOIN LATERAL (
                    SELECT restored.read_batch_time AS batch_time, restored.read_attempt AS attempt
                    WHERE r.state = 'UNDOING'
                    UNION ALL
                    SELECT r.head_batch_time, r.head_attempt
                    WHERE r.state <> 'UNDOING' AND r.head_batch_time IS NOT NULL
                    UNION ALL
                    SELECT r.base_batch_time, r.base_attempt
                    WHERE r.state <> 'UNDOING' AND r.head_batch_time IS NULL
                ) AS base
                LEFT JOIN forebay.state_versions v ON v.pipeline_id = r.pipeline_id
                  AND v.output = r.output
                  AND v.batch_time = base.batch_time
                  AND v.attempt = base.attempt
                WHERE r.id = :replay AND r.output = :output
            """),
            {"replay": replay, "output": output, "time": batch_time},
        ).one_or_none()
    if row is None:
        raise StateMovedError(f"there is no replay {replay} of output {output}")
    if row.state not in ("RUNNING", "UNDOING"):
        raise StateMovedError(f"replay {replay} of output {output} is {row.state}")
    passed = row.head_batch_time is not None and batch_time <= row.head_batch_time
    if row.restores is None if row.state == "UNDOING" else passed or not row.from_time <= batch_time <= row.to_time:
        raise StateMovedError(f"replay {replay} of output {output} has nothing to do at batch {batch_time.isoformat()}")
    return StateToRead(
        head=None if row.batch_time is None else VersionKey(row.batch_time, row.attempt),
        ordinal=(row.ordinal or 0) + 1,
        buckets=row.buckets,
        hole=None,
        replay=None,
        restores=row.restores,
        to_time=row.to_time,
    )


@dataclass(frozen=True, slots=True)
class StateHead:
    """Hold the version of an output's state that is in force, and how it was declared.

    `generation` is raised each time that a replay forward, or its undoing, puts another chain in force.
    """

    output: str
    key: VersionKey
    generation: int
    schema_version: int
    schema: Any
    buckets: int


def state_heads(connection: sa.Connection, *, pipeline_id: int) -> list[StateHead]:
    """Return the states of a pipeline's outputs, also of those that are not declared any more, by name. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT output, batch_time, attempt, generation, schema_version, schema, buckets
                FROM forebay.state_heads
                WHERE pipeline_id = :pipeline
                ORDER BY output
            """),
            {"pipeline": pipeline_id},
        ).all()
    return [
        StateHead(
            row.output,
            VersionKey(row.batch_time, row.attempt),
            row.generation,
            row.schema_version,
            row.schema,
            row.buckets,
        )
        for row in rows
    ]


def committed_before(
    connection: sa.Connection, *, pipeline_id: int, output: str, batch_time: datetime
) -> VersionKey | None:
    """Return the version of the newest result of an output before a batch; None: there is none. No locks.

    By the primary key of `output_commits`, backwards: a batch without a result of it is passed over.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT batch_time, state_attempt
                FROM forebay.output_commits
                WHERE pipeline_id = :pipeline
                  AND output = :output
                  AND batch_time < :time
                  AND state_attempt IS NOT NULL
                ORDER BY batch_time DESC
                LIMIT 1
            """),
            {"pipeline": pipeline_id, "output": output, "time": batch_time},
        ).one_or_none()
    return None if row is None else VersionKey(row.batch_time, row.state_attempt)


def begin_version(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    output: str,
    batch_time: datetime,
    attempt: int,
    read: VersionKey | None,
    schema_version: int,
    schema: Any,  # noqa: ANN401  JSON; the driver log only keeps it
    buckets: int,
    folder: str,
    replay: int | None = None,
) -> None:
    """Insert the row of the version that an attempt is about to write into `folder`, before its first file.

    Idempotent. A run that was launched again begins it again: what the earlier launch noted stays until this one notes
    its own, unless it was made from another version, schema or number of buckets, and is forgotten. `replay`: the
    replay forward whose chain it continues.

    Locks: the batch's row FOR SHARE, then the version's. Raises AttemptSupersededError if another attempt holds the
    batch, and StateMovedError if `read` is not in force, or the version is committed.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.begin_state_version(
                    :pipeline, :time, :attempt, :output, :read_time, :read_attempt, :schema_version,
                    CAST(:schema AS jsonb), :buckets, :folder, :replay
                )
            """),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "output": output,
                "read_time": None if read is None else read.batch_time,
                "read_attempt": None if read is None else read.attempt,
                "schema_version": schema_version,
                "schema": json.dumps(schema),
                "buckets": buckets,
                "folder": folder,
                "replay": replay,
            },
        ).one()
    if row.outcome == "superseded":
        raise AttemptSupersededError(row.detail)
    if row.outcome != "begun":
        raise StateMovedError(row.detail)


def note_version(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    output: str,
    batch_time: datetime,
    attempt: int,
    frames: Sequence[list[Any]],
    keys: int | None,
    changed: int,
    deleted: int,
    bytes: int,  # noqa: A002  what the column counts
    next_expiry: datetime | None,
    watermark: datetime | None = None,
    event_times: Sequence[Mapping[str, Any]] | None = None,
    late: int | None = None,
) -> None:
    """Write down the frames of a version that was begun, each as ``StateFrame.to_row`` returns it.

    Call it when all of them are durable. Of an output by event time give the last three too:

    - `watermark`: after the batch; None: there is none yet.
    - `event_times`: how far each source of its streams is: `stream`, `source` (a receiver, or one of its partitions;
      None: the stream as a whole), `latest` (its greatest event time; None: it had none yet), `seen` (the time of the
      batch that last had a record of it, or in which it was new) and `idle` (the watermark does not wait for it). Times
      are ISO 8601 with an offset.
    - `late`: how many records of the batch were too late.

    Locks: the batch's row FOR SHARE, then the version's. Raises AttemptSupersededError if another attempt holds the
    batch, and StateMovedError if the version can't be changed.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, detail
                FROM forebay.note_state_version(
                    :pipeline, :time, :attempt, :output, CAST(:frames AS jsonb), :keys, :changed, :deleted, :bytes,
                    :next_expiry, :watermark, CAST(:event_times AS jsonb), :late
                )
            """),
            {
                "pipeline": pipeline_id,
                "time": batch_time,
                "attempt": attempt,
                "output": output,
                "frames": json.dumps(list(frames)),
                "keys": keys,
                "changed": changed,
                "deleted": deleted,
                "bytes": bytes,
                "next_expiry": next_expiry,
                "watermark": watermark,
                "event_times": None if event_times is None else json.dumps([dict(row) for row in event_times]),
                "late": late,
            },
        ).one()
    if row.outcome == "superseded":
        raise AttemptSupersededError(row.detail)
    if row.outcome != "noted":
        raise StateMovedError(row.detail)


def version(
    connection: sa.Connection, *, pipeline_id: int, output: str, batch_time: datetime, attempt: int
) -> StateVersion | None:
    """Return a version as stored; None: there is none, or clean-up is deleting it. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT batch_time, attempt, ordinal, read_batch_time, read_attempt, schema_version, schema, buckets,
                    folder, frames, keys, changed, deleted, bytes, next_expiry, committed_at, replay_id,
                    watermark, event_times, late
                FROM forebay.state_versions
                WHERE pipeline_id = :pipeline
                  AND output = :output
                  AND batch_time = :time
                  AND attempt = :attempt
                  AND deleting_at IS NULL
            """),
            {"pipeline": pipeline_id, "output": output, "time": batch_time, "attempt": attempt},
        ).one_or_none()
    if row is None:
        return None
    return StateVersion(
        key=VersionKey(row.batch_time, row.attempt),
        ordinal=row.ordinal,
        read=None if row.read_batch_time is None else VersionKey(row.read_batch_time, row.read_attempt),
        schema_version=row.schema_version,
        schema=row.schema,
        buckets=row.buckets,
        folder=row.folder,
        frames=row.frames,
        keys=row.keys,
        changed=row.changed,
        deleted=row.deleted,
        bytes=row.bytes,
        next_expiry=row.next_expiry,
        committed=row.committed_at is not None,
        replay=row.replay_id,
        watermark=row.watermark,
        event_times=row.event_times,
        late=row.late,
    )


def chain(
    connection: sa.Connection, *, pipeline_id: int, output: str, version: VersionKey | None
) -> list[list[list[Any]]]:
    """Return the frames that make up the state as of `version`, by version, oldest first; None: no frames.

    Each bucket begins at its newest full frame; a version that has no frame left is left out. No locks; one statement,
    which reads at most CHAIN_STEPS rows. Raises DriverLogError if a version that it needs is gone.
    """
    if version is None:
        return []
    with named_failures():
        rows = connection.execute(
            sa.text("""
                WITH RECURSIVE walk AS (
                    SELECT v.batch_time, v.attempt, v.read_batch_time, v.read_attempt, v.schema_version, v.schema,
                        v.buckets, v.frames, 1 AS step
                    FROM forebay.state_versions v
                    WHERE v.pipeline_id = :pipeline
                      AND v.output = :output
                      AND v.batch_time = :time
                      AND v.attempt = :attempt
                      AND v.deleting_at IS NULL
                    UNION ALL
                    SELECT v.batch_time, v.attempt, v.read_batch_time, v.read_attempt, v.schema_version, v.schema,
                        v.buckets, v.frames, w.step + 1
                    FROM walk w
                    JOIN forebay.state_versions v ON v.pipeline_id = :pipeline
                      AND v.output = :output
                      AND v.batch_time = w.read_batch_time
                      AND v.attempt = w.read_attempt
                      -- With another schema, or other buckets, all of the state was written whole.
                      AND v.schema_version = w.schema_version
                      AND v.schema = w.schema
                      AND v.buckets = w.buckets
                      AND v.deleting_at IS NULL
                    WHERE w.step < :steps
                )
                SELECT w.batch_time, w.attempt, w.frames,
                    w.read_batch_time IS NULL OR EXISTS (
                        SELECT
                        FROM forebay.state_versions p
                        WHERE p.pipeline_id = :pipeline
                          AND p.output = :output
                          AND p.batch_time = w.read_batch_time
                          AND p.attempt = w.read_attempt
                          AND (p.schema_version <> w.schema_version OR p.schema <> w.schema OR p.buckets <> w.buckets)
                        OFFSET 0
                    ) AS is_first
                FROM walk w
                ORDER BY w.step
            """),
            {
                "pipeline": pipeline_id,
                "output": output,
                "time": version.batch_time,
                "attempt": version.attempt,
                "steps": CHAIN_STEPS,
            },
        ).all()
    if not rows or rows[0].frames is None:
        raise _gone(output, version.batch_time, version.attempt)
    found: list[list[list[Any]]] = []
    seen: set[int] = set()
    whole: set[int] = set()
    for row in rows:
        kept = [frame for frame in row.frames or [] if frame[_BUCKET] not in whole]
        seen.update(frame[_BUCKET] for frame in kept)
        whole.update(frame[_BUCKET] for frame in kept if frame[_IS_FULL])
        if kept:
            found.append(kept)
    if not (seen <= whole or rows[-1].is_first):
        # Without the rest the state would lack keys, and nothing would tell.
        raise _gone(output, rows[-1].batch_time, rows[-1].attempt, "what was before the version")
    return found[::-1]


def _gone(output: str, batch_time: datetime, attempt: int, what: str = "the version") -> DriverLogError:
    return DriverLogError(
        f"the state of output {output!r} can't be read: {what} of batch {batch_time.isoformat()}, attempt {attempt}, "
        "is missing",
        "Restore the driver log from a backup that has it, or replay the output from an older batch on.",
    )
