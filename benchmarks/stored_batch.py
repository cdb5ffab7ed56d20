"""Store numbered lines as a stream's receivers would, and allocate all of them to one batch.

Frames are the product's own, in segments of the product's own block store, and each block is registered by
`add_block`; only the receivers' processes are left out. A segment is synced once, at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa

from orchestration.apply import apply
from receiver_runtime.block_store.frame import FrameKind, SourceRule, encode_frame
from receiver_runtime.block_store.payload import encode_batches
from receiver_runtime.block_store.stores import open_block_store
from tests.support.driver_log.log import claim_anew
from tracker_store.blocks import AddOutcome, BlockHandle, NewBlock, add_blocks
from tracker_store.pipelines import get_pipeline
from tracker_store.received_block_tracker import ReceivedBlockTracker
from tracker_store.receivers import placements
from tracker_store.segments import open_segment

if TYPE_CHECKING:
    from datetime import datetime

    from orchestration.pipeline import Pipeline

SCHEMA = pa.schema([("value", pa.string())])

# What follows the number in each line.
_REST = "sensor 17 ok"
# Blocks of one call of `add_block`: as a process with many receivers registers them.
_GROUP = 1_000


def numbered_lines(first: int, count: int) -> pa.Array:
    """Return lines that begin with the numbers from `first` on."""
    numbers = pa.array(range(first, first + count), pa.int64())
    return pc.binary_join_element_wise(pc.cast(numbers, pa.string()), _REST, " ")


def store_batch(
    connection: sa.Connection, block_store: str, pipeline: Pipeline, *, blocks_each: int, records_each: int
) -> datetime:
    """Store `blocks_each` blocks of `records_each` lines for each receiver of the pipeline; return the batch's time.

    The lines of all blocks are numbered from 0 on without a gap. Nothing of the pipeline may be in the driver log yet.
    """
    apply(connection, [pipeline])
    store = open_block_store(block_store)
    waiting: list[NewBlock] = []
    number = 0
    streams = {stream.name for stream in pipeline.streams}
    for placement in placements(connection):
        if placement.stream_name not in streams:
            continue
        claimed = claim_anew(connection, placement.receiver_id)
        path = f"{placement.receiver_id}/{claimed.epoch}.segment"
        segment_id = open_segment(
            connection,
            receiver_id=placement.receiver_id,
            epoch=claimed.epoch,
            path=path,
            source_rule=SourceRule.NOT_SENT_AGAIN.label,
        )
        writer = store.create_segment(path)
        for sequence in range(claimed.sequence + 1, claimed.sequence + 1 + blocks_each):
            batch = pa.record_batch([numbered_lines(number, records_each)], schema=SCHEMA)
            frame = encode_frame(
                encode_batches(SCHEMA, [batch]),
                kind=FrameKind.BLOCK,
                source_rule=SourceRule.NOT_SENT_AGAIN,
                receiver_id=placement.receiver_id,
                epoch=claimed.epoch,
                sequence=sequence,
                registered_through=claimed.sequence,
                records=records_each,
            )
            offset = writer.append(frame)
            handle = BlockHandle(segment_id, offset, frame.length, frame.crc32c)
            waiting.append(NewBlock(placement.receiver_id, claimed.epoch, sequence, records_each, batch.nbytes, handle))
            number += records_each
        writer.sync()
        writer.close()
        if len(waiting) >= _GROUP:
            _register(connection, waiting)
    _register(connection, waiting)
    batch_time: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    tracker = ReceivedBlockTracker(connection, get_pipeline(connection, pipeline.name).pipeline_id)
    tracker.allocate_blocks_to_batch(batch_time)
    return batch_time


def _register(connection: sa.Connection, waiting: list[NewBlock]) -> None:
    """Register the blocks, in groups, and empty the list."""
    for begin in range(0, len(waiting), _GROUP):
        for result in add_blocks(connection, waiting[begin : begin + _GROUP]):
            if result.outcome is not AddOutcome.ADDED:
                raise RuntimeError(f"a block was not registered: {result}")
    waiting.clear()
