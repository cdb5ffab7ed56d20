"""Make records of the lines of containers' logs: pieces to lines, and lines to records, for each stream.

stdout and stderr share a file, so that the lines of two records may be mixed. The position in the driver log is one
place in the file, and no record may have lines on both sides of it: else a receiver that goes on there would join other
lines. So what is complete waits until what began before it is complete too, for as long as that one may wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.container_logs.lines import STREAMS, read_lines
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import aside
from receiver_runtime.record_formats.joined_lines import Closing, Joined, LineJoiner, RecordLimits, sizes_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from forebay_contrib.container_logs.lines import ContainerLines, Mask
    from receiver_runtime.record_formats.joined_lines import Indexes, Sizes
    from receiver_runtime.sources.fields.multiline import Multiline

_NAMES = pa.array(STREAMS)
_NANOSECONDS = pa.timestamp("ns", tz="UTC")
_MICROSECONDS = pa.timestamp("us", tz="UTC")
_SCHEMA = pa.schema(
    [("value", pa.string()), ("stream", pa.string()), ("time", _MICROSECONDS), ("time_unix_nano", pa.int64())]
)
_MOST_PIECES = 2**31  # only the bytes of a line are bounded
_CONTINUES = 0x80, 0xBF  # the bytes within a character of UTF-8, from the first to the last one
_NONE = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Hold whole lines of text, those of one stream after those of the other.

    Args:
        firsts: the place of each one's first piece.
        lasts: the place of its last piece.
        goes_on: the next piece of it has not come.
        apart: nothing before it belongs to it.
        nbytes: how long it is.
        faults: why it is no record (``DeadLetterReason``); 0: it may be one.
        values: its text; empty where it has a fault.
    """

    firsts: Indexes
    lasts: Indexes
    goes_on: Mask
    apart: Mask
    nbytes: Sizes
    faults: npt.NDArray[np.int8]
    values: pa.StringArray


@dataclass(frozen=True, slots=True)
class _Groups:
    """Hold which texts make a record: from each of ``begins`` to the next one. The rest as in ``_Texts``."""

    begins: Indexes
    firsts: Indexes
    lasts: Indexes
    closed: Mask


