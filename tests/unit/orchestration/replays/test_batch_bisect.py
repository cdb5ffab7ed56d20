"""Check that halving finds the blocks at fault, and only those."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from orchestration.replays.batch_bisect import MOST_CULPRITS, Bisection, bisect
from tracker_store.batches.received_block_tracker import AllocatedBlock
from tracker_store.blocks.blocks import BlockHandle

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def blocks(count: int) -> list[AllocatedBlock]:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return [AllocatedBlock(1, n, 1, "path", BlockHandle(1, n, 1, n), at) for n in range(1, count + 1)]


def found(count: int, breaks: Callable[[set[int]], bool]) -> Bisection[AllocatedBlock]:
    def error_of(part: Sequence[AllocatedBlock]) -> str:
        return "boom" if breaks({block.sequence for block in part}) else ""

    return bisect(blocks(count), error_of)


def sequences(bisection: Bisection[AllocatedBlock]) -> list[list[int]]:
    return [[block.sequence for block in culprit.part] for culprit in bisection.culprits]


@pytest.mark.parametrize("culprit", [1, 37, 100])
def test_one_block_is_found_in_few_runs(culprit: int) -> None:
    bisection = found(100, lambda part: culprit in part)
    assert sequences(bisection) == [[culprit]]
    assert bisection.runs <= 2 + 2 * 7


def test_several_culprits_are_each_found() -> None:
    assert sequences(found(20, lambda part: bool(part & {3, 4, 19}))) == [[3], [4], [19]]


def test_blocks_that_fail_only_together_are_found_together() -> None:
    [together] = sequences(found(16, lambda part: {8, 9} <= part))
    assert {8, 9} <= set(together)


def test_without_a_failure_nothing_is_searched() -> None:
    bisection = found(16, lambda _: False)
    assert (bisection.error, bisection.culprits, bisection.runs) == ("", [], 1)


def test_failure_without_records_is_blamed_on_the_code() -> None:
    bisection = found(16, lambda _: True)
    assert (bisection.without_any, bisection.culprits, bisection.runs) == ("boom", [], 2)


def test_it_stops_at_many_culprits_and_reports_that() -> None:
    bisection = found(64, bool)
    assert (len(bisection.culprits), bisection.whole) == (MOST_CULPRITS, False)
