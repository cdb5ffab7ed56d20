"""Check what `forebay batches bisect` prints of what it found."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

from forebay.cli.commands.batches.batch_bisect import _show
from forebay.cli.terminal.console import Console
from orchestration.replays.batch_bisect import Bisection, Culprit
from tracker_store.batches.received_block_tracker import AllocatedBlock
from tracker_store.blocks.blocks import BlockHandle


def test_records_are_named_by_the_lines_that_the_command_of_the_block_prints() -> None:
    block = AllocatedBlock(1, 5, 9, "a.segment", BlockHandle(1, 64, 1, 1), datetime(2026, 1, 1, tzinfo=UTC))
    found = Bisection(7, "boom", culprits=[Culprit([block], "boom")])
    said = io.StringIO()
    records = [[Culprit(range(3, 4), "bad word"), Culprit(range(6, 9), "too many")]]
    _show(Console(file=said, width=200), found, records, {1: "lines/1"}, Path("/log"))
    lines = said.getvalue().splitlines()
    assert "lines/1 block 5: 9 records" in lines[0]
    assert lines[1].strip() == "its records: forebay blocks records lines/1 5"
    assert [line.strip() for line in lines[2:4]] == [
        "of these, line 4: bad word",
        "of these, lines 7 to 9, together: too many",
    ]
    assert "boom" not in said.getvalue()
