r"""Cuts streams into syslog messages by RFC 6587, frame by frame, and datagrams by RFC 5426.

A frame that begins with a number, a space and ``<`` has the length that the number gives (*octet counting*); any other
frame ends at its newline. Every well-formed message begins with ``<``. Where something else follows the number and the
space, the number is a length only if the frame before had one.

Vector code finds runs of lines; lengths are walked one by one, one number per message. Memory per connection is bounded
by ``max_record_bytes``.
"""

from __future__ import annotations

import re
import time
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_handler import DeadLetter
from receiver_runtime.block_store.frame import DeadLetterReason
from receiver_runtime.receivers.connection_places import peer_of
from receiver_runtime.receivers.framing import PART_BYTES, Cut, Piece, Taken
from receiver_runtime.receivers.syslog.parsing import Places, parse
from receiver_runtime.receivers.syslog.short_frames import walk_short_frames
from receiver_runtime.records import schema_of
from receiver_runtime.sources.syslog import Syslog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_NEWLINE, _RETURN = b"\n\r"
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
        max_record_bytes: of a longer message, the first part (up to 1 MiB) is put aside.
        now: gives microseconds since 1970.
    """

    schema = schema_of(Syslog.columns)

    def __init__(self, *, timezone: str, max_record_bytes: int, now: Callable[[], int] = _now) -> None:
        self._timezone = timezone
        self._max = max_record_bytes
        self._now = now

    def open(self, *, max_parts: int | None = None) -> SyslogSplitter:
        """Return a new connection's splitter. It keeps one part of a message that is too large, for any argument."""
        del max_parts
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
                    cut.dead_letters.append(_too_large(datagram, peer_of(sender)))
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


class _Kind(Enum):
    """The kind of a frame without a count, by its first bytes."""

    LINE = "ends at its newline"
    UNKNOWN = "too little has come"


