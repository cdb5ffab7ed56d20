from __future__ import annotations

from dataclasses import replace

from receiver_runtime.reporting.acknowledged_blocks import AcknowledgedBlocks
from tests.unit.receiver_runtime.support import block
from tracker_store.blocks.blocks import OffsetLink


def test_it_describes_blocks_acknowledged_after_a_sequence() -> None:
    acknowledged = AcknowledgedBlocks()
    assert acknowledged.describe_after(0) is None
    for sequence in range(2, 6):
        links = (OffsetLink("kafka", "orders/0", 0, sequence * 10, sequence * 10 + 10),)
        acknowledged.add(replace(block(sequence, records=3), links=links if sequence < 5 else ()))
    assert acknowledged.describe_after(5) is None
    assert acknowledged.describe_after(4) == "1 blocks, 3 records (sequences 5..5)"
    assert acknowledged.describe_after(2) == "3 blocks, 9 records (sequences 3..5), positions kafka/orders/0: 30..50"


def test_old_blocks_are_forgotten_and_only_counted() -> None:
    acknowledged = AcknowledgedBlocks()
    for sequence in range(1, 1_011):
        acknowledged.add(block(sequence))
    said = acknowledged.describe_after(5)
    assert said == "1000 blocks, 1000 records (sequences 11..1010, and 5 blocks before these)"
