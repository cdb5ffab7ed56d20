"""Read what the view `state_status` says of the outputs that keep a state. It changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.reports.rows import read_statement

if TYPE_CHECKING:
    from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class StateStatus:
    """Hold a row of the view; `keys` is None where it is not known, `replay` where none is unfinished.

    The last three are None where the output is not by event time, `watermark` also where there is none yet.
    """

    pipeline: str
    output: str
    batch_time: datetime
    attempt: int
    keys: int | None
    versions: int
    stored_bytes: int
    next_expiry: datetime | None
    schema_version: int
    replay: int | None
    replay_state: str | None
    replay_from: datetime | None
    replayed_to: datetime | None
    replay_to: datetime | None
    replay_runs: bool | None
    watermark: datetime | None
    late: int | None
    late_total: int | None


def list_states(connection: sa.Connection) -> list[StateStatus]:
    """Return the state of each output that has one, by name. No locks; costs the stored versions."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT pipeline, output, batch_time, attempt, keys, versions, stored_bytes, next_expiry, schema_version,
                    replay, replay_state, replay_from, replayed_to, replay_to, replay_runs, watermark, late, late_total
                FROM forebay.state_status
                ORDER BY pipeline, output
            """)
        ).all()
    return [StateStatus(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class OutputState:
    """Hold what `forebay status` says of a declared output with a state; the fields are null before its first version.

    Attributes:
        keys: how many it has; None: not known.
        bytes: the length of what its newest version wrote: all that is stored costs the stored versions.
        waits_for: the quarantined batch without a result of the output that later batches are BLOCKED by.
        replay: the replay forward that is not finished, with its state and its progress; None: there is none.
        replay_runs: whether a process runs it; None without one.
        watermark: after the newest batch; None: there is none yet, or it is not an output by event time.
        late, late_total: how many records of that batch, and of all, were too late; None: it is not one by event time.
        slowest_stream, slowest_source: the source that the watermark waits for, of those that are not idle.
        slowest_event_time: its greatest event time; None: it has had none.
        slowest_seen: the batch that last had a record of it, or in which it was new.
        newest_event_time: the greatest event time of all sources that are not idle.
    """

    pipeline: str
    output: str
    batch_time: datetime | None
    keys: int | None
    bytes: int | None
    next_expiry: datetime | None
    waits_for: datetime | None
    replay: int | None
    replay_state: str | None
    replay_from: datetime | None
    replayed_to: datetime | None
    replay_to: datetime | None
    replay_runs: bool | None = None
    watermark: datetime | None = None
    late: int | None = None
    late_total: int | None = None
    slowest_stream: str | None = None
    slowest_source: str | None = None
    slowest_event_time: datetime | None = None
    slowest_seen: datetime | None = None
    newest_event_time: datetime | None = None

    @property
    def is_by_event_time(self) -> bool:
        """Return whether a batch of it has counted late records, also if there were none."""
        return self.late_total is not None

    @property
    def watermark_lag(self) -> timedelta | None:
        """Return how far the watermark is behind the newest batch's time; None: there is no watermark."""
        return None if self.watermark is None or self.batch_time is None else self.batch_time - self.watermark


def output_states(connection: sa.Connection, pipeline: str | None = None) -> list[OutputState]:
    """Return the declared outputs with a state, of one pipeline or all, by name.

    No locks; a few probes for each, by primary keys and partial indexes: never its versions, as `list_states` does.
    """
    return read_statement(
        connection,
        OutputState,
        """
        SELECT p.name, o.output, s.batch_time, s.keys, s.bytes, s.next_expiry, hole.batch_time, s.replay,
            s.replay_state, s.replay_from, s.replayed_to, s.replay_to, s.replay_runs,
            s.watermark, s.late, s.late_total,
            s.slowest_stream, s.slowest_source, s.slowest_event_time, s.slowest_seen, s.newest_event_time
        FROM forebay.pipelines p
        CROSS JOIN LATERAL (
            SELECT declared.key AS output, declared.value -> 'state' ->> 'on_failure' AS on_failure
            FROM jsonb_each(p.declaration -> 'outputs') AS declared
            WHERE declared.value -> 'state' IS NOT NULL
        ) AS o
        LEFT JOIN forebay.state_status s ON s.pipeline_id = p.id AND s.output = o.output
        LEFT JOIN LATERAL (
            SELECT b.batch_time
            FROM forebay.batches b
            WHERE b.pipeline_id = p.id
              AND b.state = 'QUARANTINED'
              AND b.batch_time > coalesce(
                  greatest(s.batch_time, CAST(p.states_after ->> o.output AS timestamptz)), '-infinity')
              AND o.on_failure IS DISTINCT FROM 'skip'
              AND NOT EXISTS (
                  SELECT
                  FROM forebay.output_commits c
                  WHERE c.pipeline_id = p.id AND c.output = o.output AND c.batch_time = b.batch_time
                  OFFSET 0
              )
              -- The output may not be due in that batch: then nothing waits for it.
              AND EXISTS (
                  SELECT
                  FROM forebay.batches later
                  WHERE later.pipeline_id = p.id AND later.state = 'BLOCKED' AND later.batch_time > b.batch_time
                  OFFSET 0
              )
            ORDER BY b.batch_time
            LIMIT 1
        ) AS hole ON true
        WHERE p.removed_at IS NULL AND (CAST(:pipeline AS text) IS NULL OR p.name = :pipeline)
        ORDER BY p.name, o.output
        """,
        {"pipeline": pipeline},
    )
