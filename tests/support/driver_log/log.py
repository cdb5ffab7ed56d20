"""Put a driver log into a given state, for tests: streams, pipelines, blocks at chosen times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.support.polling import eventually
from tracker_store.batches import batches
from tracker_store.batches.pipelines import apply_pipeline, apply_stream
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.blocks import AddResult, BlockHandle, Claim, NewBlock, add_blocks, claim, newest_epoch
from tracker_store.blocks.segments import CodecSum, open_segment, seal_segment
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.batches.batches import BatchRow

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
INTERVAL = timedelta(seconds=10)
# The segment of a receiver's blocks for which a test names none has this id plus the receiver's. A test's database
# assigns lower ones.
GIVEN_SEGMENTS = 1_000_000


def block(
    claimed: Claim,
    sequence: int,
    *,
    segment_id: int | None = None,
    records: int = 10,
    offset: int | None = None,
    epoch: int | None = None,
) -> NewBlock:
    """Return a block as a receiver would send it; equal arguments give an identical block.

    Without a segment it lies in one that stands for all of its receiver's: `add` gives that a row, or `give_segments`.
    """
    if segment_id is None:
        segment_id = GIVEN_SEGMENTS + claimed.receiver_id
    return NewBlock(
        receiver_id=claimed.receiver_id,
        epoch=claimed.epoch if epoch is None else epoch,
        sequence=sequence,
        records=records,
        bytes=records * 10,
        handle=BlockHandle(segment_id, sequence * 100 if offset is None else offset, records * 10, 1000 + sequence),
    )


def give_segments(connection: sa.Connection, *receiver_ids: int) -> None:
    """Give a row to the segment of each receiver's blocks for which a test names none; it belongs to no epoch."""
    connection.execute(
        sa.text("""
            INSERT INTO forebay.log_segments (id, receiver_id, epoch, path, source_rule)
            OVERRIDING SYSTEM VALUE
            SELECT :given + r.id, r.id, 0, format('receiver-%s/given', r.id), 'not_sent_again'
            FROM forebay.receivers r
            WHERE r.id = ANY (:receivers)
              AND NOT EXISTS (SELECT FROM forebay.log_segments g WHERE g.id = :given + r.id)
            ON CONFLICT DO NOTHING
        """),
        {"given": GIVEN_SEGMENTS, "receivers": list(receiver_ids)},
    )


def seal(connection: sa.Connection, segment_id: int, length: int = 1, codecs: Sequence[CodecSum] = ()) -> None:
    """Seal a segment without blocks that the driver log could lack, as the receiver and epoch that it is of."""
    receiver_id, epoch = connection.execute(
        sa.text("SELECT receiver_id, epoch FROM forebay.log_segments WHERE id = :segment"), {"segment": segment_id}
    ).one()
    seal_segment(connection, segment_id=segment_id, length=length, owner=(receiver_id, epoch), codecs=codecs)


def add(connection: sa.Connection, *blocks: NewBlock) -> AddResult:
    """Add blocks of one receiver; return its one result. A segment that the test did not name gets its row first."""
    unnamed = {new.receiver_id for new in blocks if new.handle.segment_id == GIVEN_SEGMENTS + new.receiver_id}
    if unnamed:
        give_segments(connection, *unnamed)
    [result] = add_blocks(connection, blocks)
    return result


def claim_anew(connection: sa.Connection, receiver_id: int, assignment: int = 0) -> Claim:
    """Claim a receiver as a process that starts would."""
    return claim(
        connection,
        receiver_id=receiver_id,
        seen_epoch=newest_epoch(connection, receiver_id),
        assignment=assignment,
    )


def new_segment(connection: sa.Connection, claimed: Claim, path: str) -> int:
    """Open a segment for the blocks of a claim, as its receiver does; return its id."""
    return open_segment(
        connection,
        receiver_id=claimed.receiver_id,
        epoch=claimed.epoch,
        path=path,
        source_rule="not_sent_again",
    )


