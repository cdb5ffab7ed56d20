"""Join lines that belong together into records, by vector code: no Python object per line.

A record begins only where a line says so, or where a record would be too large, and never because of how much was read
at once. So reading on from the beginning of a record makes the same records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver_runtime.sources.fields.multiline import Multiline

    #: The indexes of lines.
    Indexes = npt.NDArray[np.intp]


class LineJoiner:
    """Join lines. Safe from any thread.

    Args:
        max_bytes: the most bytes of a record of several lines, in UTF-8.

    Raises ValueError: the pattern is not RE2's.
    """

    def __init__(self, multiline: Multiline, max_bytes: int) -> None:
        self._pattern = multiline.pattern
        try:
            pc.match_substring_regex(pa.array([""]), self._pattern)
        except pa.ArrowInvalid as error:
            raise ValueError(f"multiline: {self._pattern!r} is no regular expression of RE2: {error}") from error
        self._names_first = multiline.start is not None
        self._max_lines = multiline.max_lines
        self._max_bytes = max_bytes

    def firsts(self, lines: pa.StringArray, breaks: Indexes) -> Indexes:
        """Return which lines begin a record. The first one does, whatever it is; there must be one.

        Args:
            breaks: lines that begin one whatever they are.
        """
        matches = pc.match_substring_regex(lines, self._pattern).to_numpy(zero_copy_only=False)
        is_first = matches.copy() if self._names_first else ~matches
        is_first[0] = True
        is_first[breaks] = True
        firsts = np.flatnonzero(is_first)
        # Where each line would end in a text of all lines, with a newline between them.
        ends = np.cumsum(pc.binary_length(lines).to_numpy().astype(np.int64) + 1)
        nexts = np.append(firsts[1:], len(lines))
        nbytes = ends[nexts - 1] - np.where(firsts > 0, ends[firsts - 1], 0) - 1
        over = (nexts - firsts > self._max_lines) | ((nbytes > self._max_bytes) & (nexts - firsts > 1))
        if not over.any():
            return firsts
        more = [self._cuts(int(firsts[index]), int(nexts[index]), ends) for index in np.flatnonzero(over)]
        return np.sort(np.concatenate([firsts, *more]))

    def _cuts(self, first: int, end: int, ends: npt.NDArray[np.int64]) -> Indexes:
        """Return where a record that is too large is cut: each part has as many lines as it may."""
        cuts: list[int] = []
        while True:
            begin = int(ends[first - 1]) if first else 0
            fitting = int(np.searchsorted(ends, begin + self._max_bytes + 1, side="right"))
            first = max(first + 1, min(fitting, first + self._max_lines))
            if first >= end:
                return np.array(cuts, dtype=np.intp)
            cuts.append(first)

    @staticmethod
    def join(lines: pa.StringArray, firsts: Indexes) -> pa.StringArray:
        """Return the records that begin at these lines, their lines with a newline between them."""
        if firsts.size == len(lines):
            return lines
        offsets = pa.array(np.append(firsts, len(lines)), pa.int32())
        return pc.binary_join(pa.ListArray.from_arrays(offsets, lines), "\n")
