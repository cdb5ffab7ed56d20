"""Check what a mark says to the next process, wherever the one before it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.reporting.source_marks import SourceMarks
from tracker_store.blocks.blocks import Position

if TYPE_CHECKING:
    from collections.abc import Sequence


class KilledError(Exception):
    """The process ends here."""


class Positions:
    """A driver log in memory, which ends the process before a statement."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, Position]] = {}
        self.statements_left = 1000

    def _statement(self) -> None:
        if not self.statements_left:
            raise KilledError
        self.statements_left -= 1

    def all_of(self, source: str) -> dict[str, Position]:
        return dict(self.of.get(source, {}))

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        self._statement()
        return self.of.setdefault(source, {}).setdefault(partition, Position(0, start_offset))

    def forget(self, source: str, partitions: Sequence[str]) -> None:
        self._statement()
        for partition in partitions:
            self.of[source].pop(partition, None)


def test_there_is_no_mark_before_the_first_note() -> None:
    assert SourceMarks(Positions(), "group of orders").read() is None


@pytest.mark.parametrize("statements", range(7))
def test_a_mark_is_never_missing_nor_older_than_one_that_was_noted(statements: int) -> None:
    log = Positions()
    marks = SourceMarks(log, "d of orders")
    notes = [(7, 1), (7, 12), (7, 12), (8, 3)]
    noted: list[tuple[int, ...]] = []
    log.statements_left = statements
    try:
        for mark in notes:
            marks.note(mark)
            noted.append(mark)
    except KilledError:
        pass
    log.statements_left = 1000
    found = SourceMarks(log, "d of orders").read()
    assert found in [*noted[-1:], *notes[len(noted) :][:1]] if noted else found in (None, notes[0])
    again = SourceMarks(log, "d of orders")
    assert again.read() == found
    again.note((9, 1))
    assert list(log.of["mark of d of orders"]) == ["9/1"]


def test_two_receivers_of_a_stream_keep_the_further_mark() -> None:
    log = Positions()
    here, there = SourceMarks(log, "d of orders"), SourceMarks(log, "d of orders")
    here.note((7, 20))
    there.note((7, 10))
    assert SourceMarks(log, "d of orders").read() == (7, 20)
