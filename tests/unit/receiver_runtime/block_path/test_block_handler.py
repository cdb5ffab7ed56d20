"""Check that a segment is closed only once its file says which of its blocks were acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.load.codec_choice import FIRST_COMPRESSED_BLOCKS
from receiver_runtime.block_store.frames.frame import FrameKind, SourceRule
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.unit.receiver_runtime.support import ManualClock, MemoryDriverLog, make_log
from tracker_store.blocks.segments import CodecSum

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("value", pa.string())])
INTERVAL = 60.0


class Setup:
    def __init__(self, root: Path, rule: SourceRule) -> None:
        self.clock = ManualClock()
        self.store = LocalBlockStore(root)
        self.rows = MemoryDriverLog()
        log = make_log(self.store, self.rows, source_rule=rule, clock=self.clock, segment_interval=INTERVAL)
        self.handler = BlockHandler(log, SCHEMA, compression="auto")

    def keep(self, sequence: int, registered_through: int = 0) -> None:
        batch = pa.record_batch([pa.array(["a"], pa.string())], schema=SCHEMA)
        self.registered(registered_through)
        self.handler.store_block([batch], sequence=sequence)

    def registered(self, through: int) -> None:
        self.handler.registered_through.sequence = through

    def said_through(self) -> list[int]:
        """Return the sequences that notes say are registered, by segment."""
        return [
            item.header.registered_through
            for path in self.rows.paths.values()
            for item in self.store.scan(path)
            if isinstance(item, IntactFrame) and item.header.kind is FrameKind.NOTE
        ]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, SourceRule.SENT_AGAIN)


def test_a_segment_gets_its_note_before_it_is_closed_at_its_age(setup: Setup) -> None:
    """Check a segment whose newest block was stored just before."""
    setup.keep(1)
    setup.clock.advance(INTERVAL)
    setup.registered(1)
    setup.handler.close_aged_segments()
    assert setup.said_through() == [1]
    assert list(setup.rows.lengths) == [1]


def test_a_segment_is_not_closed_while_a_block_in_it_is_unacknowledged(setup: Setup) -> None:
    """The driver log is unavailable for longer than a segment lasts."""
    setup.keep(1)
    setup.keep(2)
    setup.clock.advance(INTERVAL)
    for _ in range(3):
        setup.registered(1)
        setup.handler.close_aged_segments()
    setup.registered(2)
    setup.handler.close_aged_segments()
    assert setup.said_through() == [1, 2]
    assert list(setup.rows.lengths) == [1]


@pytest.mark.parametrize("rule", [SourceRule.OFFSETS, SourceRule.NOT_SENT_AGAIN])
def test_a_segment_that_needs_no_note_is_closed_at_its_age(tmp_path: Path, rule: SourceRule) -> None:
    setup = Setup(tmp_path, rule)
    setup.keep(1)
    setup.clock.advance(INTERVAL)
    setup.registered(0)
    setup.handler.close_aged_segments()
    assert setup.said_through() == []
    assert setup.rows.lengths == {}
    # It is closed, not sealed: the next block goes to another segment.
    setup.keep(2, registered_through=1)
    assert len(setup.rows.paths) == 2
    assert list(setup.rows.lengths) == [1]


def test_a_segment_is_sealed_with_its_blocks_by_codec(tmp_path: Path) -> None:
    setup = Setup(tmp_path, SourceRule.NOT_SENT_AGAIN)
    handler = setup.handler
    batch = pa.record_batch([pa.array(["a" * 10_000], pa.string())], schema=SCHEMA)
    sizes = [handler.store_block(handler.encode([batch], queued=True), sequence=1).bytes]
    for _ in range(FIRST_COMPRESSED_BLOCKS):
        handler.codec.observe(batch.nbytes, seconds=0.03, waited=0.02)
    sizes += [handler.store_block(handler.encode([batch], queued=True), sequence=number).bytes for number in (2, 3)]
    # What no queue precedes is compressed.
    sizes += [handler.store_block([batch], sequence=4).bytes]
    assert sizes[0] == sizes[3] < batch.nbytes / 10 < batch.nbytes < sizes[1] == sizes[2]
    setup.registered(4)
    handler.close()
    [counted] = setup.rows.codecs.values()
    assert counted == (CodecSum("lz4", 2, 2 * sizes[0]), CodecSum("none", 2, 2 * sizes[1]))
