"""Say why batches are as they are: a line for each cause, with how many batches have it.

Owns which reasons count as one cause, and how a long line is shortened. It reads nothing and prints nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Row = TypeVar("Row")

# Characters of a cause, at most: some lines of a terminal.
_LONGEST = 400
_SHORTENED = " … "
# What differs from one record to the next: values in quotes, and numbers.
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|\d+")


@dataclass(frozen=True, slots=True)
class Cause(Generic[Row]):
    """Hold a cause's line, the first row that has it, and how many more rows do."""

    line: str
    row: Row
    more: int

    @property
    def and_more(self) -> str:
        """Return what follows the first row's name."""
        return f" and {self.more:,} more" if self.more else ""


def causes(rows: Iterable[Row], reason_of: Callable[[Row], str]) -> list[Cause[Row]]:
    """Return each cause once, in the order of the rows; rows without a reason have none.

    Reasons whose lines differ only in values are one cause.
    """
    found: dict[str, tuple[str, Row, int]] = {}
    for row in rows:
        line = one_line(reason_of(row))
        if line:
            kind = _VALUE.sub("", line)
            first = found.get(kind)
            found[kind] = (line, row, 0) if first is None else (first[0], first[1], first[2] + 1)
    return [Cause(*one) for one in found.values()]


def one_line(reason: str) -> str:
    """Return a reason's first line; of a long one its beginning and its end, which names the root cause."""
    line = reason.partition("\n")[0].strip()
    if len(line) <= _LONGEST:
        return line
    begin, end = line[: _LONGEST // 2], line[-_LONGEST // 2 :]
    return begin.rpartition(" ")[0] + _SHORTENED + end.partition(" ")[2]
