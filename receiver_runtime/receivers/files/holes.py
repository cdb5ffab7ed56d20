"""Find holes: runs of NULs that are no text, and the lines around them.

A writer that does not append goes on at its old place after its file was truncated, and the file begins with zeros up
to there. A host that loses power leaves zeros where data was not written yet. Some programs write each line with the
NUL behind it. Owns the rule that tells such a run from text, over bytes in memory; it must never read a file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Bytes: a shorter run within a line is part of the line.
LONG_RUN = 512
_NEWLINE = 10


class Hole(NamedTuple):
    """Count the NULs that were passed over, and their runs."""

    nbytes: int
    runs: int = 1

    def words(self, path: str) -> str:
        """Return what operators are told. Of short runs there may be one before each line: they get no number."""
        if self.runs > 1 or self.nbytes < LONG_RUN:
            return f"{path} has NUL bytes before lines: they are passed over, and the lines are kept"
        return f"{path} has a hole of {self.nbytes:,} NUL bytes: it is passed over, and the line behind it is kept"


class Text(NamedTuple):
    """Hold the text of some bytes, without their holes.

    ``places`` is where each byte of ``data`` was; None: there are no holes. ``stop`` is where the bytes end.
    ``is_cut``: behind that is a run of NULs of which it is not known whether it is a hole. ``runs``: how many holes.
    """

    data: bytes
    places: npt.NDArray[np.intp] | None
    stop: int
    is_cut: bool
    runs: int = 0

    def place(self, at: int) -> int:
        """Return where the byte at ``at`` was: behind the hole that is before it."""
        if self.places is None:
            return at
        return int(self.places[at]) if at < len(self.places) else self.stop

    def hole(self, end: int) -> Hole | None:
        """Return what was left out before the byte at ``end``; None: nothing was."""
        nbytes = self.place(end) - end
        return Hole(nbytes, self.runs) if nbytes else None


def without_holes(data: bytes, *, is_whole: bool) -> Text:
    """Return the text of these bytes, which begin with a line.

    A hole is a run of NULs at a line's beginning, or a long one within a line, which then ends there.

    Args:
        data: bytes in an encoding that writes a NUL and a newline as one byte, and no other character with them.
        is_whole: nothing comes behind them, so that a run at their end is a hole too.
    """
    if b"\0" not in data:
        return Text(data, None, len(data), is_cut=False)
    octets = np.frombuffer(data, dtype=np.uint8)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], octets == 0, [False])).view(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    at_line = (begins == 0) | (octets[begins - 1] == _NEWLINE)
    is_hole = at_line | (ends - begins >= LONG_RUN)
    stop = len(data)
    is_cut = bool(is_hole[-1] and ends[-1] == stop and not is_whole)
    if is_cut:
        stop = int(begins[-1])
        begins, ends, at_line, is_hole = begins[:-1], ends[:-1], at_line[:-1], is_hole[:-1]
    begins, ends, at_line = begins[is_hole], ends[is_hole], at_line[is_hole]
    if not begins.size:
        return Text(data[:stop], None, stop, is_cut=is_cut)
    steps = np.zeros(len(data) + 1, dtype=np.int8)
    # Of a hole within a line one byte stays, as the line's newline, unless one follows anyway.
    followed = octets[np.minimum(ends, len(data) - 1)] == _NEWLINE
    stays = ~at_line & ~(followed & (ends < len(data)))
    steps[begins + stays] += 1
    steps[ends] -= 1
    kept = np.flatnonzero(np.cumsum(steps[:stop], dtype=np.int8) == 0)
    text = octets[kept]
    text[np.searchsorted(kept, begins[stays])] = _NEWLINE
    return Text(text.tobytes(), kept, stop, is_cut, begins.size)
