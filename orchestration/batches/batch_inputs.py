"""Reads from the driver log, once, what the outputs of a batch read: blocks, columns, and which store has them.

A run passes it to its outputs and to Spark's planner, which then needs no driver log. Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestration.declarations.pipeline import Window
from orchestration.spark.reading.batch_reader import columns_of_row
from receiver_runtime.block_store.roots import root_names
from tracker_store.batches.batches import decided_times
from tracker_store.batches.pipelines import list_streams
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.block_stores import attached_identities

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime, timedelta

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Output, Pipeline, Stream
    from tracker_store.batches.received_block_tracker import AllocatedBlock
    from tracker_store.schema.batch_calendar import DecidedTimes


@dataclass(frozen=True, slots=True)
class BatchInputs:
    """Hold the inputs of a batch's outputs (see the module).

    Attributes:
        blocks: the batch's blocks by stream, in the order of (receiver, sequence).
        windows: the blocks of windows, by stream and length, in the same order.
        new: of each window with a `new_column`, by output, stream and length: the blocks that are new to the output.
        columns: the columns of each stream that the outputs read.
        expected: which store each root of the block store must be.
        records: the first and the end of the records to read of each block, by their numbers; None: all.
    """

    blocks: Mapping[str, Sequence[AllocatedBlock]]
    windows: Mapping[tuple[str, timedelta], Sequence[AllocatedBlock]]
    new: Mapping[tuple[str, str, timedelta], AbstractSet[tuple[int, int]]]
    columns: Mapping[str, Sequence[tuple[str, str]]]
    expected: Mapping[str, Sequence[str]]
    records: tuple[int, int] | None = None

    def blocks_of(self, entry: Stream | Window) -> Sequence[AllocatedBlock]:
        """Return the blocks of one input."""
        if isinstance(entry, Window):
            return self.windows[entry.stream.name, entry.length]
        return self.blocks[entry.name]

    def parted(self, output: str, window: Window) -> tuple[list[AllocatedBlock], list[AllocatedBlock]]:
        """Return the blocks of an output's window that are new to it, and those that it has seen."""
        new = self.new[output, window.stream.name, window.length]
        parts: tuple[list[AllocatedBlock], list[AllocatedBlock]] = [], []
        for block in self.blocks_of(window):
            parts[(block.receiver_id, block.sequence) not in new].append(block)
        return parts

    def only(self, keys: AbstractSet[tuple[int, int]]) -> BatchInputs:
        """Return the same inputs with only these blocks, by (receiver, sequence)."""

        def kept(blocks: Sequence[AllocatedBlock]) -> list[AllocatedBlock]:
            return [block for block in blocks if (block.receiver_id, block.sequence) in keys]

        return replace(
            self,
            blocks={stream: kept(blocks) for stream, blocks in self.blocks.items()},
            windows={window: kept(blocks) for window, blocks in self.windows.items()},
        )


def stream_of(entry: Stream | Window) -> Stream:
    """Return the stream of an input."""
    return entry.stream if isinstance(entry, Window) else entry


def read_batch_inputs(
    connection: sa.Connection,
    pipeline: Pipeline,
    pipeline_id: int,
    batch_time: datetime,
    outputs: Iterable[Output],
    *,
    block_store: str,
) -> BatchInputs:
    """Return the inputs of these outputs, and the batch's blocks of every stream of the pipeline. Takes no locks.

    Raises BlocksNotRetainedError if clean-up has removed a block of the batch, SourceError if a stream's columns
    are not known yet.
    """
    tracker = ReceivedBlockTracker(connection, pipeline_id)
    decided = None if pipeline.calendar is None else decided_times(connection, pipeline_id, batch_time)
    rows = {row.name: row for row in list_streams(connection)}
    chosen = list(outputs)
    entries = [entry for output in chosen for entry in output.inputs]
    return BatchInputs(
        blocks={
            stream.name: tracker.whole_blocks_of_batch_and_stream(batch_time, rows[stream.name].stream_id)
            for stream in pipeline.streams
        },
        windows={
            (entry.stream.name, entry.length): tracker.get_blocks_of_window_and_stream(
                batch_time, batch_time - entry.begin(batch_time, decided), rows[entry.stream.name].stream_id
            )
            for entry in {(e.stream.name, e.length): e for e in entries if isinstance(e, Window)}.values()
        },
        new={
            (output.name, entry.stream.name, entry.length): _new_blocks(
                tracker, output, entry, batch_time, decided, rows[entry.stream.name].stream_id
            )
            for output in chosen
            for entry in output.windows
            if entry.new_column is not None
        },
        columns={name: columns_of_row(connection, rows[name]) for name in {stream_of(entry).name for entry in entries}},
        expected=attached_identities(connection, root_names(block_store)),
    )


def _new_blocks(
    tracker: ReceivedBlockTracker,
    output: Output,
    window: Window,
    batch_time: datetime,
    decided: DecidedTimes | None,
    stream_id: int,
) -> frozenset[tuple[int, int]]:
    """Return the window's blocks of the batches since the last one before this in which the output was computed."""
    before = tracker.last_batch_of_output(
        batch_time, output.name, slide=output.own_slide, calendar_slide=output.calendar_slide
    )
    begin = window.begin(batch_time, decided)
    length = batch_time - (begin if before is None else max(begin, before))
    blocks = tracker.get_blocks_of_window_and_stream(batch_time, length, stream_id)
    return frozenset((block.receiver_id, block.sequence) for block in blocks)
