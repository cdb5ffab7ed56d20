"""Fill a driver log to a chosen size: receivers with a number of blocks, some of which wait for a pipeline.

Rows go straight into the tables, in sorted order, as fast as the server takes them. They are what `add_block` would
have written, except for their times, which are one second apart in the past.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.support.driver_log.log import make_log
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from benchmarks.server import Server

RECEIVERS = 64

# A session plans the function's statements in its first calls; a tracker's session lasts for days.
_WARM_UP_CALLS = 6

# The first block's time: early enough that 10 million blocks of 64 receivers, one second apart, are in the past.
_FIRST = datetime(2020, 1, 1, tzinfo=UTC)
_STEP = timedelta(seconds=1)

_EXTEND = """
INSERT INTO forebay.blocks (receiver_id, sequence, epoch, added_at, records, bytes, total_records, total_bytes,
                            segment_id, "offset", length, crc32c)
SELECT r.id, n, 1, timestamptz '2020-01-01 00:00:00+00' + n * interval '1 second', 10, 100, n * 10, n * 100,
       1, n * 100, 100, n
FROM unnest(CAST(%s AS bigint[])) WITH ORDINALITY AS r(id, nth)
CROSS JOIN generate_series(%s::bigint + 1, %s::bigint + CASE WHEN r.nth <= %s THEN 1 ELSE 0 END) AS n
"""


class FilledLog:
    """One stream of `RECEIVERS` receivers and one pipeline on it. Each receiver's blocks are 1 to `blocks_each`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        with connect(server.engine) as connection:
            log = make_log(connection, receivers=RECEIVERS, pipeline="measured", stream="filled")
            self.pipeline_id = log.pipeline_id
            self.receiver_ids = sorted(log.receiver_ids)[-RECEIVERS:]
        self.blocks_each = 0
        self._newest = 0

    def extend(self, blocks: int) -> None:
        """Add this many blocks in all, the same number to each receiver; then vacuum and checkpoint."""
        each = self.blocks_each + blocks // RECEIVERS
        connection = self._server.connect()
        with connection.cursor() as cursor:
            # `left` of the receivers get one more, so that ten blocks can wait too.
            left = blocks % RECEIVERS if blocks < RECEIVERS else 0
            cursor.execute(_EXTEND, (list(self.receiver_ids), self.blocks_each, each, left))
            cursor.execute("VACUUM ANALYZE forebay.blocks")
            cursor.execute("CHECKPOINT")
        connection.close()
        self.blocks_each = each
        self._newest = each + min(left, 1)

    def cut_back(self) -> None:
        """Delete the blocks that writers have added since."""
        connection = self._server.connect()
        with connection.cursor() as cursor:
            cursor.execute(
                "DELETE FROM forebay.blocks WHERE receiver_id = ANY (%s) AND sequence > %s",
                (list(self.receiver_ids), self.blocks_each),
            )
            cursor.execute("VACUUM ANALYZE forebay.blocks")
        connection.close()

    def clear(self) -> None:
        """Delete all blocks."""
        self._server.execute("TRUNCATE forebay.blocks")
        self.blocks_each = 0

    def let_wait(self, blocks: int) -> None:
        """Set the pipeline's cursors back so that this many blocks wait, evenly over receivers; delete its batches."""
        each, left = divmod(blocks, RECEIVERS)
        with connect(self._server.engine) as connection:
            for forgotten in (
                "DELETE FROM forebay.batch_allocations WHERE pipeline_id = :p",
                "DELETE FROM forebay.batches WHERE pipeline_id = :p",
                "DELETE FROM forebay.cursors WHERE consumer_id = :p",
            ):
                connection.execute(sa.text(forgotten), {"p": self.pipeline_id})
            connection.execute(
                sa.text("UPDATE forebay.pipelines SET last_batch_time = :first WHERE id = :p"),
                {"first": _FIRST - _STEP, "p": self.pipeline_id},
            )
            connection.execute(
                sa.text(
                    "INSERT INTO forebay.cursors (consumer_id, receiver_id, next_sequence) "
                    "SELECT :p, r.id, "
                    "  greatest(1, head.sequence + 1 - :each - CASE WHEN r.nth <= :left THEN 1 ELSE 0 END) "
                    "FROM unnest(CAST(:receivers AS bigint[])) WITH ORDINALITY AS r(id, nth) "
                    "CROSS JOIN LATERAL (SELECT coalesce(max(b.sequence), 0) AS sequence FROM forebay.blocks b "
                    "                    WHERE b.receiver_id = r.id) AS head"
                ),
                {"p": self.pipeline_id, "each": each, "left": left, "receivers": list(self.receiver_ids)},
            )

    def allocation_ms(self, waiting: int, *, late: bool, rounds: int) -> float:
        """Return the median time of an allocation and its commit in ms; late: the cut halves the waiting blocks."""
        each = max(1, waiting // RECEIVERS)
        cut = _FIRST + _STEP * (self._newest + 1 - (each // 2 if late else 0))
        times = []
        with connect(self._server.engine) as connection:
            tracker = ReceivedBlockTracker(connection, self.pipeline_id)
            for _ in range(_WARM_UP_CALLS + rounds):
                self.let_wait(waiting)
                began = time.perf_counter()
                tracker.allocate_blocks_to_batch(cut)
                times.append((time.perf_counter() - began) * 1000)
        return statistics.median(times[_WARM_UP_CALLS:])

    def first_allocation_seconds(self, waiting: int) -> float:
        """Return how long a new tracker needs until its first batch is allocated: a connection and the call."""
        self.let_wait(waiting)
        self._server.engine.dispose()
        began = time.perf_counter()
        with connect(self._server.engine) as connection:
            ReceivedBlockTracker(connection, self.pipeline_id).allocate_blocks_to_batch(datetime.now(UTC) - _STEP)
        return time.perf_counter() - began
