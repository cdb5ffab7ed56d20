"""Join lines that belong together into records, by vector code: no Python object per line.

A record begins only where a line says so, or where a record would be too large, and never because of how much was read
at once. So reading on from the beginning of a record makes the same records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.sources.fields.multiline import Multiline

    #: The indexes of lines.
    Indexes = npt.NDArray[np.intp]
    #: Numbers of bytes or lines, by line.
    Sizes = npt.NDArray[np.int64]

_VALUE = pa.schema([("value", pa.string())])


class Closing(Enum):
    """Say which records are complete although lines that belong to them may follow."""

    NONE = "none"
    FIRST = "the one that began first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Joined:
    """Hold the first records of some lines.

    Args:
        columns: those of the joiner's schema.
        firsts: the line at which each record begins.
        behind: how many lines they are made of, with those that are put aside. No later record has one of them.
        letters: the lines that are put aside.
        opens: the lines behind them at which records begin that may have more lines.
        is_limited: more records are complete.
    """

    columns: Sequence[pa.Array]
    firsts: Indexes
    behind: int
    letters: Sequence[DeadLetter]
    opens: Indexes
    is_limited: bool


class Joiner(Protocol):
    """Join lines of a file. Safe from any thread.

    ``is_mixed``: lines of one record may be between those of another, so that complete ones may have to wait.
    """

    is_mixed: bool

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that it makes of lines."""
        ...

    def take(self, lines: pa.Array, breaks: Indexes, *, most: int, closing: Closing) -> Joined:
        """Return the first complete records of lines; there must be a line.

        Args:
            lines: what follows a place at which no record is open.
            breaks: lines behind one that was put aside: no record goes on there.
            most: how many records are wanted. More are returned only where their lines are mixed.
            closing: which records are complete whatever follows.
        """
        ...


@dataclass(frozen=True, slots=True)
class RecordLimits:
    """Bound a record of several lines, in lines and in bytes; ``joint`` bytes are between two of its lines."""

    max_lines: int
    max_bytes: int
    joint: int = 1

    def firsts(
        self,
        firsts: Indexes,
        nbytes: Sizes,
        counts: Sizes | None = None,
        *,
        preferred: npt.NDArray[np.bool_] | None = None,
    ) -> Indexes:
        """Return where records begin, those that are too large cut: each part has as many lines as it may.

        Args:
            firsts: the lines that begin a record; the first line is one of them.
            nbytes: of each line.
            counts: as how many lines each of them counts; None: as one.
            preferred: the lines at which a record is cut, if a part has one of them; None: all.
        """
        ends = np.cumsum(nbytes + self.joint)
        numbers = np.arange(1, nbytes.size + 1) if counts is None else np.cumsum(counts)
        begins = np.where(firsts > 0, ends[firsts - 1], 0)
        befores = np.where(firsts > 0, numbers[firsts - 1], 0)
        nexts = np.append(firsts[1:], nbytes.size)
        is_over = (numbers[nexts - 1] - befores > self.max_lines) | (
            ends[nexts - 1] - begins - self.joint > self.max_bytes
        )
        over = np.flatnonzero(is_over & (nexts - firsts > 1))
        cuts: list[int] = []
        places = None if preferred is None else np.flatnonzero(preferred)
        for first, end in zip(firsts[over].tolist(), nexts[over].tolist(), strict=True):
            at = first
            while True:
                begin, before = (int(ends[at - 1]), int(numbers[at - 1])) if at else (0, 0)
                fitting = int(np.searchsorted(ends, begin + self.max_bytes + self.joint, side="right"))
                counted = int(np.searchsorted(numbers, before + self.max_lines, side="right"))
                behind = max(at + 1, min(fitting, counted))
                if behind >= end:
                    break
                at = behind if places is None else _last_within(places, at, behind)
                cuts.append(at)
        return np.sort(np.concatenate([firsts, np.array(cuts, dtype=np.intp)])) if cuts else firsts


class LineJoiner:
    """Join lines that follow each other. Safe from any thread.

    Args:
        max_bytes: the most bytes of a record of several lines, in UTF-8.

    Raises ValueError: the pattern is not RE2's.
    """

    schema = _VALUE
    is_mixed = False

    def __init__(self, multiline: Multiline, max_bytes: int) -> None:
        self._pattern = multiline.pattern
        try:
            pc.match_substring_regex(pa.array([""]), self._pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"multiline: {self._pattern!r} is no regular expression of RE2: {error}") from error
        self._names_first = multiline.start is not None
        self.limits = RecordLimits(multiline.max_lines, max_bytes)

    def begins(self, lines: pa.StringArray) -> npt.NDArray[np.bool_]:
        """Return for each line whether it says that it begins a record."""
        matches: npt.NDArray[np.bool_] = pc.match_substring_regex(lines, self._pattern).to_numpy(zero_copy_only=False)
        return matches.copy() if self._names_first else ~matches

    def firsts(self, lines: pa.StringArray, breaks: Indexes) -> Indexes:
        """Return which lines begin a record. The first one does, whatever it is; there must be one.

        Args:
            breaks: lines that begin one whatever they are.
        """
        is_first = self.begins(lines)
        is_first[0] = True
        is_first[breaks] = True
        return self.limits.firsts(np.flatnonzero(is_first), sizes_of(lines))

    def take(self, lines: pa.Array, breaks: Indexes, *, most: int, closing: Closing) -> Joined:
        """See ``Joiner``."""
        firsts = self.firsts(lines, breaks)
        kept = firsts if closing is not Closing.NONE else firsts[:-1]
        is_limited = kept.size > most
        kept = kept[:most]
        behind = int(firsts[kept.size]) if kept.size < firsts.size else len(lines)
        return Joined(
            [self.join(lines.slice(0, behind), kept)],
            kept,
            behind,
            (),
            firsts[-1:] if closing is Closing.NONE else firsts[:0],
            is_limited,
        )

    @staticmethod
    def join(lines: pa.StringArray, firsts: Indexes) -> pa.StringArray:
        """Return the records that begin at these lines, their lines with a newline between them."""
        if firsts.size == len(lines):
            return lines
        offsets = pa.array(np.append(firsts, len(lines)), pa.int32())
        return pc.binary_join(pa.ListArray.from_arrays(offsets, lines), "\n")


def _last_within(places: Indexes, after: int, last: int) -> int:
    """Return the last of these places that is behind ``after`` and not behind ``last``; ``last`` if there is none."""
    found = int(np.searchsorted(places, last, side="right")) - 1
    return int(places[found]) if found >= 0 and places[found] > after else last


def sizes_of(texts: pa.Array) -> Sizes:
    """Return how many bytes each text has."""
    sizes: Sizes = pc.binary_length(texts).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes
