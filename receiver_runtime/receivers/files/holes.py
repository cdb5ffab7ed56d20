"""Find holes: runs of NULs that are no text, and the lines around them.

A writer that does not append goes on at its old place after its file was truncated, and the file begins with zeros up
to there. A host that loses power leaves zeros where data was not written yet. Some programs write each line with the
NUL behind it. Owns the rule that tells such a run from text, over bytes in memory; it must never read a file.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

#: Bytes: a shorter run within a line is part of the line.
LONG_RUN = 512
#: How an encoding whose newline is one byte writes a unit.
BYTES = np.dtype("u1")
_LONG_RUN = bytes(LONG_RUN)
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


def without_holes(data: bytes, *, is_whole: bool, units: np.dtype[Any] = BYTES) -> Text:
    """Return the text of these bytes, which begin with a line.

    A hole is a run of NULs at a line's beginning, or a long one within a line, which then ends there.

    Args:
        data: bytes in an encoding that writes a NUL and a newline as one unit, and no other character with them.
        is_whole: nothing comes behind them, so that a run at their end is a hole too.
        units: how the encoding writes a unit.
    """
    size = units.itemsize
    written = np.frombuffer(data, dtype=units, count=len(data) // size)
    if (size == 1 and b"\0" not in data) or (is_nul := written == 0).sum() == 0:
        return Text(data, None, len(data), is_cut=False)
    edges = np.flatnonzero(np.diff(np.concatenate(([False], is_nul, [False])).view(np.int8)))
    begins, ends = edges[::2], edges[1::2]
    at_line = (begins == 0) | (written[begins - 1] == _NEWLINE)
    is_hole = at_line | ((ends - begins) * size >= LONG_RUN)
    stop = len(written)
    is_cut = bool(is_hole[-1] and ends[-1] == stop and not is_whole)
    if is_cut:
        stop = int(begins[-1])
        begins, ends, at_line, is_hole = begins[:-1], ends[:-1], at_line[:-1], is_hole[:-1]
    # Half a unit may be written at the end.
    end = stop * size if is_cut else len(data)
    begins, ends, at_line = begins[is_hole], ends[is_hole], at_line[is_hole]
    if not begins.size:
        return Text(data[:end], None, end, is_cut=is_cut)
    steps = np.zeros(len(written) + 1, dtype=np.int8)
    # Of a hole within a line one unit stays, as the line's newline, unless one follows anyway.
    followed = written[np.minimum(ends, len(written) - 1)] == _NEWLINE
    stays = ~at_line & ~(followed & (ends < len(written)))
    steps[begins + stays] += 1
    steps[ends] -= 1
    kept = np.flatnonzero(np.cumsum(steps[:stop], dtype=np.int8) == 0)
    text = written[kept]
    text[np.searchsorted(kept, begins[stays])] = _NEWLINE
    places = kept if size == 1 else (kept[:, None] * size + np.arange(size)).ravel()
    places = np.append(places, np.arange(stop * size, end))
    return Text(text.tobytes() + data[stop * size : end], places, end, is_cut, begins.size)


def first_long_run(data: bytes, stop: int, units: np.dtype[Any]) -> int:
    """Return where the first long run of NULs before ``stop`` begins, at a unit; -1 where there is none."""
    at = data.find(_LONG_RUN, 0, stop)
    while at >= 0 and (at % units.itemsize or not data.startswith(_LONG_RUN, at)):
        at = data.find(_LONG_RUN, at + 1, stop)
    return at


def length_without_run(data: bytes, units: np.dtype[Any]) -> int:
    """Return how long these bytes are without the NULs at their end; all of them where there is nothing else."""
    size = units.itemsize
    kept = len(data.rstrip(b"\0")) or len(data)
    return kept + -kept % size
