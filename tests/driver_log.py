"""Put a driver log into a given state, for tests: streams, pipelines, blocks at chosen times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.polling import eventually
from tracker_store.batches import unfinished_batches
from tracker_store.blocks import AddResult, BlockHandle, Claim, NewBlock, add_blocks, claim, newest_epoch
from tracker_store.pipelines import apply_pipeline, apply_stream
from tracker_store.received_block_tracker import ReceivedBlockTracker
from tracker_store.receivers import placements
from tracker_store.segments import open_segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.batches import BatchRow

NOON = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
INTERVAL = timedelta(seconds=10)


def block(
    claimed: Claim,
    sequence: int,
    *,
    segment_id: int = 1,
    records: int = 10,
    offset: int | None = None,
    epoch: int | None = None,
) -> NewBlock:
    """Return a block as a receiver would send it; equal arguments give an identical block."""
    return NewBlock(
        receiver_id=claimed.receiver_id,
        epoch=claimed.epoch if epoch is None else epoch,
        sequence=sequence,
        records=records,
        bytes=records * 10,
        handle=BlockHandle(segment_id, sequence * 100 if offset is None else offset, records * 10, 1000 + sequence),
    )


def add(connection: sa.Connection, *blocks: NewBlock) -> AddResult:
    """Add blocks of one receiver; return its one result."""
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
        segment_id = open_segment(
            self.connection,
            receiver_id=receiver_id,
            epoch=claimed.epoch,
            path=f"{receiver_id}/{claimed.epoch}",
            source_rule="not_sent_again",
        )
        self._backdate(receiver_id, claimed.sequence, times[0])
        for number, time in enumerate(times, start=claimed.sequence + 1):
            add(self.connection, block(claimed, number, segment_id=segment_id, records=records))
            self._backdate(receiver_id, number, time)
        return claimed

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
    found = unfinished_batches(connection, pipeline_id, limit=1)
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
    statement = sa.text("SELECT (SELECT count(*) FROM forebay.events) = (SELECT count(*) FROM forebay.listener_events)")
    eventually(lambda: connection.execute(statement).scalar_one(), "the events of every transaction")
