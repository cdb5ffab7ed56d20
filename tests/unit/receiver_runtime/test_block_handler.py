"""A segment is closed only when its file says what was acknowledged of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_handler import BlockHandler
from receiver_runtime.block_store.frame import FrameKind, SourceRule
from receiver_runtime.block_store.local import LocalBlockStore
from receiver_runtime.block_store.segment import IntactFrame
from receiver_runtime.registered_through import RegisteredThrough
from receiver_runtime.write_ahead_log import WriteAheadLog
from tests.unit.receiver_runtime.support import ManualClock, MemorySegments
from tracker_store.blocks import Claim

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("value", pa.string())])
INTERVAL = 60.0


class Setup:
    def __init__(self, root: Path, rule: SourceRule) -> None:
        self.clock = ManualClock()
        self.store = LocalBlockStore(root)
        self.rows = MemorySegments()
        log = WriteAheadLog(
            self.store,
            self.rows,
            claim=Claim(7, 9, 0),
            source_rule=rule,
            registered_through=RegisteredThrough(),
            segment_interval=INTERVAL,
            clock=self.clock,
        )
        self.handler = BlockHandler(log, SCHEMA)

    def keep(self, sequence: int, registered_through: int = 0) -> None:
        batch = pa.record_batch([pa.array(["a"], pa.string())], schema=SCHEMA)
        self.registered(registered_through)
        self.handler.store_block([batch], sequence=sequence)

    def registered(self, through: int) -> None:
        self.handler.registered_through.sequence = through

    def said_through(self) -> list[int]:
        """What notes say, by segment."""
        return [
            item.header.registered_through
            for path in self.rows.paths.values()
            for item in self.store.scan(path)
            if isinstance(item, IntactFrame) and item.header.kind is FrameKind.NOTE
        ]


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    return Setup(tmp_path, SourceRule.SENT_AGAIN)


def test_a_segment_that_is_closed_by_its_age_gets_its_note_before(setup: Setup) -> None:
    """Its newest block was stored just before."""
    setup.keep(1)
    setup.clock.advance(INTERVAL)
    setup.registered(1)
    setup.handler.keep_house()
    assert setup.said_through() == [1]
    assert list(setup.rows.lengths) == [1]


def test_a_segment_is_not_closed_while_a_block_in_it_waits_for_its_acknowledgement(setup: Setup) -> None:
    """The driver log is away for longer than a segment lasts."""
    setup.keep(1)
    setup.keep(2)
    setup.clock.advance(INTERVAL)
    for _ in range(3):
        setup.registered(1)
        setup.handler.keep_house()
    setup.registered(2)
    setup.handler.keep_house()
    assert setup.said_through() == [1, 2]
    assert list(setup.rows.lengths) == [1]


@pytest.mark.parametrize("rule", [SourceRule.OFFSETS, SourceRule.NOT_SENT_AGAIN])
def test_a_segment_without_need_of_a_note_is_closed_by_its_age(tmp_path: Path, rule: SourceRule) -> None:
    setup = Setup(tmp_path, rule)
    setup.keep(1)
    setup.clock.advance(INTERVAL)
    setup.registered(0)
    setup.handler.keep_house()
    assert setup.said_through() == []
    assert setup.rows.lengths == {}
    # It is closed, not sealed: what comes next goes to another one.
    setup.keep(2, registered_through=1)
    assert len(setup.rows.paths) == 2
    assert list(setup.rows.lengths) == [1]