class ContainerJoiner:
    """Join the lines of containers' logs; see ``record_formats.joined_lines.Joiner``. Safe from any thread.

    Args:
        max_bytes: the most bytes of a record's text. One line that is longer is put aside.

    Raises ValueError: the pattern is not RE2's.
    """

    schema = _SCHEMA
    is_mixed = True

    def __init__(self, multiline: Multiline | None, max_bytes: int) -> None:
        self._max = max_bytes
        self._pieces = RecordLimits(_MOST_PIECES, max_bytes, joint=0)
        self._joiner = None if multiline is None else LineJoiner(multiline, max_bytes)

    def take(self, lines: pa.Array, breaks: Indexes, *, most: int, closing: Closing) -> Joined:
        """See ``Joiner``."""
        lines = lines.cast(pa.binary())
        read = read_lines(lines)
        count = len(lines)
        # What is put aside ends the records of both streams: each line is in the section that it begins.
        sections = read.bad.astype(np.intp)
        sections[breaks] += 1
        sections = np.cumsum(sections)
        places = np.flatnonzero(~read.bad)
        # By stream; the sort keeps the order within one.
        places = places[np.argsort(read.streams[places], kind="stable")]
        texts = self._texts(read, places, sections)
        groups = self._groups(texts, read, sections)
        order = np.argsort(groups.firsts, kind="stable")
        firsts, closed = groups.firsts[order], groups.closed[order]
        if closing is not Closing.NONE and not closed.all():
            closed[slice(None) if closing is Closing.ALL else np.argmin(closed)] = True
        kept, is_limited = _complete(firsts, np.where(closed, groups.lasts[order], count), count, most)
        behind = int(firsts[kept]) if kept < firsts.size else count
        letters = {
            place: aside(DeadLetterReason.UNPARSABLE, lines[place].as_py())
            for place in np.flatnonzero(read.bad[:behind]).tolist()
        }
        begins = groups.begins[order[:kept]]
        has_fault = texts.faults[begins] != 0
        for text in begins[has_fault].tolist():
            first, last = int(texts.firsts[text]), int(texts.lasts[text])
            ours = ~read.bad[first : last + 1] & (read.streams[first : last + 1] == read.streams[first])
            raw = b"\n".join(lines.take(pa.array(np.flatnonzero(ours) + first)).to_pylist())
            letters[first] = aside(DeadLetterReason(int(texts.faults[text])), raw)
        rows = order[:kept][~has_fault]
        return Joined(
            self._columns(read, texts, groups, rows),
            groups.firsts[rows],
            behind,
            [letters[place] for place in sorted(letters)],
            firsts[kept:][~closed[kept:]],
            is_limited,
        )

    def _texts(self, read: ContainerLines, places: Indexes, sections: Indexes) -> _Texts:
        """Join pieces."""
        goes_on, pieces = read.goes_on[places], read.texts.take(pa.array(places))
        apart = _differs(read.streams[places]) | _differs(sections[places])
        begins = apart.copy()
        begins[1:] |= ~goes_on[:-1]
        offsets = np.frombuffer(pieces.buffers()[1] or bytes(4), dtype=np.int32)[pieces.offset :]
        firsts = _NONE
        if places.size:
            whole = _begin_with_characters(offsets[: places.size + 1], pieces.buffers()[2])
            firsts = self._pieces.firsts(np.flatnonzero(begins), sizes_of(pieces), preferred=whole)
        lasts = np.append(firsts[1:], places.size)[: firsts.size] - 1
        bounds = offsets[np.append(firsts, places.size)]
        raw = pa.BinaryArray.from_buffers(
            pa.binary(), firsts.size, [None, pa.py_buffer(bounds.copy()), pieces.buffers()[2] or pa.py_buffer(b"")]
        )
        nbytes = sizes_of(raw)
        faults = np.where(nbytes > self._max, DeadLetterReason.RECORD_TOO_LARGE, 0).astype(np.int8)
        faults[_undecodable(raw)] = DeadLetterReason.INVALID_ENCODING
        values = pc.if_else(pa.array(faults != 0), b"", raw) if faults.any() else raw
        return _Texts(
            places[firsts], places[lasts], goes_on[lasts], apart[firsts], nbytes, faults, values.cast(pa.string())
        )

    def _groups(self, texts: _Texts, read: ContainerLines, sections: Indexes) -> _Groups:
        """Join texts."""
        has_fault = texts.faults != 0
        begins = np.arange(texts.nbytes.size)
        if self._joiner is not None and begins.size:
            is_first = self._joiner.begins(texts.values) | texts.apart | has_fault
            is_first[1:] |= has_fault[:-1]
            begins = self._joiner.limits.firsts(np.flatnonzero(is_first), texts.nbytes)
        ends = np.append(begins[1:], texts.nbytes.size)[: begins.size] - 1
        firsts, lasts = texts.firsts[begins], texts.lasts[ends]
        # Complete: something was put aside behind it; another one follows in its stream; or no line can follow in it.
        closed = sections[lasts] < sections[-1]
        streams = read.streams[firsts]
        followed = streams[1:] == streams[:-1]
        if self._joiner is not None:
            # Whether a text begins a record is known once it is whole.
            undecided = texts.goes_on[ends[1:]] & (begins[1:] == ends[1:]) & ~texts.apart[begins[1:]]
            undecided[:-1] &= ~followed[1:]
            followed &= ~undecided
        closed[:-1] |= followed
        closed |= ~texts.goes_on[ends] if self._joiner is None else has_fault[begins] & ~texts.goes_on[ends]
        return _Groups(begins, firsts, lasts, closed)

    def _columns(
        self, read: ContainerLines, texts: _Texts, groups: _Groups, rows: Indexes
    ) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
        values = LineJoiner.join(texts.values, groups.begins)
        firsts = groups.firsts[rows]
        times = pa.array(read.times[firsts])
        return (
            values.take(pa.array(rows)),
            _NAMES.take(pa.array(read.streams[firsts])),
            times.cast(_NANOSECONDS).cast(_MICROSECONDS, safe=False),
            times,
        )


def _complete(firsts: Indexes, lasts: Indexes, count: int, most: int) -> tuple[int, bool]:
    """Return how many records may be handed over, and whether it could be more.

    Behind them no record begins before one of them ends. ``lasts`` is ``count`` where a record is not complete.
    """
    whole = np.flatnonzero(np.maximum.accumulate(lasts) < np.append(firsts[1:], count)[: firsts.size]) + 1
    if not whole.size:
        return 0, False
    within = whole[whole <= most]
    kept = int(within[-1] if within.size else whole[0])
    return kept, kept < int(whole[-1])


def _differs(numbers: npt.NDArray[np.generic]) -> Mask:
    """Return for each number whether it is another than the one before it."""
    differs = np.ones(numbers.size, dtype=bool)
    differs[1:] = numbers[1:] != numbers[:-1]
    return differs


def _begin_with_characters(bounds: npt.NDArray[np.int32], data: pa.Buffer | None) -> Mask:
    """Return which texts begin with a character, not within one (in UTF-8) or with nothing."""
    begins = bounds[1:] > bounds[:-1]
    firsts = np.frombuffer(data or b"", dtype=np.uint8)[bounds[:-1][begins]]
    begins[begins] = (firsts < _CONTINUES[0]) | (firsts > _CONTINUES[1])
    return begins


def _undecodable(texts: pa.BinaryArray) -> Indexes:
    """Return which texts are not UTF-8."""
    try:
        texts.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([place for place, text in enumerate(texts.to_pylist()) if not _is_text(text)], dtype=np.intp)
    return _NONE


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
