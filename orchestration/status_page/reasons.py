"""Say why batches or receivers are as they are: a line for each cause, with how many of them have it.

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
# A word that the cut leaves a part of; a long one, such as a path, keeps the part.
_CUT_AT_END, _CUT_AT_BEGIN = re.compile(r"\s\S{0,30}$"), re.compile(r"^\S{0,30}\s")
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
        line = one_line(reason_of(row))
        if line:
            cause = line if line.startswith(_OWN_ADDRESS) else _VALUE.sub("", line)
            found.setdefault(cause, Cause(line, [])).rows.append(row)
    return list(found.values())


def is_cut(reason: str) -> bool:
    """Return whether `one_line` leaves out a part of a reason."""
    return one_line(reason) != reason.strip()


def one_line(reason: str, *, longest: int = _LONGEST) -> str:
    """Return a reason's first line; of a long one its beginning and its end, which names the root cause."""
    line = reason.partition("\n")[0].strip()
    if len(line) <= longest:
        return line
    # The root cause may be long itself.
    kept = longest - len(_SHORTENED)
    begin, end = line[: kept // 3], line[kept // 3 - kept :]
    return _CUT_AT_END.sub("", begin) + _SHORTENED + _CUT_AT_BEGIN.sub("", end)
