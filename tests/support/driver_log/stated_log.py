"""Lead batches of an output with a state to where a test needs them: the driver log's part of what a run does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.driver_log.log import INTERVAL, NOON, Log, make_log
from tracker_store.batches import batches, outputs, state_versions
from tracker_store.batches.pipelines import apply_pipeline
from tracker_store.batches.state_versions import VersionKey
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.schema.states import AttemptFailure, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tracker_store.batches.state_versions import StateToRead
    from tracker_store.schema.states import BatchState

OUTPUT = "totals"
DECLARATION: dict[str, Any] = {
    "max_attempts": 3,
    "streams": ["lines"],
    "outputs": {OUTPUT: {"inputs": ["lines"], "state": {"version": 1}}},
}
BUCKETS = 4


def batch_time(number: int) -> datetime:
    """Return the time of the pipeline's batch of this number, from 1."""
    return NOON + number * INTERVAL


def frame(bucket: int, path: str, *, is_full: bool, next_expiry: int | None = None) -> list[Any]:
    """Return a frame's row, as ``StateFrame.to_row`` does."""
    return [bucket, path, 0, 100, 1, 1, is_full, next_expiry]


@dataclass(frozen=True)
class StatedLog:
    """A driver log with a pipeline whose output `totals` has a state; all of it goes through one connection."""

    log: Log

    @property
    def connection(self) -> sa.Connection:
        """Return the connection."""
        return self.log.connection

    @property
    def pipeline_id(self) -> int:
        """Return the pipeline's id."""
        return self.log.pipeline_id

    def on(self, connection: sa.Connection) -> StatedLog:
        """Return the same log, used by another connection."""
        return StatedLog(Log(connection, self.log.stream_id, self.log.pipeline_id, self.log.receiver_ids))

    @property
    def where(self) -> dict[str, Any]:
        """Return the arguments that name the output."""
        return {"pipeline_id": self.pipeline_id, "output": OUTPUT}

    def allocate(self, number: int, *, records: bool = True) -> datetime:
        """Allocate a batch, with a block of records or without."""
        time = batch_time(number)
        if records:
            self.log.add_at(self.log.receiver_ids[0], time - INTERVAL / 2)
        self.log.tracker.allocate_blocks_to_batch(time)
        return time

    def process(self) -> int:
        """Register a process that runs a batch."""
        return register_process(self.connection, kind=ProcessKind.BATCH_RUN, name="run", host="h", pid=1)

    def claim(self, time: datetime, attempt: int = 1, *, process_id: int | None = None) -> None:
        """Claim an attempt at a batch."""
        claim_batch(self.connection, self.pipeline_id, time, attempt, run_id=f"run{attempt}", process_id=process_id)

    def claim_replay(self, time: datetime, *, stateful: Sequence[str] = (OUTPUT,), forward: int | None = None) -> int:
        """Claim a replay of a batch."""
        return batches.claim_replay(
            self.connection,
            pipeline_id=self.pipeline_id,
            batch_time=time,
            run_id="replay",
            process_id=self.process(),
            reach=timedelta(0),
            stateful=stateful,
            forward=forward,
        )

    def to_read(self, time: datetime, *, forward: int | None = None) -> StateToRead:
        """Return what an attempt at a batch reads."""
        return state_versions.state_to_read(self.connection, **self.where, batch_time=time, forward=forward)

    def begin(
        self,
        time: datetime,
        attempt: int,
        read: VersionKey | None,
        *,
        replay: int | None = None,
        schema_version: int = 1,
        value: str = "n",
        buckets: int = BUCKETS,
    ) -> str:
        """Begin a version; return its folder."""
        folder = f"state/{self.pipeline_id}/{OUTPUT}/{time:%Y%m%dT%H%M%S}-{attempt}"
        state_versions.begin_version(
            self.connection,
            **self.where,
            batch_time=time,
            attempt=attempt,
            read=read,
            schema_version=schema_version,
            schema={"key": [["user", "string"]], "value": [[value, "bigint"]]},
            buckets=buckets,
            folder=folder,
            replay=replay,
        )
        return folder

    def note(
        self,
        time: datetime,
        attempt: int,
        frames: Sequence[list[Any]] | None = None,
        *,
        next_expiry: datetime | None = None,
        watermark: datetime | None = None,
        event_times: Sequence[dict[str, Any]] | None = None,
        late: int | None = None,
    ) -> None:
        """Note a version's frames; by default one full frame of each bucket."""
        if frames is None:
            frames = [frame(bucket, f"{time:%M%S}-{attempt}", is_full=True) for bucket in range(BUCKETS)]
        state_versions.note_version(
            self.connection,
            **self.where,
            batch_time=time,
            attempt=attempt,
            frames=frames,
            keys=None,
            changed=1,
            deleted=0,
            bytes=100 * len(frames),
            next_expiry=next_expiry,
            watermark=watermark,
            event_times=event_times,
            late=late,
        )

    def commit(self, time: datetime, attempt: int, *, state_attempt: int | None = None, state: bool = True) -> None:
        """Commit the output's result with its version."""
        outputs.commit_output(
            self.connection,
            **self.where,
            batch_time=time,
            attempt=attempt,
            location=f"/{attempt}",
            rows=1,
            state=state,
            state_attempt=state_attempt,
        )

    def complete(self, time: datetime, attempt: int) -> None:
        """Complete a batch."""
        batches.complete_batch(
            self.connection, pipeline_id=self.pipeline_id, batch_time=time, attempt=attempt, outputs=[OUTPUT]
        )

    def complete_replay(self, time: datetime, attempt: int) -> None:
        """End a replay."""
        batches.complete_replay(
            self.connection,
            pipeline_id=self.pipeline_id,
            batch_time=time,
            attempt=attempt,
            outputs=[OUTPUT],
            due=[OUTPUT],
        )

    def fail(
        self,
        time: datetime,
        attempt: int,
        *,
        max_attempts: int = 1,
        failure: AttemptFailure = AttemptFailure.FAILED,
    ) -> BatchState | None:
        """Fail an attempt or a replay; by default its batch is quarantined."""
        return fail_batch(
            self.connection,
            self.pipeline_id,
            time,
            attempt,
            run_id=f"run{attempt}",
            max_attempts=max_attempts,
            failure=failure,
        )

    def run(
        self,
        number: int,
        *,
        attempt: int = 1,
        frames: Sequence[list[Any]] | None = None,
        next_expiry: datetime | None = None,
        allocate: bool = True,
        **event_time: Any,  # noqa: ANN401  as `note` takes it
    ) -> VersionKey:
        """Run a batch from its allocation to its end; return its version."""
        time = self.allocate(number) if allocate else batch_time(number)
        self.claim(time, attempt)
        self.begin(time, attempt, self.to_read(time).head)
        self.note(time, attempt, frames, next_expiry=next_expiry, **event_time)
        self.commit(time, attempt)
        self.complete(time, attempt)
        return VersionKey(time, attempt)

    def replay(
        self,
        time: datetime,
        *,
        forward: int | None = None,
        **event_time: Any,  # noqa: ANN401  as `note` takes it
    ) -> VersionKey:
        """Replay a batch from its claim to its end, of a replay forward if it is given; return its version."""
        attempt = self.claim_replay(time, forward=forward)
        found = self.to_read(time, forward=forward)
        if found.restores is None:
            self.begin(time, attempt, found.head, replay=forward)
            self.note(time, attempt, **event_time)
        self.commit(time, attempt, state_attempt=found.restores)
        self.complete_replay(time, attempt)
        return VersionKey(time, attempt if found.restores is None else found.restores)

    def quarantine(self, number: int) -> datetime:
        """Allocate a batch, and let its only attempt fail."""
        time = self.allocate(number)
        self.claim(time)
        self.fail(time, 1)
        return time

    def head(self) -> VersionKey | None:
        """Return the version that is in force."""
        row = self.connection.execute(
            sa.text("SELECT batch_time, attempt FROM forebay.state_heads WHERE pipeline_id = :p AND output = :o"),
            {"p": self.pipeline_id, "o": OUTPUT},
        ).one_or_none()
        return None if row is None else VersionKey(row.batch_time, row.attempt)

    def versions(self) -> list[tuple[VersionKey, bool, bool]]:
        """Return each version that has a row, whether a commit names it, and whether clean-up deletes it."""
        rows = self.connection.execute(
            sa.text("""
                SELECT batch_time, attempt, committed_at IS NOT NULL AS committed, deleting_at IS NOT NULL AS deleting
                FROM forebay.state_versions ORDER BY 1, 2
            """)
        )
        return [(VersionKey(row.batch_time, row.attempt), row.committed, row.deleting) for row in rows]

    def state_attempt(self, time: datetime) -> int | None:
        """Return the attempt of the version that the batch's commit names."""
        found: int | None = self.connection.execute(
            sa.text("SELECT state_attempt FROM forebay.output_commits WHERE batch_time = :t"), {"t": time}
        ).scalar_one()
        return found

    def end_processes(self) -> None:
        """End the processes of all attempts that are over."""
        rows = self.connection.execute(
            sa.text("""
                SELECT p.id FROM forebay.processes p
                WHERE p.ended_at IS NULL AND p.kind = 'batch run' AND NOT EXISTS (
                    SELECT FROM forebay.batch_attempts a WHERE a.process_id = p.id AND a.state = 'RUNNING')
            """)
        ).scalars()
        for process_id in list(rows):
            deregister_process(self.connection, process_id, "done")

    def age(self, by: timedelta) -> None:
        """Let everything that has a time by the clock be older."""
        self.end_processes()
        for statement in (
            "UPDATE forebay.state_versions SET created_at = created_at - :by, committed_at = committed_at - :by",
            "UPDATE forebay.state_heads SET moved_at = moved_at - :by",
            "UPDATE forebay.batch_attempts SET ended_at = ended_at - :by",
            "UPDATE forebay.pipelines SET applied_at = applied_at - :by, removed_at = removed_at - :by",
        ):
            self.connection.execute(sa.text(statement), {"by": by})