@dataclass(frozen=True)
class Log:
    """A driver log with one pipeline on one stream, decided up to NOON."""

    connection: sa.Connection
    stream_id: int
    pipeline_id: int
    receiver_ids: Sequence[int]

    @property
    def tracker(self) -> ReceivedBlockTracker:
        """Return the allocation of the pipeline."""
        return ReceivedBlockTracker(self.connection, self.pipeline_id)

    def add_at(self, receiver_id: int, *times: datetime, records: int = 10) -> Claim:
        """Claim the receiver again and add a block at each of `times`; the claim's marker gets the first time."""
        claimed = claim_anew(self.connection, receiver_id)
        segment_id = new_segment(self.connection, claimed, f"{receiver_id}/{claimed.epoch}")
        self._backdate(receiver_id, claimed.sequence, times[0])
        for number, time in enumerate(times, start=claimed.sequence + 1):
            add(self.connection, block(claimed, number, segment_id=segment_id, records=records))
            self._backdate(receiver_id, number, time)
        return claimed

    def end_batch(self, time: datetime, *, fails: bool = False) -> None:
        """Run the allocated batch of `time` to its end: COMPLETED, or QUARANTINED if it `fails`."""
        process_id = register_process(self.connection, kind=ProcessKind.BATCH_RUN, name="r", host="h", pid=1)
        of_batch = {"pipeline_id": self.pipeline_id, "batch_time": time, "attempt": 1}
        batches.claim_attempt(self.connection, **of_batch, run_id="r", process_id=process_id)  # type: ignore[arg-type]
        if not fails:
            batches.complete_batch(self.connection, **of_batch, outputs=[])  # type: ignore[arg-type]
            return
        batches.fail_attempt(
            self.connection,
            **of_batch,  # type: ignore[arg-type]
            run_id="r",
            error="x",
            max_attempts=1,
            pauses=[timedelta(0)],
        )

    def _backdate(self, receiver_id: int, sequence: int, time: datetime) -> None:
        self.connection.execute(
            sa.text("UPDATE forebay.blocks SET added_at = :at WHERE receiver_id = :r AND sequence = :s"),
            {"at": time, "r": receiver_id, "s": sequence},
        )


def make_log(connection: sa.Connection, *, receivers: int = 1, pipeline: str = "words", stream: str = "lines") -> Log:
    """Declare a stream with receivers and a pipeline on it; the pipeline's last decided batch time is NOON."""
    stream_id = apply_stream(connection, name=stream, declaration={"source": {}, "settings": {}}, receivers=receivers)
    pipeline_id = apply_pipeline(
        connection,
        name=pipeline,
        declaration={"max_attempts": 3, "streams": [stream]},
        stream_ids=[stream_id],
        interval=INTERVAL,
    )
    connection.execute(
        sa.text("UPDATE forebay.pipelines SET last_batch_time = :noon WHERE id = :id"),
        {"noon": NOON, "id": pipeline_id},
    )
    return Log(connection, stream_id, pipeline_id, [row.receiver_id for row in placements(connection)])


def oldest_unfinished_batch(connection: sa.Connection, pipeline_id: int) -> BatchRow | None:
    """Return the batch that the pipeline has to finish first, or None."""
    found = batches.unfinished_batches(connection, pipeline_id, limit=1)
    return found[0] if found else None


def wait_until_blocked(connection: sa.Connection, sessions: int = 1) -> None:
    """Return as soon as `sessions` sessions of this database wait for a lock."""
    statement = sa.text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    eventually(
        lambda: connection.execute(statement).scalar_one() >= sessions, f"{sessions} session(s) waiting for a lock"
    )


def wait_until_told(connection: sa.Connection) -> None:
    """Return as soon as listeners see every event: no transaction that began before the newest is open."""
    statement = sa.text(
        "SELECT NOT EXISTS (SELECT FROM forebay.events "
        "WHERE transaction_id >= CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint))"
    )
    eventually(lambda: connection.execute(statement).scalar_one(), "the events of every transaction")
