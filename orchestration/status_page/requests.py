"""Read what an address asks for: page numbers, an order, a state, a position. Whatever can't be read is its default.

An address is typed by people and kept in bookmarks: only what names a thing (a pipeline, a batch) may be refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING

from orchestration.status_page.shown import time_of
from tracker_store.reports.status_page import BatchOrder, FinishedState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from tracker_store.reports.status_page import PageBatch

# Rows of a page: receivers and batches; blocks and positions of one batch.
PAGE_ROWS = 50
# Finished batches that are sorted together, as many as the original retains.
WINDOW = 1000
# By what a batch has before it is finished.
OPEN_ORDERS = (BatchOrder.TIME, BatchOrder.RECORDS, BatchOrder.SCHEDULING_DELAY)
_LARGEST = 2**63 - 1


def whole(text: str | None) -> int | None:
    """Return a whole number that a bigint can hold, or None. Signs, spaces and digits of other scripts are refused."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > len(str(_LARGEST)):
        return None
    return number if (number := int(text)) <= _LARGEST else None


def page_number(values: Mapping[str, str], name: str, *, last: int) -> int:
    """Return the number of a page, from 1 to `last`."""
    return min(max(1, whole(values.get(name)) or 1), last)


def moment(text: str | None) -> datetime | None:
    """Return a time that is given in milliseconds since 1970, or None."""
    number = whole(text)
    try:
        return None if number is None else time_of(number)
    except OverflowError:
        return None


def position(text: str | None) -> tuple[int, int] | None:
    """Return the position of an event, written as its id TRANSACTION-ID, or None."""
    first, _, second = (text or "").partition("-")
    transaction_id, number = whole(first), whole(second)
    return None if transaction_id is None or number is None else (transaction_id, number)


@dataclass(frozen=True, slots=True)
class OpenAsked:
    """In which order a page shows the batches that run or wait: the oldest first, if nothing else is asked for."""

    order: BatchOrder
    ascending: bool

    @classmethod
    def of(cls, values: Mapping[str, str]) -> OpenAsked:
        """Read it from a query."""
        order = values.get("open")
        if order not in OPEN_ORDERS:
            return cls(BatchOrder.TIME, ascending=True)
        return cls(BatchOrder(order), values.get("open_direction") == "up")

    def sorted(self, batches: Sequence[PageBatch]) -> list[PageBatch]:
        """Return batches in this order; those without a value come last."""
        known = [batch for batch in batches if getattr(batch, self.order) is not None]
        known.sort(key=attrgetter(self.order), reverse=not self.ascending)
        return known + [batch for batch in batches if getattr(batch, self.order) is None]


@dataclass(frozen=True, slots=True)
class FinishedAsked:
    """Say which finished batches a page shows, in which order."""

    order: BatchOrder
    ascending: bool
    state: FinishedState | None
    before: datetime | None
    page: int

    @classmethod
    def of(cls, values: Mapping[str, str]) -> FinishedAsked:
        """Read it from a query."""
        order = values.get("sort")
        state = values.get("state")
        return cls(
            BatchOrder(order) if order in set(BatchOrder) else BatchOrder.TIME,
            values.get("direction") == "up",
            FinishedState(state) if state in set(FinishedState) else None,
            moment(values.get("before")),
            page_number(values, "page", last=WINDOW // PAGE_ROWS),
        )

    @property
    def states(self) -> Sequence[FinishedState]:
        """Return the states of the batches that are asked for."""
        return tuple(FinishedState) if self.state is None else (self.state,)
