r"""Cuts streams into syslog messages by RFC 6587, frame by frame, and datagrams by RFC 5426.

A frame that begins with a number, a space and ``<`` has the length that the number gives (*octet counting*); any other
frame ends at its newline; or, if it is a message or one follows, at a NUL, as Python's `SysLogHandler` and rsyslog's
`AddtlFrameDelimiter` end it. Each may end otherwise than the one before. Every well-formed message begins with ``<``.
Where something else follows the number and the space, the number is a length only if the frame before had one.

Vector code finds runs of lines; lengths are walked one by one, one number per message. Memory per connection is bounded
by ``max_record_bytes``.
"""

from __future__ import annotations

import re
import time
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from forebay_contrib.syslog.declaration import Syslog
from forebay_contrib.syslog.parsing import Places, parse
from forebay_contrib.syslog.short_frames import walk_short_frames
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.connection_places import peer_of
from receiver_runtime.receivers.framing import LETTER_BYTES, Cut, Piece, Taken, aside, too_large

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter

_NUL, _NEWLINE, _RETURN, _LESS = b"\0\n\r<"
_ENDS = (_NUL, _NEWLINE)
# At the start of a frame: a number of at most nine digits, a space, and the byte that follows.
_COUNT = re.compile(rb"([1-9][0-9]{0,8})( (.?))?", re.DOTALL)
_LONGEST_COUNT = 11  # bytes that `_COUNT` matches at most
_COUNTED = re.compile(rb"([1-9][0-9]{0,8}) (?=<)").match
_NOWHERE = np.empty(0, dtype=np.int64)
# Messages are dense if this many in a row take fewer than this many bytes: then `short_frames` walks them faster.
_DENSE_FRAMES = 64
_DENSE_BYTES = 32 * _DENSE_FRAMES


def _now() -> int:
    return time.time_ns() // 1000


