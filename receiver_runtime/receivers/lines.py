"""Cuts a stream of bytes into lines by vector code: no Python object per line.

``LineCutter`` owns the buffer that a socket reads into. What comes out does not depend on how the stream was cut up on
its way: the same bytes give the same records and the same dead letters. Memory is bounded by the buffer, whatever the
length of a line.

The rules for bad input are in ``docs/reference/bad-input.md``; they are implemented here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Iterator

#: A record that is put aside is kept in parts of this size.
PART_BYTES = 2**20
_MIN_READ = 2**16
_BUFFER_BYTES = 2**20
_CR = 0x0D

_Positions = npt.NDArray[np.intp]


@dataclass(slots=True)
class Cut:
    """What a piece of the stream gave: whole lines in order (None when there are none), and what went aside."""

    lines: pa.Array | None = None
    dead_letters: list[DeadLetter] = field(default_factory=list)


class LineCutter:
    r"""Cuts one connection's stream. One thread.

    Args:
        delimiter: one ASCII character.
        encoding: of the stream, in which that character's byte means nothing else; lines come out as UTF-8.
        max_record_bytes: a longer line, without its delimiter (and the ``\\r`` before a ``\\n``), goes aside.
        buffer_bytes: the least size of the buffer.
    """

    def __init__(
        self,
        *,
        delimiter: str = "\n",
        encoding: str = "utf-8",
        max_record_bytes: int = 2**20,
        part_bytes: int = PART_BYTES,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self._delimiter = delimiter.encode("ascii")
        self._byte = self._delimiter[0]
        self._strips_cr = delimiter == "\n"
        self._encoding = encoding
        self._max = max_record_bytes
        self._part_bytes = part_bytes
        # A line's start is kept until it is known to be too long (a \r more than the limit), or, when it is, until
        # there is a whole part.
        keep = max(max_record_bytes + 1, part_bytes)
        self._buffer = bytearray(max(buffer_bytes, keep + _MIN_READ))
        self._view = memoryview(self._buffer)
        #: Bytes at the buffer's start that belong to a line whose end has not come.
        self._held = 0
        #: The next part's number within a line that is too large; None outside of one.
        self._part: int | None = None

    def writable(self) -> memoryview:
        """Where the next bytes of the stream go; never empty. Say how many by ``written``."""
        return self._view[self._held :]

    def written(self, count: int) -> Cut:
        """``count`` bytes were put into ``writable()``: what do they give?"""
        cut = Cut()
        end = self._held + count
        start = 0
        if self._part is not None:
            found = self._buffer.find(self._delimiter, self._held, end)
            if found < 0:
                start = self._take_parts(cut, end)
                self._keep(start, end)
                return cut
            start = self._end_large_line(cut, found)
        last = self._buffer.rfind(self._delimiter, max(start, self._held), end)
        if last >= 0:
            self._cut_lines(cut, bytes(self._view[start : last + 1]), strip_cr=self._strips_cr)
            start = last + 1
        if self._too_large(end - start, start):
            self._part = 0
            start = self._take_parts(cut, end, start)
        self._keep(start, end)
        return cut

    def feed(self, data: bytes) -> Iterator[Cut]:
        """Hand in bytes that lie elsewhere, in as many steps as the buffer needs."""
        done = 0
        while done < len(data):
            room = self.writable()
            count = min(len(room), len(data) - done)
            room[:count] = data[done : done + count]
            done += count
            yield self.written(count)

    def finish(self, *, clean: bool) -> Cut:
        """The stream is over; the cutter may be used for another afterwards.

        Args:
            clean: the sender ended it, so that what is left is a record; else it is a part of one.
        """
        cut = Cut()
        held, self._held = self._held, 0
        if self._part is not None:
            start = self._take_parts(cut, held)
            if held > start:
                cut.dead_letters.append(
                    DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, bytes(self._view[start:held]), self._part)
                )
            self._part = None
        elif held and not clean:
            cut.dead_letters.extend(self._aside(DeadLetterReason.TRUNCATED, bytes(self._view[:held])))
        elif held:
            # A \r at the very end is not right before a newline: it stays.
            self._cut_lines(cut, bytes(self._view[:held]) + self._delimiter, strip_cr=False)
        return cut

    # -- a line that is too large ------------------------------------------------------------------------------------

    def _too_large(self, held: int, start: int) -> bool:
        """Is the line that begins at ``start`` too large whatever comes next?"""
        if held <= self._max:
            return False
        return held > self._max + 1 or not (self._strips_cr and self._buffer[start + self._max] == _CR)

    def _take_parts(self, cut: Cut, end: int, start: int = 0) -> int:
        """Put aside the whole parts of the large line's bytes from ``start`` to ``end``; returns what follows them."""
        part = self._part or 0
        while end - start >= self._part_bytes:
            piece = bytes(self._view[start : start + self._part_bytes])
            cut.dead_letters.append(DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, piece, part))
            start += self._part_bytes
            part += 1
        self._part = part
        return start

    def _end_large_line(self, cut: Cut, found: int) -> int:
        """The large line's delimiter is at ``found``: put the rest of it aside; returns the next line's start."""
        start = self._take_parts(cut, found)
        if found > start:
            cut.dead_letters.append(
                DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, bytes(self._view[start:found]), self._part or 0)
            )
        self._part = None
        return found + 1

    def _aside(self, reason: DeadLetterReason, data: bytes) -> Iterator[DeadLetter]:
        for part, start in enumerate(range(0, len(data), self._part_bytes)):
            yield DeadLetter(reason, data[start : start + self._part_bytes], part)

    def _keep(self, start: int, end: int) -> None:
        if start:
            self._buffer[: end - start] = self._buffer[start:end]
        self._held = end - start

    # -- whole lines -------------------------------------------------------------------------------------------------

    def _cut_lines(self, cut: Cut, data: bytes, *, strip_cr: bool) -> None:
        """Whole lines, the last delimiter included."""
        raw_ends = self._ends(data)
        lines, ends = data, raw_ends
        if strip_cr and b"\r" in data:
            lines = data.replace(b"\r\n", b"\n")
            ends = self._ends(lines)
        bad = self._bad_lines(lines, ends)
        if bad:
            indexes = sorted(bad)
            for index in indexes:
                # Raw bytes go aside: the \r is a part of them.
                first = int(raw_ends[index - 1]) + 1 if index else 0
                cut.dead_letters.extend(self._aside(bad[index], data[first : int(raw_ends[index])]))
            lines = _without(lines, ends, indexes)
            ends = self._ends(lines)
        if ends.size:
            cut.lines = self._array(lines, ends)

    def _ends(self, data: bytes) -> _Positions:
        """Where the delimiters are."""
        return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == self._byte)

    def _bad_lines(self, data: bytes, ends: _Positions) -> dict[int, DeadLetterReason]:
        """Which lines can't be stored, by index."""
        lengths = np.diff(ends, prepend=-1) - 1
        bad = dict.fromkeys(np.flatnonzero(lengths > self._max).tolist(), DeadLetterReason.RECORD_TOO_LARGE)
        if data.isascii():
            return bad
        view = memoryview(data)
        position = 0
        while position < len(data):
            try:
                str(view[position:], self._encoding)
            except UnicodeDecodeError as error:
                # A delimiter is never part of a longer sequence, so the first bad byte is in the bad line.
                index = int(np.searchsorted(ends, position + error.start))
                bad.setdefault(index, DeadLetterReason.INVALID_ENCODING)
                position = int(ends[index]) + 1
            else:
                break
        return bad

    def _array(self, lines: bytes, ends: _Positions) -> pa.Array:
        """Good lines as an array, from two buffers: the text without delimiters, and where each line ends in it."""
        if self._encoding != "utf-8" and not lines.isascii():
            lines = lines.decode(self._encoding).encode("utf-8")
            ends = self._ends(lines)
        count = ends.size
        offsets = np.empty(count + 1, dtype=np.int32)
        offsets[0] = 0
        offsets[1:] = ends - np.arange(count)
        text = lines.replace(self._delimiter, b"")
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


def _without(data: bytes, ends: _Positions, bad: list[int]) -> bytes:
    """The lines of ``data`` but for the bad ones: one slice per run of good lines."""
    runs = []
    start = 0
    for index in bad:
        runs.append(data[start : int(ends[index - 1]) + 1 if index else 0])
        start = int(ends[index]) + 1
    runs.append(data[start:])
    return b"".join(runs)
