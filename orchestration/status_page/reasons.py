"""Say why batches or receivers are as they are: a line for each cause, with how many of them have it.

Owns which reasons count as one cause. It reads nothing and prints nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from tracker_store.long_texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Row = TypeVar("Row")

#: Characters of a line, at most: some lines of a terminal.
LONGEST = 400
_OWN_ADDRESS = "listening on "
# What differs from one record to the next: values in quotes, and numbers.
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+")


@dataclass(frozen=True, slots=True)
class Cause(Generic[Row]):
    """Hold a cause's line, and the rows that have it, one at least."""

    line: str
    rows: list[Row]

    @property
    def row(self) -> Row:
        """Return the first row, whose values the line has."""
        return self.rows[0]

    @property
    def more(self) -> int:
        """Return how many rows have it beside the first."""
        return len(self.rows) - 1

    @property
    def and_more(self) -> str:
        """Return what follows the first row's name."""
        return f" and {self.more:,} more" if self.more else ""


def causes(rows: Iterable[Row], reason_of: Callable[[Row], str]) -> list[Cause[Row]]:
    """Return each cause once, in the order of the rows; rows without a reason have none.

    Reasons whose lines differ only in values are one cause; not so where a line only says who listens where.
    """
    found: dict[str, Cause[Row]] = {}
    for row in rows:
        line = one_line(reason_of(row), LONGEST)
        if line:
            found.setdefault(cause_in(line), Cause(line, [])).rows.append(row)
    return list(found.values())


def cause_in(line: str) -> str:
    """Return what lines of one cause have in common."""
    return line if line.startswith(_OWN_ADDRESS) else _VALUE.sub("", line)


def is_cut(reason: str) -> bool:
    """Return whether the line of a reason leaves out a part of it."""
    return one_line(reason, LONGEST) != reason.strip()
