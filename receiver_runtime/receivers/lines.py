"""Cut streams of bytes into text records at a delimiter, by vector code: no Python object per record.

The rules for bad input are in ``docs/reference/bad-input.md``; only this module implements those for text. Memory per
connection is bounded by ``max_record_bytes`` and one dead letter, however long a record is.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import LETTER_BYTES, Cut, Piece, Taken, aside, too_large
from receiver_runtime.sources.fields.text_encoding import UTF8_MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter

_SCHEMA = pa.schema([("value", pa.string())])

_SHORT_BYTES = 1024  # a single line up to this length is cut without vector code, which takes longer to set up
_LONGER_FROM = (0x80, 0x800, 0x10000)  # the code points from which on UTF-8 takes one byte more

#: Where something is in some bytes.
Positions = npt.NDArray[np.intp]


class SplitBytes(NamedTuple):
    """Hold bytes without their delimiters: piece i is ``text[offsets[i]:offsets[i + 1]]``, as in an Arrow array."""

    offsets: npt.NDArray[np.int32]
    text: npt.NDArray[np.uint8]
    #: The same two as an array's buffers.
    buffers: tuple[pa.Buffer, pa.Buffer]


def split_at(data: bytes, delimiter: bytes) -> SplitBytes:
    """Split at most 2 GiB at each delimiter, from left to right; the last piece is what follows the last one.

    Arrow goes through the bytes once and copies what it keeps, without Python's lock.
    """
    ends = np.array([0, len(data)], dtype=np.int32)
    whole = pa.BinaryArray.from_buffers(pa.binary(), 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])
    pieces = pc.split_pattern(whole, delimiter).values
    _, offsets, text = pieces.buffers()
    return SplitBytes(
        np.frombuffer(offsets, dtype=np.int32, count=len(pieces) + 1),
        np.frombuffer(text, dtype=np.uint8),
        (offsets, text),
    )


class LineFraming:
    r"""Cut text records that each end with a delimiter.

    The stream is cut at the delimiter's bytes, from left to right, and then decoded. So no byte of the delimiter may be
    part of a longer character in the encoding, unless the encoding is UTF-8 or has one byte per character.

    Args:
        delimiter: any bytes.
        encoding: the stream's encoding; records are returned as UTF-8.
        one_byte: whether each byte of the encoding is a character.
        max_record_bytes: a longer record becomes a dead letter; the delimiter (and a ``\\r`` before a ``\\n``) does not
            count.
    """

    schema = _SCHEMA

    def __init__(
        self,
        *,
        delimiter: bytes = b"\n",
        encoding: str = "utf-8",
        one_byte: bool = False,
        max_record_bytes: int = 2**20,
        letter_bytes: int = LETTER_BYTES,
    ) -> None:
        self._delimiter = delimiter
        self._size = len(delimiter)
        self._overlaps = any(delimiter.startswith(delimiter[n:]) for n in range(1, len(delimiter)))
        self._strips_cr = delimiter == b"\n"
        self._encoding = encoding
        self._one_byte = one_byte
        self._max = max_record_bytes
        self._letter_bytes = letter_bytes

    @property
    def delimiter(self) -> bytes:
        """Return what each record ends with."""
        return self._delimiter

    def last_end(self, data: bytes) -> int:
        """Return how many bytes there are up to the last delimiter, and with it; 0: there is none."""
        found = data.rfind(self._delimiter)
        return 0 if found < 0 else found + self._size

    def first_end(self, data: bytes) -> int:
        """Return where the first delimiter begins; -1: there is none."""
        return data.find(self._delimiter)

    def open(self) -> LineSplitter:
        """Return a new connection's splitter."""
        return LineSplitter(
            self,
            self._delimiter,
            overlaps=self._overlaps,
            strips_cr=self._strips_cr,
            max_record_bytes=self._max,
            letter_bytes=self._letter_bytes,
            mark=UTF8_MARK if self._encoding == "utf-8" else b"",
        )

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Return the records of these pieces, in order, except that records ended by a stream's end come last."""
        cut = Cut()
        arrays = []
        whole = [piece for piece in pieces if not piece.is_last]
        if whole:
            data = whole[0].data if len(whole) == 1 else b"".join(piece.data for piece in whole)
            lines, _ = self._cut_lines(cut, data, whole)
            if lines is not None:
                arrays.append(lines)
        last = [self._cut_last(cut, piece) for piece in pieces if piece.is_last]
        texts = [text for text in last if text is not None]
        if texts:
            arrays.append(pa.array(texts, pa.string()))
        if arrays:
            cut.records = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return cut

    def cut_placed(self, data: bytes, pieces: Sequence[Piece] = ()) -> tuple[Cut, Positions]:
        """Cut whole records, the last delimiter included; also return where each good one begins in ``data``.

        ``pieces`` are what ``data`` was joined of, if its bad records belong to peers.
        """
        cut = Cut()
        cut.records, starts = self._cut_lines(cut, data, pieces)
        return cut, starts

    def ends(self, data: bytes | memoryview) -> Positions:
        """Return where the delimiters begin, in bytes that begin with a record."""
        octets = np.frombuffer(data, dtype=np.uint8)
        if self._size == 1:
            return np.flatnonzero(octets == self._delimiter[0])
        if self._overlaps:
            # Two matches may overlap; then the left one counts.
            places = split_at(bytes(data), self._delimiter).offsets[1:-1]
            return places + np.arange(places.size) * self._size
        found = np.flatnonzero(octets[: max(0, octets.size - self._size + 1)] == self._delimiter[0])
        for place in range(1, self._size):
            found = found[octets[found + place] == self._delimiter[place]]
        return found

    def _cut_lines(self, cut: Cut, data: bytes, pieces: Sequence[Piece] = ()) -> tuple[pa.Array | None, Positions]:
        """Cut whole records, the last delimiter included; return the good ones, and where they begin.

        ``pieces`` are what ``data`` was joined of, if its bad records belong to peers.
        """
        if (whole := self._at_once(data)) is not None:
            return whole
        raw_ends = self.ends(data)
        starts = np.empty_like(raw_ends)
        starts[:1] = 0
        starts[1:] = raw_ends[:-1] + self._size
        lines, ends = self._without_returns(data, raw_ends)
        bad = self._bad_lines(lines, ends)
        if bad:
            indexes = sorted(bad)
            borders = list(accumulate(len(piece.data) for piece in pieces))
            firsts, lasts = starts[indexes].tolist(), raw_ends[indexes].tolist()
            for index, first, last in zip(indexes, firsts, lasts, strict=True):
                peer = pieces[bisect_right(borders, first)].counted_as if pieces else ""
                # A dead letter has the raw bytes, including the \r.
                cut.dead_letters.append(aside(bad[index], data[first:last], peer=peer, most=self._letter_bytes))
            lines = _without(lines, ends, self._size, indexes)
            ends = self.ends(lines)
            starts = np.delete(starts, indexes)
        return self._array(lines, ends) if ends.size else None, starts

    def _at_once(self, data: bytes) -> tuple[pa.Array, Positions] | None:
        """Do as ``_cut_lines`` where it is soon seen that all records are good, and stay as they are; else None."""
        if len(data) <= min(self._max, _SHORT_BYTES) and data.isascii() and data.count(self._delimiter) == 1:
            # A single short line: vector code takes longer to set up than to run.
            line = data[: -self._size]
            text = (line.removesuffix(b"\r") if self._strips_cr else line).decode("ascii")
            return pa.array([text], pa.string()), np.zeros(1, dtype=np.intp)
        if not data or not data.isascii() or (self._strips_cr and b"\r" in data):
            return None
        split = split_at(data, self._delimiter)
        # What comes after the last delimiter is no record.
        places = split.offsets[:-1]
        if (places[1:] - places[:-1]).max(initial=0) > self._max:
            return None
        starts = places[:-1] + np.arange(places.size - 1) * self._size
        return pa.StringArray.from_buffers(places.size - 1, *split.buffers), starts

    def _without_returns(self, data: bytes, ends: Positions) -> tuple[bytes, Positions]:
        r"""Return records whose ends have no ``\r``, where it counts as part of the end."""
        if not self._strips_cr or b"\r" not in data:
            return data, ends
        lines = data.replace(b"\r\n", b"\n")
        return lines, self.ends(lines)

    def _is_ascii(self, data: bytes) -> bool:
        """Return whether bytes are ASCII text, which needs no decoding."""
        return data.isascii()

    def _cut_last(self, cut: Cut, piece: Piece) -> str | None:
        r"""Return one record without a delimiter. A ``\\r`` at its end is kept, because no newline follows it."""
        data = piece.data
        if len(data) > self._max:
            reason = DeadLetterReason.RECORD_TOO_LARGE
        else:
            try:
                return data.decode(self._encoding)
            except UnicodeDecodeError:
                reason = DeadLetterReason.INVALID_ENCODING
        cut.dead_letters.append(aside(reason, data, peer=piece.counted_as, most=self._letter_bytes))
        return None

    def _bad_lines(self, data: bytes, ends: Positions) -> dict[int, DeadLetterReason]:
        """Return why records can't be stored, by their index; good records are left out."""
        lengths = np.diff(ends, prepend=-self._size) - self._size
        bad = dict.fromkeys(np.flatnonzero(lengths > self._max).tolist(), DeadLetterReason.RECORD_TOO_LARGE)
        if self._is_ascii(data):
            return bad
        size = self._size
        if not self._delimiter.isascii():
            # Replace the delimiters with bytes that are valid between any two records.
            data, ends, size = data.replace(self._delimiter, b"\n"), ends - np.arange(ends.size) * (size - 1), 1
        view = memoryview(data)
        position, window = 0, len(data)
        while position < len(data):
            last = int(np.searchsorted(ends, position + window))
            stop = int(ends[last]) + size if last < ends.size else len(data)
            try:
                str(view[position:stop], self._encoding)
            except UnicodeDecodeError as error:
                # A delimiter is never part of a longer sequence, so the first bad byte is in the bad record.
                index = int(np.searchsorted(ends, position + error.start))
                bad.setdefault(index, DeadLetterReason.INVALID_ENCODING)
                position = int(ends[index]) + size
                # An error holds a copy of all bytes that were to be decoded: after a bad record, try few at once.
                window = _SHORT_BYTES
            else:
                position = stop
                window *= 2
        return bad

    def _array(self, lines: bytes, ends: Positions) -> pa.Array:
        """Return good records as an array of two buffers: the text without delimiters, and each record's end in it."""
        if self._encoding != "utf-8" and not self._one_byte and not lines.isascii():
            lines = lines.decode(self._encoding).encode("utf-8")
            ends = self.ends(lines)
        text = lines.replace(self._delimiter, b"")
        ends = ends - np.arange(ends.size) * self._size
        if self._encoding != "utf-8" and self._one_byte and not text.isascii():
            decoded = text.decode(self._encoding)
            text = decoded.encode("utf-8")
            ends = _utf8_places(decoded)[ends]
        count = ends.size
        offsets = np.empty(count + 1, dtype=np.int32)
        offsets[0] = 0
        offsets[1:] = ends
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))


