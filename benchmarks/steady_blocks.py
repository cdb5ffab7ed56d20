"""Simulate an hour of a driver log at a steady rate, in less time: blocks are added, allocated, completed, cleaned up.

Ten seconds of the hour are one cycle: their blocks in grouped calls, one allocation, one completed batch, and clean-up
of what is older than the retention. Autovacuum would look once per minute, so here VACUUM runs once in six cycles, and
only if autovacuum's thresholds are exceeded: the simulated hour is too short for autovacuum's own clock.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tests.support.driver_log.log import GIVEN_SEGMENTS, claim_anew, give_segments, make_log
from tracker_store.blocks.blocks import AddOutcome, BlockHandle, NewBlock, add_blocks
from tracker_store.connection.engine import connect
from tracker_store.retention.cleanup import clean_up_receiver

if TYPE_CHECKING:
    from benchmarks.server import Server

_CYCLE_SECONDS = 10
_CYCLES_PER_MINUTE = 6
_RECEIVERS = 64
_RETENTION_CYCLES = 30
_MAX_ROWS = 10_000
# Autovacuum's thresholds: this number of dead rows, plus this part of the live rows.
_DEAD_ROWS = 50
_DEAD_PART = 0.2


@dataclass(frozen=True, slots=True)
class SteadyState:
    """Sizes of table `blocks` and its index in bytes: after the first sixth, the largest after that, and rewritten."""

    blocks: int
    live: int
    first: int
    largest: int
    compact: int
    seconds: float


def steady_state(server: Server, *, minutes: int, blocks_per_second: int) -> SteadyState:
    """Simulate this many minutes at this rate, with `_RETENTION_CYCLES` cycles of retention."""
    blocks_each = blocks_per_second * _CYCLE_SECONDS // _RECEIVERS
    cycles = minutes * _CYCLES_PER_MINUTE
    sizes: list[int] = []
    times: deque[datetime] = deque(maxlen=_RETENTION_CYCLES)
    dead = 0
    began = time.perf_counter()
    server.execute("TRUNCATE forebay.blocks")
    with connect(server.engine) as connection:
        log = make_log(connection, receivers=_RECEIVERS, pipeline="steady", stream="steady")
        receiver_ids = sorted(log.receiver_ids)[-_RECEIVERS:]
        give_segments(connection, *receiver_ids)
        claims = [claim_anew(connection, receiver_id) for receiver_id in receiver_ids]
        for cycle in range(cycles):
            for group in (claims[: _RECEIVERS // 2], claims[_RECEIVERS // 2 :]):
                blocks = [
                    NewBlock(
                        claimed.receiver_id,
                        claimed.epoch,
                        claimed.sequence + 1 + cycle * blocks_each + n,
                        records=10,
                        bytes=100,
                        handle=BlockHandle(GIVEN_SEGMENTS + claimed.receiver_id, n * 100, 100, n),
                    )
                    for claimed in group
                    for n in range(blocks_each)
                ]
                if any(result.outcome is not AddOutcome.ADDED for result in add_blocks(connection, blocks)):
                    raise RuntimeError("a block was not added")
            times.append(datetime.now(UTC))
            log.tracker.allocate_blocks_to_batch(times[-1])
            connection.execute(
                sa.text(
                    "UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp() "
                    "WHERE pipeline_id = :p AND batch_time = :t AND state = 'ALLOCATED'"
                ),
                {"p": log.pipeline_id, "t": times[-1]},
            )
            if len(times) == _RETENTION_CYCLES:
                for receiver_id in receiver_ids:
                    dead += clean_up_receiver(
                        connection, receiver_id=receiver_id, threshold=times[0], max_rows=_MAX_ROWS
                    ).blocks
            if (cycle + 1) % _CYCLES_PER_MINUTE == 0:
                if dead > _DEAD_ROWS + _DEAD_PART * _RETENTION_CYCLES * blocks_each * _RECEIVERS:
                    connection.execute(sa.text("VACUUM ANALYZE forebay.blocks"))
                    dead = 0
                sizes.append(_size(connection))
        seconds = time.perf_counter() - began
        live = int(connection.execute(sa.text("SELECT count(*) FROM forebay.blocks")).scalar_one())
        connection.execute(sa.text("VACUUM FULL forebay.blocks"))
        compact = _size(connection)
    sixth = max(_RETENTION_CYCLES // _CYCLES_PER_MINUTE + 1, len(sizes) // 6)
    return SteadyState(
        cycles * blocks_each * _RECEIVERS, live, sizes[sixth - 1], max(sizes[sixth:] or sizes), compact, seconds
    )


def _size(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("SELECT pg_total_relation_size('forebay.blocks')")).scalar_one())
