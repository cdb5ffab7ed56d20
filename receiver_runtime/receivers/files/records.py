"""Makes records with their offsets of the bytes of files, a piece at a time; and keeps a file's reading position.

Knows no directory, no driver log and no thread. A file's position moves here, and only past whole lines: a line without
an end is read again when there is more of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.framing import PART_BYTES, Piece
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.records import schema_of
from receiver_runtime.sources.files import FileLines, WholeFiles
from tracker_store.blocks import ORIGIN, OffsetLink
from tracker_store.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.files.content import Content
    from tracker_store.blocks import Position

LINES = schema_of(FileLines.columns)
WHOLE = schema_of(WholeFiles.columns)
_TIME = LINES.field("modified_at").type
# Bytes of a record besides its text and its path: two 4-byte offsets, its place in the file, a time.
_ROW_BYTES = 24


@dataclass(slots=True)
class _LargeLine:
    """A line that is too long and is put aside as it comes: where its next part begins, and that part's number."""

    next: int
    part: int = 0


@dataclass(slots=True, eq=False)
class Reading:
    """How far a file is read. ``logged`` is where its last link ended, ``position`` the next byte to read.

    ``name`` is its partition's name. ``start`` is where its generation begins. ``before`` are links that go in with the
    next block, before the link of that block's own records. ``large`` is the line that is being put aside, if any.
    """

    name: str
    generation: int = 0
    logged: int = ORIGIN
    position: int = 0
    start: int = 0
    before: list[OffsetLink] = field(default_factory=list)
    large: _LargeLine | None = None

    def go_to(self, at: Position | None) -> None:
        """Go to the driver log's position; None: it has none of this file."""
        self.generation, self.logged, self.position = (
            (0, ORIGIN, self.start)
            if at is None
            else (
                at.generation,
                at.offset,
                at.offset,
            )
        )
        self.before = []
        self.large = None

    def take_links(self, source: str) -> list[OffsetLink]:
        """Return the links that lead from exactly where the last ones ended to the position."""
        links, self.before = self.before, []
        if self.logged == ORIGIN and (links or self.position > self.start):
            links.append(OffsetLink(source, self.name, self.generation, ORIGIN, self.start, LinkKind.ORIGIN))
            self.logged = self.start
        if self.logged != ORIGIN and self.position > self.logged:
            links.append(OffsetLink(source, self.name, self.generation, self.logged, self.position))
            self.logged = self.position
        return links

    def lose(self, source: str, end: int) -> None:
        """Add a link that says that the bytes before ``end`` that were not read are lost."""
        self.large = None
        if end <= self.position:
            return
        if self.logged == ORIGIN and self.position == self.start:
            self.before.append(OffsetLink(source, self.name, self.generation, ORIGIN, self.start, LinkKind.ORIGIN))
            self.logged = self.start
        self.before = self.take_links(source)
        self.before.append(OffsetLink(source, self.name, self.generation, self.position, end, LinkKind.LOST))
        self.logged = self.position = end

    def begin_again(self, source: str, *, at: int = 0) -> None:
        """Begin the next generation at byte ``at``. The link for that goes in with the next block of any file."""
        self.before = self.take_links(source)
        if self.logged == ORIGIN:
            # The log has nothing of this generation yet: let it begin at ``at`` instead.
            self.position = self.start = at
            return
        self.generation += 1
        self.before.append(OffsetLink(source, self.name, self.generation, ORIGIN, at, LinkKind.ORIGIN))
        self.logged = self.position = self.start = at
        self.large = None

    def end(self, source: str) -> None:
        """Note that the file is read to its end, by a link to the next generation that goes in with the next block."""
        before = self.take_links(source)
        if self.logged == ORIGIN:
            before.append(OffsetLink(source, self.name, self.generation, ORIGIN, self.start, LinkKind.ORIGIN))
        self.generation += 1
        self.before = [*before, OffsetLink(source, self.name, self.generation, ORIGIN, self.position, LinkKind.ORIGIN)]
        self.logged = self.start = self.position


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one piece."""

    nbytes: int
    lines: int


@dataclass(slots=True)
class Part:
    """A piece of a file: its records, the dead letters before them, and whether there is more to read at once.

    ``waits``: the file ends with a line that has no end yet.
    """

    batch: pa.RecordBatch | None = None
    letters: Sequence[DeadLetter] = ()
    more: bool = False
    waits: bool = False


class LineReader:
    """Cut files into lines. For one thread."""

    def __init__(self, *, encoding: str, max_record_bytes: int) -> None:
        self._framing = LineFraming(
            encoding="iso8859-1" if encoding == "latin-1" else encoding,
            one_byte=encoding != "utf-8",
            max_record_bytes=max_record_bytes,
        )
        # Including the newline, and a \r before it.
        self._longest = max_record_bytes + 2

    def read(
        self, reading: Reading, content: Content, limits: Limits, *, path: str, modified_ms: int, ends: bool
    ) -> Part:
        """Read the next piece of a file and move its position. Raises OSError.

        ``ends``: the file does not grow, so that its last line needs no newline.
        """
        if reading.large is not None:
            return self._read_large(reading, content, ends=ends)
        most = max(1, limits.nbytes)
        data = content.read(reading.position, most)
        at_end = len(data) < most
        whole = data.rfind(b"\n") + 1
        if not whole and not at_end and most < self._longest:
            data = content.read(reading.position, self._longest)
            at_end = len(data) < self._longest
            whole = data.rfind(b"\n") + 1
        if whole:
            is_last = at_end and not (ends and whole < len(data))
            return self._lines(reading, data[:whole], limits, path, modified_ms, is_last=is_last)
        if len(data) >= self._longest:
            reading.large = _LargeLine(reading.position)
            return self._read_large(reading, content, ends=ends)
        if ends and at_end and data:
            return self.last(reading, data, path=path, modified_ms=modified_ms)
        return Part(waits=bool(data))

    def last(self, reading: Reading, data: bytes, *, path: str, modified_ms: int) -> Part:
        """Return a line without a newline as a record, and move the position past it."""
        cut = self._framing.cut([Piece(data, is_last=True)])
        place = reading.position
        reading.position += len(data)
        batch = None if cut.records is None else _batch(cut.records, np.array([place]), path, modified_ms)
        return Part(batch, cut.dead_letters)

    def _lines(
        self, reading: Reading, data: bytes, limits: Limits, path: str, modified_ms: int, *, is_last: bool
    ) -> Part:
        most = max(1, min(limits.lines, limits.nbytes * 4 // (_ROW_BYTES + len(path))))
        cut_short = False
        if len(data) > most:
            ends = self._framing.ends(data)
            if cut_short := bool(ends.size > most):
                data = data[: int(ends[most - 1]) + 1]
        cut, starts = self._framing.cut_placed(data)
        batch = None if cut.records is None else _batch(cut.records, starts + reading.position, path, modified_ms)
        reading.position += len(data)
        return Part(batch, cut.dead_letters, more=cut_short or not is_last)

    def _read_large(self, reading: Reading, content: Content, *, ends: bool) -> Part:
        large = reading.large
        assert large is not None
        data = content.read(large.next, PART_BYTES)
        end = data.find(b"\n")
        if end < 0 and len(data) < PART_BYTES and not ends:
            return Part(waits=True)
        piece = data if end < 0 else data[:end]
        letters = [DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, piece, large.part)] if piece else []
        if end < 0 and len(data) == PART_BYTES:
            large.next += len(data)
            large.part += 1
        else:
            reading.position = large.next + len(piece) + (end >= 0)
            reading.large = None
        return Part(None, letters, more=True)


def read_whole(
    reading: Reading, content: Content, *, path: str, modified_ms: int, size: int, max_record_bytes: int
) -> Part:
    """Read a file as one record, and move its position to its end. Raises OSError."""
    if size > max_record_bytes:
        # Put it aside, one part per call, like lines that are too long.
        at = reading.position if reading.large is None else reading.large.next
        part = 0 if reading.large is None else reading.large.part
        data = content.read(at, PART_BYTES)
        letters = [DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, data, part)] if data else []
        if len(data) == PART_BYTES and at + PART_BYTES < size:
            reading.large = _LargeLine(at + PART_BYTES, part + 1)
            return Part(None, letters, more=True)
        reading.large = None
        reading.position = size
        return Part(None, letters)
    data = content.read(0, size)
    if len(data) < size:
        raise OSError(f"it has {len(data)} bytes and had {size}")
    reading.position = size
    batch = pa.RecordBatch.from_arrays(
        [pa.array([data], pa.binary()), pa.array([_shown(path)]), pa.array([modified_ms], _TIME)], schema=WHOLE
    )
    return Part(batch)


def _batch(
    values: pa.Array, places: np.ndarray[tuple[int], np.dtype[np.intp]], path: str, modified_ms: int
) -> pa.RecordBatch:
    rows = len(values)
    shown = _shown(path).encode()
    # From buffers: without a Python object for each row.
    ends = np.arange(rows + 1, dtype=np.int32) * len(shown)
    times = np.full(rows, modified_ms, dtype=np.int64)
    return pa.RecordBatch.from_arrays(
        [
            values,
            pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(shown * rows)),
            pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(places.astype(np.int64))]),
            pa.Array.from_buffers(_TIME, rows, [None, pa.py_buffer(times)]),
        ],
        schema=LINES,
    )


def _shown(path: str) -> str:
    """Return a path as text for a column: a path may have any bytes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