def make_stated_log(connection: sa.Connection) -> StatedLog:
    """Make a log whose pipeline has one output, with a state; its last decided batch time is NOON."""
    log = make_log(connection)
    apply_pipeline(connection, name="words", declaration=DECLARATION, stream_ids=[log.stream_id], interval=INTERVAL)
    return StatedLog(log)


_FILL = """
    WITH numbers AS (
        SELECT n, CAST(:first AS timestamptz) + n * interval '10 s' AS at FROM generate_series(0, :n) AS n
    ), versions AS (
        INSERT INTO forebay.state_versions (pipeline_id, output, batch_time, attempt, ordinal, read_batch_time,
            read_attempt, schema_version, schema, buckets, folder, frames, bytes, created_at, committed_at)
        SELECT :p, :o, at, 1, n + 1, CASE WHEN n > 0 THEN at - interval '10 s' END, CASE WHEN n > 0 THEN 1 END, 1, '{}',
            4, 'f' || n, jsonb_build_array(jsonb_build_array(0, 'p' || n, 0, 1, 1, 1, n % 32 = 0, NULL)), 1,
            clock_timestamp() - interval '2 h', clock_timestamp() - interval '2 h' + n * interval '1 s'
        FROM numbers
    ), made AS (
        INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, attempt, records, bytes, blocks,
            completed_at)
        SELECT :p, at, at, 'COMPLETED', 1, 0, 0, 0, clock_timestamp() FROM numbers
    ), commits AS (
        INSERT INTO forebay.output_commits (pipeline_id, output, batch_time, attempt, location, rows, state_attempt)
        SELECT :p, :o, at, 1, '/1', 1, 1 FROM numbers
    )
    INSERT INTO forebay.state_heads (pipeline_id, output, batch_time, attempt, schema_version, schema, buckets)
    SELECT :p, :o, at, 1, 1, '{}', 4 FROM numbers WHERE n = :n
"""


def filled_stated_log(connection: sa.Connection, versions: int) -> StatedLog:
    """Make a log with a state of as many versions; a replay forward may begin at any of them."""
    stated = make_stated_log(connection)
    connection.execute(
        sa.text(_FILL), {"first": batch_time(1), "n": versions - 1, "p": stated.pipeline_id, "o": OUTPUT}
    )
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :last, retention = interval '1 year' * 10"),
        {"last": batch_time(versions)},
    )
    stated.allocate(versions + 1)
    stated.claim(batch_time(versions + 1))
    connection.exec_driver_sql("ANALYZE")
    connection.exec_driver_sql("SET plan_cache_mode = force_generic_plan")
    return stated
