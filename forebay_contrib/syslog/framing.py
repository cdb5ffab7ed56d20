r"""Cuts streams into syslog messages by RFC 6587, frame by frame, and datagrams by RFC 5426.

A frame that begins with a number, a space and ``<`` has the length that the number gives (*octet counting*). Every
well-formed message begins with ``<``. Where something else follows the number and the space, the number is a length
only if the frame before had one.

Any other frame ends at a newline, or, if it is a message or one follows, at a NUL, as Python's `SysLogHandler` and
rsyslog's `AddtlFrameDelimiter` end it. Each may end otherwise than the one before. Newlines within a message that a NUL
ends are text. So a newline behind a message is its end if a frame follows, and no NUL comes before the next such
newline. Where neither has come yet, it is the end if a read ended there, or if the message would be too large; but not
for a sender whose last message ended with a NUL. Only this depends on how the network cut the stream up. A NUL that
another text follows is a character of a text: it ends no message with newlines.

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
# What ends a frame that began before: a text, a message, and a message whose newlines may be text.
_ENDS_TEXT = re.compile(rb"\n|\0(?=<)").search
_ENDS_LINE = re.compile(rb"\n|\0").search
_ENDS_MESSAGE = re.compile(rb"\0|\n(?=<[0-9]|[1-9][0-9]{0,8} <)").search
_OVERLAP = _LONGEST_COUNT + 1  # bytes before new ones, with which these may have their meaning
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

    A *line* ends at each newline and NUL here, whatever that turns out to be. A line *closes* what is before it if it
    ends a frame for sure: at a newline that a frame follows; at a NUL that ends a message, or that one follows. In
    other text a NUL is a character.
    """

    def __init__(self, octets: npt.NDArray[np.uint8]) -> None:
        self._octets = octets
        self._all: Places = np.flatnonzero((octets == _NEWLINE) | (octets == _NUL))
        self._is_nul = octets[self._all] == _NUL
        behind = self._at(self._all + 1)
        opens = octets[np.concatenate((np.zeros(1, dtype=np.int64), self._all[:-1] + 1))[: self._all.size]] == _LESS
        #: A count may follow: then the run of lines ends.
        self._is_turn = self._are_counts(behind)
        is_frame = ((behind == _LESS) & _is_digit(self._at(self._all + 2))) | self._is_turn
        self._is_sure = (self._is_nul & (behind == _LESS)) | (~self._is_nul & is_frame)
        #: A NUL that may end a message with newlines: not one that a text follows.
        is_followed = self._is_sure | self._is_turn | (behind == _NUL) | (behind == _NEWLINE)
        self._ends_several = self._is_nul & is_followed
        lines = np.arange(self._all.size)
        begun = np.maximum.accumulate(np.where(opens, lines, -1))
        firm = self._is_nul | self._is_sure
        closed = np.maximum.accumulate(np.where(firm, lines, -1))
        in_message = begun > np.concatenate(([-1], closed[:-1]))[: lines.size]
        closes = self._is_sure | (self._is_nul & ((begun == lines) | (in_message & self._ends_several)))
        self._opens = opens
        #: Up to this line, texts may seem to be in a message that only a counted frame before them had.
        self._untrue = -1
        self._opening = np.flatnonzero(opens)
        self._firm = np.flatnonzero(firm)
        self._text_ends = np.flatnonzero(~self._is_nul | self._is_sure)
        self._closing = np.flatnonzero(closes)
        # Up to the last line that closes: where a NUL ends a message, its newlines are text.
        by = np.append(self._firm, -1)[np.searchsorted(self._firm, lines)]
        is_text = ~firm & in_message & (by >= 0) & self._ends_several[by]
        is_end = ~is_text & (closes | ~self._is_nul)
        self._ending = np.flatnonzero(is_end & (lines <= (self._closing[-1] if self._closing.size else -1)))
        # Those that a count follows: newlines among all lines, and places in `_ending`.
        self._turns = np.flatnonzero(self._is_turn[self._ending])
        self._newline_turns = np.flatnonzero(self._is_turn & ~self._is_nul)

    def _at(self, places: Places) -> npt.NDArray[np.uint8]:
        size = self._octets.size
        found: npt.NDArray[np.uint8] = np.where(places < size, self._octets[np.minimum(places, size - 1)], 0)
        return found

    def _are_counts(self, behind: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
        """Return which lines a count, a space and ``<`` follow."""
        found = np.zeros(behind.size, dtype=bool)
        rows = np.flatnonzero(_is_digit(behind) & (behind != ord("0")))
        places = self._all[rows] + 2
        for _ in range(_LONGEST_COUNT - 2):
            if not rows.size:
                break
            octets = self._at(places)
            found[rows[(octets == ord(" ")) & (self._at(places + 1) == _LESS)]] = True
            goes_on = _is_digit(octets)
            rows, places = rows[goes_on], places[goes_on] + 1
        return found

    def from_place(self, place: int, *, waits: bool, after_count: bool) -> Places:
        """Return the ends of the frames from ``place`` on, up to one that a count may follow.

        Args:
            place: where a frame begins.
            waits: nothing that closes a message can be missing: its newlines are not its end without that.
            after_count: the frame before had a count.
        """
        first = int(np.searchsorted(self._all, place))
        if first == self._all.size:
            return _NOWHERE
        is_message = bool(self._octets[place] == _LESS)
        if after_count:
            firm = _next(self._firm, first)
            self._untrue = self._all.size if firm < 0 else firm
        if not is_message and first <= self._untrue:
            line = _next(self._text_ends, first)
            return self._ends(np.array([line] if line >= 0 else [], dtype=np.int64))
        is_seen = is_message == bool(self._opens[first])
        if is_seen and self._closing.size and first <= self._closing[-1]:
            at = int(np.searchsorted(self._ending, first))
            return self._ends(self._ending[at : self._stop(at)])
        firm = _next(self._firm, first) if is_message else -1
        stop = self._all.size
        if firm >= 0 and self._is_nul[firm]:
            if firm == first or self._ends_several[firm]:
                return self._ends(np.array([firm]))
            # The NUL is in a text behind the message, which ends at its newline.
            stop = firm
        elif firm >= 0:
            stop = firm + 1
        elif waits:
            stop = first if is_message else _next(self._opening, first + 1)
            stop = stop if stop >= 0 else self._all.size
        turn = _next(self._newline_turns, first)
        lines = np.arange(first, turn + 1 if 0 <= turn < stop else stop)
        return self._ends(lines[~self._is_nul[lines]])

    def _stop(self, at: int) -> int:
        """Return where in ``_ending`` the lines from ``at`` on stop, behind one that a count follows."""
        turn = int(np.searchsorted(self._turns, at))
        return int(self._turns[turn]) + 1 if turn < self._turns.size else self._ending.size

    def _ends(self, lines: Places) -> Places:
        ends: Places = self._all[lines]
        return ends


def _first(find: Callable[[bytes], re.Match[bytes] | None], before: bytes, new: memoryview) -> int | None:
    """Return where in ``new`` a line ends that began before; None: not in these bytes.

    ``before`` are its last bytes: an end there, whose meaning comes now, is below 0.
    """
    found = find(before + bytes(new))
    return None if found is None else found.start() - len(before)


def _next(sorted_lines: Places, line: int) -> int:
    """Return the first of these lines from ``line`` on; -1: there is none."""
    at = int(np.searchsorted(sorted_lines, line))
    return int(sorted_lines[at]) if at < sorted_lines.size else -1


def _is_digit(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    return (octets >= ord("0")) & (octets <= ord("9"))


class SyslogSplitter:
    """Split one connection's stream. See ``framing.Splitter``; made by ``SyslogFraming.open``."""

    def __init__(self, *, max_record_bytes: int) -> None:
        self._max = max_record_bytes
        #: The bytes so far of the frame whose end has not come. It never grows larger than a message may be.
        self._held = bytearray()
        #: That frame's length in bytes, including its count; None for a line, 0 where it is not known yet.
        self._frame: int | None = 0
        #: How many more bytes of a message that is too large to skip; -1: all up to its end.
        self._passing = 0
        #: The beginning of a message that is too large, and how long it is, or so far.
        self._large = b""
        self._large_bytes = 0
        self._last = b""
        #: Whether the last frame had a count.
        self._counted = False
        #: The byte that ended the last frame; -1 where it had a count, or there was none.
        self._ended_by = -1
        #: Whether the sender's last message without a count ended with a NUL.
        self._nul_ends = False

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
        starts, ends, rest = self._walk(data, waits=data[-1] != _NEWLINE)
        if len(data) - rest > self._max + 1 and not self._nul_ends:
            # Too much to wait for a NUL.
            starts, ends, rest = self._walk_on(data, starts, ends, rest)
        self._held = bytearray(memoryview(data)[rest:])
        starts, ends = self._without_large(data, starts, ends, taken)
        if starts.size:
            taken.piece = Piece(data[:rest], ends.astype(np.int32), starts=starts.astype(np.int32))
        self._look_at_held()
        return taken

    def finish(self, *, clean: bool) -> Taken:
        """See ``framing.Splitter``: the last line needs no newline where its sender ended the stream."""
        taken = Taken()
        held, starts, ends, rest = bytes(self._held), _NOWHERE, _NOWHERE, 0
        if self._frame is None and not self._nul_ends:
            starts, ends, rest = self._walk_on(held, starts, ends, rest)
        if rest < len(held) and clean and (self._frame is None or (self._frame == 0 and not self._counted)):
            line = held[rest:].removesuffix(b"\n").removesuffix(b"\r")
            starts, ends = np.append(starts, rest), np.append(ends, rest + len(line))
        elif rest < len(held):
            taken.before.append(aside(DeadLetterReason.TRUNCATED, held[rest:]))
        starts, ends = self._without_large(held, starts, ends, taken)
        if starts.size:
            taken.piece = Piece(held, ends.astype(np.int32), starts=starts.astype(np.int32))
        if self._passing and self._large_bytes:
            taken.before.append(self._end_large())
        self._held.clear()
        self._frame, self._passing, self._counted, self._ended_by, self._nul_ends = 0, 0, False, -1, False
        return taken

    def _pass_over(self, buffer: bytearray, count: int, taken: Taken) -> int:
        """Skip the rest of a message that is too large; return where the next frame begins."""
        if self._passing < 0:
            find = _ENDS_TEXT
            if self._large[0] == _LESS:
                find = _ENDS_MESSAGE if self._nul_ends else _ENDS_LINE
            found = _first(find, self._last, memoryview(buffer)[:count])
            self._keep_of_large(buffer, count if found is None else max(0, found))
            if found is None:
                self._large_bytes += count
                self._last = (self._last + buffer[max(0, count - _OVERLAP) : count])[-_OVERLAP:]
                return count
            # Below 0: an end that came before, and whose meaning came now.
            self._large_bytes += found
            end = (self._last + buffer[:count])[len(self._last) + found :]
            self._passing, self._ended_by = 0, end[0]
            taken.before.append(self._end_large())
            self._held += end[1 : len(end) - count] if found < -1 else b""
            return max(0, found + 1)
        passed = min(self._passing, count)
        if passed and self._large_bytes:
            self._keep_of_large(buffer, passed)
            # Its length is known: with a wrong count, its end may come very late.
            if passed == self._passing or len(self._large) == LETTER_BYTES:
                taken.before.append(self._end_large())
        self._passing -= passed
        return passed

    def _keep_of_large(self, buffer: bytearray, count: int) -> None:
        """Keep the beginning of a message that is too large, however small the largest one may be."""
        self._large += buffer[: max(0, min(count, LETTER_BYTES - len(self._large)))]

    def _goes_on(self, buffer: bytearray, start: int, count: int) -> bool:
        """Return whether all new bytes belong to the frame that is held, and do not end it."""
        if not self._held or self._frame == 0:
            return False
        if self._frame is not None:
            return len(self._held) + count - start < self._frame
        view = memoryview(buffer)[start:count]
        if self._held[0] != _LESS:
            find = _ENDS_TEXT
        elif not self._nul_ends and (view[-1] == _NEWLINE or len(self._held) + len(view) > self._max + 1):
            # A read that ends with a newline ends the message, and so does one that makes it too large.
            return not (_NEWLINE in self._held or _ENDS_LINE(view))
        else:
            find = _ENDS_MESSAGE
        return _first(find, bytes(self._held[-_OVERLAP:]), view) is None

    def _look_at_held(self) -> None:
        """Note the kind of the frame that is held. A message that is too large is put aside at its end."""
        kind = self._kind(self._held, 0) if self._held else _FramingKind.UNKNOWN
        if isinstance(kind, tuple):
            prefix, size = kind
            self._frame = prefix + size
            if size > self._max:
                self._passing = self._frame - len(self._held)
                self._large, self._large_bytes = bytes(self._held[prefix:][:LETTER_BYTES]), size
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
            self._last = bytes(self._held[-_OVERLAP:])
            self._held.clear()
            self._frame, self._passing, self._counted = 0, -1, False

    def _end_large(self) -> DeadLetter:
        letter = too_large(self._large, self._large_bytes)
        self._large, self._large_bytes = b"", 0
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

    def _walk_on(self, data: bytes, starts: Places, ends: Places, rest: int) -> tuple[Places, Places, int]:
        """Walk the rest too, in which each newline is an end."""
        begin, end, then = self._walk(data[rest:], waits=False)
        return np.concatenate((starts, begin + rest)), np.concatenate((ends, end + rest)), rest + then

    def _walk(self, data: bytes, *, waits: bool) -> tuple[Places, Places, int]:
        """Return where whole messages begin and end, and where the incomplete rest begins.

        Args:
            data: the bytes.
            waits: a newline that nothing follows yet, or a text, may belong to a message that a NUL ends.
        """
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
                run = _NOWHERE
                if kind is not _FramingKind.UNKNOWN:
                    run = stops.from_place(place, waits=waits or self._nul_ends, after_count=self._counted)
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
        messages = stops[octets[begin] == _LESS]
        if messages.size:
            self._nul_ends = bool(octets[messages[-1]] == _NUL)
        # Some senders write both a NUL and a newline: between them is no message, or behind it no line.
        before = np.concatenate((np.array([self._ended_by], dtype=np.int16), enders[:-1]))
        is_line = (stops > begin) | (before < 0) | (before == enders)
        self._ended_by = int(enders[-1])
        begin, stops = begin[is_line], stops[is_line]
        stops = stops - ((octets[stops] == _NUL) & (octets[stops - 1] == _NEWLINE) & (stops > begin))
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


def _host(peer: str) -> str:
    """Return the host of ``host:port``, as ``address_of`` writes it."""
    return _unmapped(peer.rpartition(":")[0].strip("[]"))


def _unmapped(host: str) -> str:
    """Return an IPv4 sender's own address, also where a socket for both IP versions received it."""
    return host.removeprefix("::ffff:")