@dataclass(slots=True)
class _LargeRecord:
    first: bytearray = field(default_factory=bytearray)
    nbytes: int = 0


class LineSplitter:
    """Split one connection's stream; see ``framing.Splitter``. ``LineFraming.open`` makes it."""

    def __init__(
        self,
        framing: LineFraming,
        delimiter: bytes,
        *,
        overlaps: bool,
        strips_cr: bool,
        max_record_bytes: int,
        letter_bytes: int,
        mark: bytes,
    ) -> None:
        self._framing = framing
        self._delimiter = delimiter
        # The most bytes of an incomplete delimiter that may be at the end of what has arrived.
        self._edge = len(delimiter) - 1
        self._overlaps = overlaps
        #: The longest ending of a record; it is not part of the record.
        self._ending = b"\r\n" if strips_cr else delimiter
        self._max = max_record_bytes
        self._letter_bytes = letter_bytes
        self._mark = mark
        #: Nothing of the stream has been returned, so that a mark may be at its beginning.
        self._is_new = True
        #: The record whose end has not arrived: all of it, or the bytes that are not counted in `_large` yet.
        self._held = bytearray()
        #: The beginning of a record that is too large and has no end yet, and how long it is so far; None outside one.
        self._large: _LargeRecord | None = None

    def take(self, buffer: bytearray, count: int) -> Taken:
        """Take bytes; see ``framing.Splitter``."""
        taken = Taken()
        view = memoryview(buffer)
        start = 0
        if self._large is not None:
            found = self._find(buffer, count)
            if found is None:
                self._held += view[:count]
                self._pass_over(self._large, self._edge)
                return taken
            if found < 0:
                del self._held[found:]
            else:
                self._held += view[:found]
            taken.before.append(self._end_large_record(self._large))
            start = found + self._edge + 1
        last = self._last_end(buffer, start, count)
        if last is not None:
            taken.piece = Piece(self._without_mark(b"".join((self._held, view[start:last]))))
            self._held.clear()
            start = last
        self._held += view[start:count]
        if self._large is None and self._is_too_large():
            self._large = _LargeRecord()
            self._is_new = False
            self._pass_over(self._large, self._edge)
        return taken

    def finish(self, *, clean: bool) -> Taken:
        """End the stream; see ``framing.Splitter``. The splitter may be used for another stream afterwards."""
        taken = Taken()
        if self._large is not None:
            taken.before.append(self._end_large_record(self._large))
        elif self._held and not clean:
            taken.before.append(aside(DeadLetterReason.TRUNCATED, self._held, most=self._letter_bytes))
        elif self._held and (last := self._without_mark(bytes(self._held))):
            taken.piece = Piece(last, is_last=True)
        self._held.clear()
        self._is_new = True
        return taken

    def _without_mark(self, data: bytes) -> bytes:
        """Return the first bytes of a stream without the byte-order mark, which belongs to no record; others as is."""
        was_new, self._is_new = self._is_new, False
        return data.removeprefix(self._mark) if was_new else data

    def _find(self, buffer: bytearray, count: int) -> int | None:
        """Return where the first delimiter begins; a negative number means that it began in the held bytes."""
        if self._edge and self._held:
            tail = bytes(self._held[-self._edge :])
            found = (tail + buffer[: min(count, self._edge)]).find(self._delimiter)
            if found >= 0:
                return found - len(tail)
        found = buffer.find(self._delimiter, 0, count)
        return found if found >= 0 else None

    def _last_end(self, buffer: bytearray, start: int, count: int) -> int | None:
        """Return the position after the last delimiter. At ``start`` a record begins or, if it is 0, continues."""
        size = self._edge + 1
        if self._overlaps:
            end = None
            if start == 0:
                first = self._find(buffer, count)
                if first is None:
                    return None
                end = start = first + size
            ends = self._framing.ends(memoryview(buffer)[start:count])
            return start + int(ends[-1]) + size if ends.size else end
        found = buffer.rfind(self._delimiter, start, count)
        if found >= 0:
            return found + size
        first = self._find(buffer, count) if self._edge and start == 0 else None
        return None if first is None else first + size

    def _is_too_large(self) -> bool:
        """Return whether the held record is too large, whatever comes next."""
        # The mark is no part of the record.
        mark = len(self._mark) if self._is_new and self._held.startswith(self._mark) else 0
        over = len(self._held) - mark - self._max
        if over <= 0:
            return False
        return not any(self._held.endswith(self._ending[:size]) for size in range(over, len(self._ending)))

    def _pass_over(self, large: _LargeRecord, keep: int) -> None:
        """Count the held bytes, except the last ``keep``: a delimiter may begin there."""
        count = max(0, len(self._held) - keep)
        room = self._letter_bytes - len(large.first)
        large.first += self._held[: min(count, room)]
        large.nbytes += count
        del self._held[:count]

    def _end_large_record(self, large: _LargeRecord) -> DeadLetter:
        """Return the dead letter of a record that is too large and has ended, with the held bytes."""
        self._pass_over(large, 0)
        self._large = None
        return too_large(large.first, large.nbytes, most=self._letter_bytes)


def _utf8_places(text: str) -> Positions:
    """Return where each character begins in UTF-8, and finally where the text ends."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    places = np.empty(points.size + 1, dtype=np.intp)
    places[0] = 0
    sizes = 1 + sum(points >= first for first in _LONGER_FROM)
    np.cumsum(sizes, out=places[1:])
    return places


def _without(data: bytes, ends: Positions, size: int, bad: list[int]) -> bytes:
    """Return ``data``, with delimiters of this size, without the bad records: one slice for each run of good ones."""
    runs = []
    start = 0
    for index in bad:
        runs.append(data[start : int(ends[index - 1]) + size if index else 0])
        start = int(ends[index]) + size
    runs.append(data[start:])
    return b"".join(runs)
