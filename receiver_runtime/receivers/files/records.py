"""Makes records with their offsets of the bytes of files, a piece at a time; and keeps a file's reading position.

Knows no directory, no driver log and no thread. A file's position moves here, and only past whole lines: a line without
an end is read again when there is more of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_path.records import schema_of
from receiver_runtime.receivers.files.declaration import FileLines, WholeFiles
from receiver_runtime.receivers.files.holes import (
    BYTES,
    Hole,
    Text,
    first_long_run,
    length_without_run,
    without_holes,
)
from receiver_runtime.receivers.files.plain_text import SURE_BYTES, TEXT_BYTES, check_text
from receiver_runtime.receivers.framing import LETTER_BYTES, Piece, too_large
from receiver_runtime.receivers.lines import LineFraming
from receiver_runtime.receivers.wide_lines import WideLineFraming
from receiver_runtime.record_formats.joined_lines import Closing, LineJoiner
from receiver_runtime.sources.fields.text_encoding import MARK_BYTES, by_mark, is_one_byte, unit_of
from receiver_runtime.sources.source import SourceError
from tracker_store.blocks.blocks import ORIGIN, OffsetLink
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.files.content import Content
    from receiver_runtime.receivers.files.declaration import FollowedFiles
    from receiver_runtime.receivers.lines import Positions
    from receiver_runtime.record_formats.joined_lines import Joiner
    from receiver_runtime.sources.fields.multiline import Multiline
    from tracker_store.blocks.blocks import Position

LINES = schema_of(FileLines.columns)
WHOLE = schema_of(WholeFiles.columns)
_TIME = LINES.field("modified_at").type
_VALUE = pa.schema([LINES.field("value")])
# The columns of each line besides those that are made of its text.
_PLACE = [LINES.field("path"), LINES.field("offset"), LINES.field("modified_at")]
# Bytes of a record besides its text and its path: two 4-byte offsets, its place in the file, a time.
_ROW_BYTES = 24
_CHUNK_BYTES = 2**20  # how much of a line that is too large, or of a run of NULs, is read at a time
_LARGEST_UNIT = 4  # bytes: UTF-32's
_NULS = bytes(_CHUNK_BYTES)
_NONE = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class _LargeLine:
    """Hold a line that is too long and has no end yet: its beginning, and where its next bytes are."""

    next: int
    first: bytes = b""


@dataclass(slots=True, eq=False)
class Reading:
    """Track how far a file is read. ``logged`` is where its last link ended, ``position`` the next byte to read.

    ``name`` is its partition's name. ``start`` is where its generation begins. ``before`` are links that go in with the
    next block, before the link of that block's own records. ``large`` is the line that is being put aside, if any.
    ``encoding`` is that of its text; None: its first bytes have not been looked at. ``judged`` is how many of them were
    found to be text.
    """

    name: str
    generation: int = 0
    logged: int = ORIGIN
    position: int = 0
    start: int = 0
    before: list[OffsetLink] = field(default_factory=list)
    large: _LargeLine | None = None
    encoding: str | None = None
    judged: int = 0

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
        self.encoding = None
        self.judged = 0

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
        self.encoding = None
        self.judged = 0
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
    """Bound one piece of a file, in bytes and in lines."""

    nbytes: int
    lines: int


@dataclass(slots=True)
class Part:
    """Hold a piece of a file: its records, the dead letters before them, and whether there is more to read at once.

    ``waits``: the file ends with a line that has no end yet, or with records that may have more lines; these begin at
    ``open_at``. ``hole``: what was passed over, as no text.
    """

    batch: pa.RecordBatch | None = None
    letters: Sequence[DeadLetter] = ()
    more: bool = False
    waits: bool = False
    open_at: Sequence[int] = ()
    hole: Hole | None = None


class LineReader:
    """Cut files into lines. For one thread.

    Args:
        checks_text: a file that is no text is refused as a whole.
        multiline: which lines belong together; None: each is a record.
        joiner: makes records of lines in another way.
        framing: cuts lines in another way, whatever mark a file has.
    """

    def __init__(
        self,
        *,
        encoding: str,
        max_record_bytes: int,
        checks_text: bool = False,
        multiline: Multiline | None = None,
        joiner: Joiner | None = None,
        framing: LineFraming | None = None,
    ) -> None:
        self._declared = encoding
        self._checks_text = checks_text
        self._max = max_record_bytes
        self._joiner = joiner if multiline is None else LineJoiner(multiline, max_record_bytes)
        self._own_framing = framing
        # By encoding: files may have marks that name others than the declared one.
        self._framings: dict[str, LineFraming] = {}

    @classmethod
    def of(cls, source: FileLines | FollowedFiles) -> LineReader:
        """Return what reads a source's lines. Raises SourceError: its pattern is not RE2's."""
        try:
            return cls(
                encoding=source.encoding,
                max_record_bytes=source.max_record_bytes,
                checks_text=not source.binary_lines,
                multiline=source.multiline,
            )
        except ValueError as error:
            raise SourceError(str(error)) from error

    def read(
        self,
        reading: Reading,
        content: Content,
        limits: Limits,
        *,
        path: str,
        modified_ms: int,
        ends: bool,
        completes: bool = False,
        closes: bool = False,
    ) -> Part:
        """Read the next piece of a file and move its position. Raises OSError, and UnreadableKindError.

        Args:
            ends: the file does not grow, so that its last line needs no newline, and NULs at its end are a hole.
            completes: its last line needs no newline, and may go on where NULs are now.
            closes: its last record waits for no more lines.
        """
        if self._checks_text and reading.judged < SURE_BYTES and reading.position - reading.start < SURE_BYTES:
            self._judge(reading, content, ends=ends)
        if (
            self._own_framing is None
            and reading.encoding is None
            and (hole := self._find_mark(reading, content, ends=ends)) is not None
        ):
            return Part(more=True, hole=hole)
        framing = self._framing(reading.encoding or self._declared)
        return _Cutter(framing, self._max, path, modified_ms, self._joiner).read(
            reading, content, limits, ends=ends, completes=ends or completes, closes=ends or closes
        )

    def _find_mark(self, reading: Reading, content: Content, *, ends: bool) -> Hole | None:
        """Note the encoding that a mark names, and pass over it; return the hole that was before it."""
        begin, is_last = _begin_of_text(content)
        if is_last and not ends:
            return None
        reading.encoding, mark = by_mark(content.read(begin, MARK_BYTES), self._declared)
        if not mark or reading.position >= begin + mark:
            return None
        passed = begin - reading.position
        reading.position = begin + mark
        return Hole(passed) if passed > 0 else None

    def _judge(self, reading: Reading, content: Content, *, ends: bool) -> None:
        begin, _ = _begin_of_text(content)
        head = content.read(begin - begin % _LARGEST_UNIT, TEXT_BYTES)
        if len(head) > reading.judged:
            check_text(head, self._declared)
            # One that grows is looked at again, until enough of it is known.
            reading.judged = TEXT_BYTES if ends else len(head)

    def _framing(self, encoding: str) -> LineFraming:
        if self._own_framing is not None:
            return self._own_framing
        framing = self._framings.get(encoding)
        if framing is None:
            framing = self._framings[encoding] = (
                WideLineFraming(encoding=encoding, max_record_bytes=self._max)
                if unit_of(encoding) > 1
                else LineFraming(encoding=encoding, one_byte=is_one_byte(encoding), max_record_bytes=self._max)
            )
        return framing


class _Cutter:
    """Cut one file, in the encoding of a framing."""

    def __init__(
        self,
        framing: LineFraming,
        max_record_bytes: int,
        path: str,
        modified_ms: int,
        joiner: Joiner | None,
    ) -> None:
        self._framing = framing
        self._joiner = joiner
        self._schema = pa.schema([*(_VALUE if joiner is None else joiner.schema), *_PLACE])
        self._path = path
        self._modified_ms = modified_ms
        self._newline = framing.delimiter
        self._units = framing.units if isinstance(framing, WideLineFraming) else BYTES
        # Including the newline, and a \r before it.
        self._longest = _whole_units(max_record_bytes + 2 * len(self._newline), self._newline)

    def read(
        self, reading: Reading, content: Content, limits: Limits, *, ends: bool, completes: bool, closes: bool
    ) -> Part:
        if reading.large is not None:
            return self._read_large(reading, reading.large, content, ends=ends)
        if self._joiner is not None:
            part = self._joined(reading, content, limits, ends=ends, completes=completes, closes=closes)
            if part is not None:
                return part
        most = _whole_units(max(1, limits.nbytes), self._newline)
        if self._joiner is not None:
            # No more than the joiner saw: else there may be a newline behind that, for ever.
            most = min(most, 2 * self._longest)
        text, at_end = self._text(reading, content, most, ends=ends)
        whole = self._framing.last_end(text.data)
        if not whole and not at_end and most < self._longest:
            text, at_end = self._text(reading, content, self._longest, ends=ends)
            whole = self._framing.last_end(text.data)
        if whole and self._joiner is not None:
            # It was written since the joiner looked, which is asked again.
            return Part(more=True)
        if whole:
            more = not at_end or text.is_cut or (ends and whole < len(text.data))
            return self._lines(reading, text, whole, limits, more=more)
        return self._read_unfinished(reading, content, text, at_end=at_end, ends=ends, completes=completes)

    def _read_unfinished(
        self, reading: Reading, content: Content, text: Text, *, at_end: bool, ends: bool, completes: bool
    ) -> Part:
        """Read on where the next bytes have no newline."""
        if text.data and (skipped := text.place(0)):
            reading.position += skipped
            return Part(more=True, hole=Hole(skipped))
        if text.is_cut:
            return self._read_hole(reading, content, text, ends=ends, completes=completes)
        if len(text.data) >= self._longest:
            reading.large = _LargeLine(reading.position)
            return self._read_large(reading, reading.large, content, ends=ends)
        if text.data and not (completes and at_end):
            return Part(waits=True)
        return self._last(reading, text, more=bool(text.stop) and not text.data)

    def _text(self, reading: Reading, content: Content, most: int, *, ends: bool) -> tuple[Text, bool]:
        """Return the next bytes without holes, and whether they are the file's last ones."""
        data = content.read(reading.position, most)
        at_end = len(data) < most
        return without_holes(data, is_whole=at_end and ends, units=self._units), at_end

    def _last(self, reading: Reading, text: Text, *, more: bool) -> Part:
        """Return a line without a newline, if there is one, as a record, and move the position past it."""
        end = len(text.data)
        cut = self._framing.cut([Piece(text.data, is_last=True)] if end else [])
        place = reading.position + text.place(0)
        reading.position += text.place(end)
        batch, letters = None, cut.dead_letters
        if cut.records is not None and self._joiner is None:
            batch = self._batch([cut.records], np.array([place]))
        elif cut.records is not None and self._joiner is not None:
            joined = self._joiner.take(cut.records, _NONE, most=1, closing=Closing.ALL)
            letters = [*letters, *joined.letters]
            batch = self._batch(joined.columns, np.array([place])) if joined.firsts.size else None
        return Part(batch, letters, more=more, hole=text.hole(end))

    def _lines(self, reading: Reading, text: Text, whole: int, limits: Limits, *, more: bool) -> Part:
        data = text.data if whole == len(text.data) else text.data[:whole]
        most = max(1, min(limits.lines, limits.nbytes * 4 // (_ROW_BYTES + len(self._path))))
        if len(data) > most:
            ends = self._framing.ends(data)
            if ends.size > most:
                data = data[: int(ends[most - 1]) + len(self._newline)]
                more = True
        cut, starts = self._framing.cut_placed(data)
        if text.places is not None:
            starts = text.places[starts]
        batch = None if cut.records is None else self._batch([cut.records], starts + reading.position)
        reading.position += text.place(len(data))
        return Part(batch, cut.dead_letters, more=more, hole=text.hole(len(data)))

    def _joined(
        self, reading: Reading, content: Content, limits: Limits, *, ends: bool, completes: bool, closes: bool
    ) -> Part | None:
        """Return the next records of joined lines; None: there is no whole line, so that it is as without joins.

        The position stays at the beginning of a record that may have more lines: they are read again with those.
        """
        # A record, and a line behind it that is as long as it may be.
        largest = 2 * self._longest
        most = _whole_units(max(1, limits.nbytes), self._newline)
        if self._joiner is not None and self._joiner.is_mixed:
            # What waits is read again whenever the file has grown: so it is not more than it needs to be.
            most = min(most, largest)
        while True:
            text, at_end = self._text(reading, content, most, ends=ends)
            data = text.data
            whole = self._framing.last_end(data)
            if at_end and completes and not text.is_cut and len(data) > whole > 0 and self._is_whole(data):
                # A \r at its end is kept, as no newline follows it in the file.
                cr = self._newline.replace(b"\n", b"\r")
                data += cr * data.endswith(cr) + self._newline
                whole = len(data)
            # Behind NULs that may be a hole there may be more, or nothing for ever.
            is_end = at_end or text.is_cut
            if whole:
                is_more = not is_end or (ends and (text.is_cut or whole < len(data)))
                closing = [Closing.ALL if is_end and ends else Closing.NONE]
                # A record whose time is over; or what follows is too large for a line, so that it ends the record.
                if closes if is_end else most >= largest:
                    closing += [Closing.FIRST, Closing.ALL]
                at = reading.position
                for which in closing:
                    more = is_more or (text.is_cut and which is not closing[0])
                    part = self._joined_lines(reading, text, data[:whole], limits, closing=which, more=more)
                    if reading.position > at:
                        return part
                if is_end:
                    return part
            elif is_end or most >= largest:
                return None
            most = max(most, largest)

    def _is_whole(self, data: bytes) -> bool:
        """Return whether bytes are whole units of the encoding."""
        return len(data) % len(self._newline) == 0

    def _joined_lines(
        self, reading: Reading, text: Text, data: bytes, limits: Limits, *, closing: Closing, more: bool
    ) -> Part:
        """Return the records of whole lines, and move the position past them: not at all, where all may go on."""
        assert self._joiner is not None
        cut, starts = self._framing.cut_placed(data)
        lines, end, opens = cut.records, len(data), _NONE
        batch, letters = None, cut.dead_letters
        places = starts if text.places is None else text.places[starts]
        if lines is not None:
            most = max(1, min(limits.lines, limits.nbytes * 4 // (_ROW_BYTES + len(self._path))))
            breaks = self._behind_letters(data, starts) if letters else _NONE
            joined = self._joiner.take(lines, breaks, most=most, closing=closing)
            more |= joined.is_limited
            opens = places[joined.opens] + reading.position
            if joined.behind < len(lines):
                end = int(starts[joined.behind])
                if letters and end:
                    # Those behind the end are found again.
                    letters = self._framing.cut_placed(data[:end])[0].dead_letters
            if joined.firsts.size:
                batch = self._batch(joined.columns, places[joined.firsts] + reading.position)
            letters = [*letters, *joined.letters] if end else []
        end = min(end, len(text.data))
        reading.position += text.place(end) if end else 0
        waits = opens.size > 0 and not more
        open_at = opens.tolist() if waits else ()
        return Part(batch, letters, more=more, waits=waits, open_at=open_at, hole=text.hole(end) if end else None)

    def _behind_letters(self, data: bytes, starts: Positions) -> Positions:
        """Return which good lines follow one that was put aside: that ends a record, however much is read at once."""
        numbers = np.searchsorted(self._framing.ends(data), starts)
        return np.flatnonzero(np.diff(numbers, prepend=-1) > 1)

    def _read_hole(self, reading: Reading, content: Content, text: Text, *, ends: bool, completes: bool) -> Part:
        """Pass over a run of NULs if something is behind it, or nothing will be; the text before it is a line."""
        at = reading.position + text.stop
        end, is_last = _end_of_run(content, at, len(self._newline))
        behind = content.read(end, len(self._newline))
        if (is_last or len(behind) < len(self._newline)) and not ends:
            # A file may be made with NULs, and be written into later, also since the run's end was looked for: that is
            # no unit's end then. Half a unit may be a newline's.
            return self._last(reading, text, more=False) if completes and text.data else Part(waits=True)
        part = self._last(reading, text, more=not is_last)
        # A newline right behind the run is that of the line before it.
        reading.position = end + len(self._newline) * (behind == self._newline and bool(text.data))
        part.hole = Hole(end - at)
        return part

    def _read_large(self, reading: Reading, large: _LargeLine, content: Content, *, ends: bool) -> Part:
        data = content.read(large.next, _CHUNK_BYTES)
        end = self._framing.first_end(data)
        if (hole := first_long_run(data, len(data) if end < 0 else end, self._units)) >= 0:
            return self._end_large(reading, large, content, data[:hole], ends=ends)
        if end < 0 and len(data) < _CHUNK_BYTES and not ends:
            return Part(waits=True)
        if end < 0 and len(data) == _CHUNK_BYTES:
            # A run may begin at the end of these bytes.
            kept = length_without_run(data, self._units)
            reading.large = _LargeLine(large.next + kept, large.first + data[: LETTER_BYTES - len(large.first)])
            return Part(more=True)
        piece = data if end < 0 else data[:end]
        letter = too_large(large.first + piece, large.next + len(piece) - reading.position)
        reading.position = large.next + len(piece) + (len(self._newline) if end >= 0 else 0)
        reading.large = None
        return Part(None, [letter], more=True)

    def _end_large(self, reading: Reading, large: _LargeLine, content: Content, piece: bytes, *, ends: bool) -> Part:
        """End a line at the run of NULs behind this piece of it, which may be short enough for a record after all."""
        at = large.next + len(piece)
        end, is_last = _end_of_run(content, at, len(self._newline))
        behind = content.read(end, len(self._newline))
        if (is_last or len(behind) < len(self._newline)) and not ends:
            return Part(waits=True)
        length = at - reading.position
        if length <= self._longest:
            line = content.read(reading.position, length)
            part = self._last(reading, Text(line, None, length, is_cut=False), more=True)
        else:
            part = Part(None, [too_large(large.first + piece, length)], more=True)
        reading.large = None
        reading.position = end + len(self._newline) * (behind == self._newline)
        part.hole = Hole(end - at)
        return part

    def _batch(self, columns: Sequence[pa.Array], places: Positions) -> pa.RecordBatch:
        rows = len(columns[0])
        shown = _shown(self._path).encode()
        # From buffers: without a Python object for each row.
        ends = np.arange(rows + 1, dtype=np.int32) * len(shown)
        times = np.full(rows, self._modified_ms, dtype=np.int64)
        return pa.RecordBatch.from_arrays(
            [
                *columns,
                pa.StringArray.from_buffers(rows, pa.py_buffer(ends), pa.py_buffer(shown * rows)),
                pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(places.astype(np.int64))]),
                pa.Array.from_buffers(_TIME, rows, [None, pa.py_buffer(times)]),
            ],
            schema=self._schema,
        )


def _begin_of_text(content: Content) -> tuple[int, bool]:
    """Return where a file's text begins, with its mark, behind a hole; and whether only a hole is there yet."""
    head = content.read(0, MARK_BYTES)
    is_hole = len(head) == MARK_BYTES and not head.strip(b"\0")
    return _end_of_run(content, 0, 1) if is_hole else (0, False)


def _end_of_run(content: Content, at: int, unit: int) -> tuple[int, bool]:
    """Return where a run of NULs ends, at a unit of text, and whether the file ends there."""
    begin = at
    while True:
        at = content.next_data(at)
        data = content.read(at, _CHUNK_BYTES)
        behind = b"" if data == _NULS else data.lstrip(b"\0")
        at += len(data) - len(behind)
        if behind or len(data) < _CHUNK_BYTES:
            return at - ((at - begin) % unit if behind else 0), not behind


def _whole_units(nbytes: int, newline: bytes) -> int:
    return max(1, nbytes // len(newline)) * len(newline)


def read_whole(
    reading: Reading, content: Content, *, path: str, modified_ms: int, size: int, max_record_bytes: int
) -> Part:
    """Read a file as one record, and move its position to its end. Raises OSError."""
    if size > max_record_bytes:
        data = content.read(0, LETTER_BYTES)
        reading.position = size
        return Part(None, [too_large(data, size)])
    data = content.read(0, size)
    if len(data) < size:
        raise OSError(f"it has {len(data)} bytes and had {size}")
    reading.position = size
    batch = pa.RecordBatch.from_arrays(
        [pa.array([data], pa.binary()), pa.array([_shown(path)]), pa.array([modified_ms], _TIME)], schema=WHOLE
    )
    return Part(batch)


def _shown(path: str) -> str:
    """Return a path as text for a column: a path may have any bytes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