class SyslogFraming:
    """Turn messages into the columns of ``Syslog``. Safe from any thread.

    Args:
        timezone: the zone of times that give none.
        max_record_bytes: of a longer message, the first 64 KiB are put aside.
        now: gives microseconds since 1970.
    """

    schema = schema_of(Syslog.columns)

    def __init__(self, *, timezone: str, max_record_bytes: int, now: Callable[[], int] = _now) -> None:
        self._timezone = timezone
        self._max = max_record_bytes
        self._now = now

    def open(self) -> SyslogSplitter:
        """Return a new connection's splitter."""
        return SyslogSplitter(max_record_bytes=self._max)

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Return the messages of these pieces, in order."""
        starts, ends, counts = [], [], []
        base = 0
        for piece in pieces:
            assert piece.starts is not None
            assert piece.ends is not None
            starts.append(piece.starts.astype(np.int64) + base)
            ends.append(piece.ends.astype(np.int64) + base)
            counts.append(piece.ends.size)
            # Add 1 for the newline between two pieces, which `parse` requires.
            base += len(piece.data) + 1
        data = pieces[0].data if len(pieces) == 1 else b"\n".join(piece.data for piece in pieces)
        senders = pa.array([_host(piece.peer) for piece in pieces], pa.string())
        owners = pa.array(np.repeat(np.arange(len(pieces), dtype=np.int32), counts))
        return Cut(self._batch(data, np.concatenate(starts), np.concatenate(ends), senders.take(owners)))

    def cut_datagrams(self, datagrams: Sequence[bytes], senders: Sequence[str]) -> Cut:
        """Return the messages of these datagrams, one for each."""
        cut = Cut()
        if max(map(len, datagrams)) > self._max:
            kept = []
            for datagram, sender in zip(datagrams, senders, strict=True):
                if len(datagram) > self._max:
                    cut.dead_letters.append(too_large(datagram, peer=peer_of(sender)))
                else:
                    kept.append((datagram, sender))
            datagrams, senders = [datagram for datagram, _ in kept], [sender for _, sender in kept]
        if datagrams:
            lengths = np.fromiter(map(len, datagrams), dtype=np.int64, count=len(datagrams))
            ends = np.cumsum(lengths + 1) - 1
            found = pa.array(map(_unmapped, senders), pa.string())
            cut.records = self._batch(b"\n".join(datagrams), ends - lengths, ends, found)
        return cut

    def _batch(self, data: bytes, starts: Places, ends: Places, senders: pa.Array) -> pa.RecordBatch:
        columns = parse(data, starts, ends, received_at=self._now(), timezone=self._timezone)
        columns["sender"] = senders
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)


class _FramingKind(Enum):
    """Name the kind of a frame without a count, by its first bytes."""

    LINE = "ends at its newline or NUL"
    UNKNOWN = "too little has come"


class _Stops:
    """Find where lines end in some bytes.

    A newline ends each line. A NUL ends one that is a message, or that a message follows: in other text it is a
    character.
    """

    def __init__(self, octets: npt.NDArray[np.uint8]) -> None:
        self._octets = octets
        self._all = np.flatnonzero((octets == _NEWLINE) | (octets == _NUL))
        self._behind = octets[np.minimum(self._all + 1, octets.size - 1)]
        self._behind = np.where(self._all + 1 < octets.size, self._behind, 0)
        heads = octets[np.concatenate((np.zeros(1, dtype=np.int64), self._all[:-1] + 1))[: self._all.size]]
        self._ends = (octets[self._all] == _NEWLINE) | (heads == _LESS) | (self._behind == _LESS)
        self._ending = np.flatnonzero(self._ends)
        # Those that a count may follow, as places in `_ending`.
        behind = self._behind[self._ending]
        self._turns = np.flatnonzero((behind > ord("0")) & (behind <= ord("9")))

    def from_place(self, place: int) -> Places:
        """Return the ends of the lines from ``place`` on, up to one that a count may follow."""
        first = int(np.searchsorted(self._all, place))
        if first == self._all.size:
            return _NOWHERE
        ends = (
            self._octets[place] == _LESS or self._behind[first] == _LESS or self._octets[self._all[first]] == _NEWLINE
        )
        if ends and not self._ends[first]:
            # A counted message stood before it.
            return self._all[first : first + 1]
        at = int(np.searchsorted(self._ending, first + (not ends)))
        turn = int(np.searchsorted(self._turns, at))
        stop = int(self._turns[turn]) + 1 if turn < self._turns.size else self._ending.size
        return self._all[self._ending[at:stop]]


class SyslogSplitter:
    """Split one connection's stream. See ``framing.Splitter``; made by ``SyslogFraming.open``."""

    def __init__(self, *, max_record_bytes: int) -> None:
        self._max = max_record_bytes
        #: The bytes so far of the frame whose end has not come. It never grows larger than a message may be.
        self._held = bytearray()
        #: That frame's length in bytes, including its count; None for a line, 0 where it is not known yet.
        self._frame: int | None = 0
        #: How many more bytes of a message that is too large to skip; -1: all up to the next newline or NUL.
        self._passing = 0
        #: The beginning of a line that is too large, and how long it is so far.
        self._large = b""
        self._large_bytes = 0
        self._last = 0
        #: Whether the last frame had a count.
        self._counted = False
        #: The byte that ended the last frame; -1 where it had a count, or there was none.
        self._ended_by = -1

    def take(self, buffer: bytearray, count: int) -> Taken:
        """See ``framing.Splitter``."""
        taken = Taken()
        start = self._pass_over(buffer, count, taken)
        if start == count:
            return taken
        view = memoryview(buffer)[start:count]
        if self._goes_on(buffer, start, count):
            self._held += view
            if self._frame is None:
                self._begin_large_line()
            return taken
        data = b"".join((self._held, view))
        starts, ends, rest = self._walk(data)
        self._held = bytearray(memoryview(data)[rest:])
        starts, ends = self._without_large(data, starts, ends, taken)
        if starts.size:
            taken.piece = Piece(data[:rest], ends.astype(np.int32), starts=starts.astype(np.int32))
        self._look_at_held(taken)
        return taken

    def finish(self, *, clean: bool) -> Taken:
        """See ``framing.Splitter``: the last line needs no newline where its sender ended the stream."""
        taken = Taken()
        held = bytes(self._held)
        if held and clean and (self._frame is None or (self._frame == 0 and not self._counted)):
            line = held.removesuffix(b"\r")
            if len(line) > self._max:
                taken.before.append(too_large(line))
            else:
                taken.piece = Piece(line, np.array([len(line)], dtype=np.int32), starts=np.zeros(1, dtype=np.int32))
        elif held:
            taken.before.append(aside(DeadLetterReason.TRUNCATED, held))
        if self._passing < 0:
            taken.before.append(self._end_large_line())
        self._held.clear()
        self._frame, self._passing, self._counted, self._ended_by = 0, 0, False, -1
        return taken

    def _pass_over(self, buffer: bytearray, count: int, taken: Taken) -> int:
        """Skip the rest of a message that is too large; return where the next frame begins."""
        if self._passing < 0:
            found = _end_in(buffer, 0, count, first=self._large[0], last=self._last)
            if found is None:
                self._large_bytes += count
                self._last = buffer[count - 1]
                return count
            # -1: a NUL that came before, and was counted.
            self._large_bytes += found
            self._passing, self._ended_by = 0, _NUL if found < 0 else buffer[found]
            taken.before.append(self._end_large_line())
            return found + 1
        passed = min(self._passing, count)
        self._passing -= passed
        return passed

    def _goes_on(self, buffer: bytearray, start: int, count: int) -> bool:
        """Return whether all new bytes belong to the frame that is held, and do not end it."""
        if not self._held or self._frame == 0:
            return False
        if self._frame is None:
            return _end_in(buffer, start, count, first=self._held[0], last=self._held[-1]) is None
        return len(self._held) + count - start < self._frame

    def _look_at_held(self, taken: Taken) -> None:
        """Note the kind of the frame that is held. Of a message that is too large, put aside what has come."""
        kind = self._kind(self._held, 0) if self._held else _FramingKind.UNKNOWN
        if isinstance(kind, tuple):
            prefix, size = kind
            self._frame = prefix + size
            if size > self._max:
                self._passing = self._frame - len(self._held)
                taken.after.append(too_large(self._held[prefix:], size))
                self._held.clear()
                self._frame, self._counted, self._ended_by = 0, True, -1
        elif kind is _FramingKind.LINE:
            self._frame = None
            self._begin_large_line()
        else:
            self._frame = 0

    def _begin_large_line(self) -> None:
        """Pass over the held line from now on, if it is too large; it is put aside at its end."""
        # Allow one byte more: a \r may belong to the newline that is still to come.
        if len(self._held) > self._max + 1:
            self._large, self._large_bytes = bytes(self._held[:LETTER_BYTES]), len(self._held)
            self._last = self._held[-1]
            self._held.clear()
            self._frame, self._passing, self._counted = 0, -1, False

    def _end_large_line(self) -> DeadLetter:
        letter = too_large(self._large, self._large_bytes)
        self._large = b""
        return letter

    def _kind(self, data: bytes | bytearray, place: int) -> tuple[int, int] | _FramingKind:
        """Return a frame's count as (its own length with the space, its number), or the kind of a frame without one."""
        head = data[place : place + _LONGEST_COUNT]
        match = _COUNT.match(head)
        if match is None:
            return _FramingKind.LINE
        if match.end() == len(head) < _LONGEST_COUNT and not match[3]:
            return _FramingKind.UNKNOWN
        if match[2] is None or not (match[3] == b"<" or self._counted):
            return _FramingKind.LINE
        return match.end(1) + 1, int(match[1])

    def _walk(self, data: bytes) -> tuple[Places, Places, int]:
        """Return where whole messages begin and end, and where the incomplete rest begins."""
        octets = np.frombuffer(data, dtype=np.uint8)
        stops = _Stops(octets)
        starts, ends = [_NOWHERE], [_NOWHERE]
        place = 0
        while place < len(data):
            kind = self._kind(data, place)
            if isinstance(kind, tuple):
                if place + sum(kind) > len(data):
                    break
                begin, end, place = self._walk_counted(data, place)
            elif self._counted and data[place] in _ENDS:
                # Skip a newline after a counted message: some senders write both.
                place += 1
                continue
            else:
                run = _NOWHERE if kind is _FramingKind.UNKNOWN else stops.from_place(place)
                if not run.size:
                    break
                begin, end = self._lines(octets, place, run)
                place = int(run[-1]) + 1
                self._counted = False
            starts.append(begin)
            ends.append(end)
        return np.concatenate(starts), np.concatenate(ends), place

    def _lines(self, octets: npt.NDArray[np.uint8], place: int, stops: Places) -> tuple[Places, Places]:
        """Return the starts and ends of the lines that end at ``stops``, the first of which begins at ``place``."""
        begin = np.concatenate(([place], stops[:-1] + 1))
        enders = octets[stops].astype(np.int16)
        # Some senders write both a NUL and a newline: between them is no message.
        before = np.concatenate((np.array([self._ended_by], dtype=np.int16), enders[:-1]))
        is_line = (stops > begin) | (before < 0) | (before == enders)
        self._ended_by = int(enders[-1])
        begin, stops = begin[is_line], stops[is_line]
        return begin, stops - ((octets[stops - 1] == _RETURN) & (stops > begin))

    def _walk_counted(self, data: bytes, place: int) -> tuple[Places, Places, int]:
        """Walk whole counted frames from ``place`` on. Return their starts, their ends, and where the rest begins.

        Newlines between them are skipped: some senders write both.
        """
        self._counted, self._ended_by = True, -1
        runs: list[tuple[Places, Places]] = []
        starts: list[int] = []
        ends: list[int] = []
        size = len(data)
        dense_from = place
        while True:
            while place < size and data[place] in _ENDS:
                place += 1
            if len(starts) >= _DENSE_FRAMES:
                runs.append((np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)))
                starts, ends = [], []
                if place - dense_from < _DENSE_BYTES:
                    begin, end, place = walk_short_frames(data, place)
                    runs.append((begin, end))
                dense_from = place
            match = _COUNTED(data, place)
            if match is not None:
                start = match.end()
                end_of_it = start + int(match[1])
            elif isinstance(kind := self._kind(data, place), tuple):
                start = place + kind[0]
                end_of_it = start + kind[1]
            else:
                break
            if end_of_it > size:
                break
            starts.append(start)
            ends.append(end_of_it)
            place = end_of_it
        runs.append((np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)))
        return np.concatenate([run[0] for run in runs]), np.concatenate([run[1] for run in runs]), place

    def _without_large(self, data: bytes, starts: Places, ends: Places, taken: Taken) -> tuple[Places, Places]:
        is_large = ends - starts > self._max
        if not is_large.any():
            return starts, ends
        for row in np.flatnonzero(is_large).tolist():
            taken.before.append(too_large(data[int(starts[row]) : int(ends[row])]))
        return starts[~is_large], ends[~is_large]


def _end_in(buffer: bytearray, start: int, stop: int, *, first: int, last: int) -> int | None:
    """Return where a line ends that began before; None: not in these bytes.

    ``first`` is its first byte, and ``last`` the one before ``start``: if that is a NUL which ends it, ``start - 1``.
    """
    if first != _LESS and last == _NUL and buffer[start] == _LESS:
        return start - 1
    newline = buffer.find(b"\n", start, stop)
    nul = buffer.find(b"\0" if first == _LESS else b"\0<", start, stop if newline < 0 else newline)
    found = newline if nul < 0 else nul
    return None if found < 0 else found


def _host(peer: str) -> str:
    """Return the host of ``host:port``, as ``address_of`` writes it."""
    return _unmapped(peer.rpartition(":")[0].strip("[]"))


def _unmapped(host: str) -> str:
    """Return an IPv4 sender's own address, also where a socket for both IP versions received it."""
    return host.removeprefix("::ffff:")