class SyslogSplitter:
    """Split one connection's stream. See ``framing.Splitter``; made by ``SyslogFraming.open``."""

    def __init__(self, *, max_record_bytes: int) -> None:
        self._max = max_record_bytes
        #: The bytes so far of the frame whose end has not come. It never grows larger than a message may be.
        self._held = bytearray()
        #: That frame's length in bytes, including its count; None for a line, 0 where it is not known yet.
        self._frame: int | None = 0
        #: How many more bytes of a message that is too large to skip; -1: all up to the next newline.
        self._passing = 0
        #: Whether the last frame had a count.
        self._counted = False

    def take(self, buffer: bytearray, count: int) -> Taken:
        """See ``framing.Splitter``."""
        taken = Taken()
        start = self._pass_over(buffer, count)
        if start == count:
            return taken
        view = memoryview(buffer)[start:count]
        if self._goes_on(buffer, start, count):
            self._held += view
            if self._frame is None:
                self._put_large_line_aside(taken)
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
                taken.before.append(_too_large(line))
            else:
                taken.piece = Piece(line, np.array([len(line)], dtype=np.int32), starts=np.zeros(1, dtype=np.int32))
        elif held:
            taken.before.append(DeadLetter(DeadLetterReason.TRUNCATED, held[:PART_BYTES]))
        self._held.clear()
        self._frame, self._passing, self._counted = 0, 0, False
        return taken

    def _pass_over(self, buffer: bytearray, count: int) -> int:
        """Skip the rest of a message that is too large; return where the next frame begins."""
        if self._passing < 0:
            found = buffer.find(b"\n", 0, count)
            if found < 0:
                return count
            self._passing = 0
            return found + 1
        passed = min(self._passing, count)
        self._passing -= passed
        return passed

    def _goes_on(self, buffer: bytearray, start: int, count: int) -> bool:
        """Return whether all new bytes belong to the frame that is held, and do not end it."""
        if not self._held or self._frame == 0:
            return False
        if self._frame is None:
            return buffer.find(b"\n", start, count) < 0
        return len(self._held) + count - start < self._frame

    def _look_at_held(self, taken: Taken) -> None:
        """Note the kind of the frame that is held. Of a message that is too large, put aside what has come."""
        kind = self._kind(self._held, 0) if self._held else _Kind.UNKNOWN
        if isinstance(kind, tuple):
            prefix, size = kind
            self._frame = prefix + size
            if size > self._max:
                self._passing = self._frame - len(self._held)
                taken.after.append(_too_large(self._held[prefix:]))
                self._held.clear()
                self._frame, self._counted = 0, True
        elif kind is _Kind.LINE:
            self._frame = None
            self._put_large_line_aside(taken)
        else:
            self._frame = 0

    def _put_large_line_aside(self, taken: Taken) -> None:
        # Allow one byte more: a \r may belong to the newline that is still to come.
        if len(self._held) > self._max + 1:
            taken.after.append(_too_large(self._held))
            self._held.clear()
            self._frame, self._passing, self._counted = 0, -1, False

    def _kind(self, data: bytes | bytearray, place: int) -> tuple[int, int] | _Kind:
        """Return a frame's count as (its own length with the space, its number), or the kind of a frame without one."""
        head = data[place : place + _LONGEST_COUNT]
        match = _COUNT.match(head)
        if match is None:
            return _Kind.LINE
        if match.end() == len(head) < _LONGEST_COUNT and not match[3]:
            return _Kind.UNKNOWN
        if match[2] is None or not (match[3] == b"<" or self._counted):
            return _Kind.LINE
        return match.end(1) + 1, int(match[1])

    def _walk(self, data: bytes) -> tuple[Places, Places, int]:
        """Return where whole messages begin and end, and where the incomplete rest begins."""
        octets = np.frombuffer(data, dtype=np.uint8)
        newlines = np.flatnonzero(octets == _NEWLINE)
        behind = octets[np.minimum(newlines + 1, len(data) - 1)]
        # The newlines that a count may follow.
        turns = np.flatnonzero((behind > ord("0")) & (behind <= ord("9")))
        starts, ends = [_NOWHERE], [_NOWHERE]
        place = 0
        while place < len(data):
            kind = self._kind(data, place)
            if isinstance(kind, tuple):
                if place + sum(kind) > len(data):
                    break
                begin, end, place = self._walk_counted(data, place)
            elif self._counted and data[place] == _NEWLINE:
                # Skip a newline after a counted message: some senders write both.
                place += 1
                continue
            else:
                first = int(np.searchsorted(newlines, place))
                if kind is _Kind.UNKNOWN or first == newlines.size:
                    break
                turn = int(np.searchsorted(turns, first))
                end = newlines[first : (int(turns[turn]) + 1 if turn < turns.size else newlines.size)]
                begin = np.concatenate(([place], end[:-1] + 1))
                place = int(end[-1]) + 1
                end = end - ((octets[end - 1] == _RETURN) & (end > begin))
                self._counted = False
            starts.append(begin)
            ends.append(end)
        return np.concatenate(starts), np.concatenate(ends), place

    def _walk_counted(self, data: bytes, place: int) -> tuple[Places, Places, int]:
        """Walk whole counted frames from ``place`` on. Return their starts, their ends, and where the rest begins.

        Newlines between them are skipped: some senders write both.
        """
        self._counted = True
        runs: list[tuple[Places, Places]] = []
        starts: list[int] = []
        ends: list[int] = []
        size = len(data)
        dense_from = place
        while True:
            while place < size and data[place] == _NEWLINE:
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
            taken.before.append(_too_large(data[int(starts[row]) : int(ends[row])]))
        return starts[~is_large], ends[~is_large]


def _too_large(message: bytes | bytearray, peer: str = "") -> DeadLetter:
    return DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, bytes(message[:PART_BYTES]), peer=peer)


def _host(peer: str) -> str:
    """Return the host of ``host:port``, as ``address_of`` writes it."""
    return _unmapped(peer.rpartition(":")[0].strip("[]"))


def _unmapped(host: str) -> str:
    """Return an IPv4 sender's own address, also where a socket for both IP versions received it."""
    return host.removeprefix("::ffff:")
