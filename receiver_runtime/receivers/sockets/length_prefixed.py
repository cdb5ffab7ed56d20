"""Cuts streams into records that are each preceded by their length in 4 bytes, big-endian (X02).

A length can only be found by way of the one before it, so the lengths are walked one by one: one number per record, no
other Python object. Arrow then copies all records out from between the lengths at once.

An invalid length means that the sender speaks another protocol. There is no next record to continue at, so the
connection is refused.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.receivers.framing import LETTER_BYTES, Cut, Piece, Taken, aside

if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMA = pa.schema([("value", pa.binary())])
_LENGTH = struct.Struct(">i")
_PREFIX = _LENGTH.size


class LengthPrefixedFraming:
    """Frame records of bytes.

    Args:
        max_record_bytes: a longer record ends its connection; its length prefix does not count.
    """

    schema = _SCHEMA

    def __init__(self, *, max_record_bytes: int = 2**20, letter_bytes: int = LETTER_BYTES) -> None:
        self._max = max_record_bytes
        self._letter_bytes = letter_bytes

    def open(self) -> LengthPrefixedSplitter:
        """Return a new connection's splitter."""
        return LengthPrefixedSplitter(max_record_bytes=self._max, letter_bytes=self._letter_bytes)

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Return the records of these pieces, in order."""
        if not pieces:
            return Cut()
        data = pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)
        moved = []
        base = 0
        for piece in pieces:
            assert piece.ends is not None
            moved.append(piece.ends + base)
            base += len(piece.data)
        ends = np.concatenate(moved)
        count = ends.size
        # length, record, length, record, …: the records have the odd indices.
        offsets = np.empty(2 * count + 1, dtype=np.int32)
        offsets[0] = 0
        offsets[2::2] = ends
        offsets[1::2] = offsets[:-1:2] + _PREFIX
        both = pa.BinaryArray.from_buffers(
            pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0
        )
        return Cut(both.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32))))


class LengthPrefixedSplitter:
    """Split one connection's stream. See ``framing.Splitter``; made by ``LengthPrefixedFraming.open``."""

    def __init__(self, *, max_record_bytes: int, letter_bytes: int) -> None:
        self._max = max_record_bytes
        self._letter_bytes = letter_bytes
        #: The bytes so far of the record whose end has not come, including its length.
        self._held = bytearray()
        self._refused = False

    def take(self, buffer: bytearray, count: int) -> Taken:
        """See ``framing.Splitter``. After a refusal it ignores all further bytes."""
        taken = Taken()
        if self._refused:
            return taken
        view = memoryview(buffer)
        held = len(self._held)
        start = self._rest_of_held(view, count)
        if start is None:
            self._held += view[:count]
            return taken
        if start < 0:
            self._held += view[:count]
            self._refuse(taken)
            return taken
        # A piece's ends count from the start of the held bytes.
        ends, stop, is_bad = self._walk(buffer, start, count)
        if held:
            ends.insert(0, start)
        if ends:
            taken.piece = Piece(b"".join((self._held, view[:stop])), np.array(ends, dtype=np.int32) + held)
            self._held.clear()
        self._held += view[stop:count]
        if is_bad:
            self._refuse(taken)
        return taken

    def finish(self, *, clean: bool) -> Taken:
        """See ``framing.Splitter``: an incomplete record is truncated, whichever side ended the stream."""
        del clean
        taken = Taken()
        if self._held:
            taken.before.append(aside(DeadLetterReason.TRUNCATED, self._held, most=self._letter_bytes))
        self._held.clear()
        self._refused = False
        return taken

    def _rest_of_held(self, view: memoryview, count: int) -> int | None:
        """Return how many more bytes complete the held record; None: they have not come, -1: its length is invalid."""
        if not self._held:
            return 0
        prefix = bytes(self._held[:_PREFIX]) + bytes(view[: max(0, min(count, _PREFIX - len(self._held)))])
        if len(prefix) < _PREFIX:
            return None
        length: int = _LENGTH.unpack(prefix)[0]
        if not 0 <= length <= self._max:
            return -1
        rest = _PREFIX + length - len(self._held)
        return rest if rest <= count else None

    def _walk(self, buffer: bytearray, start: int, count: int) -> tuple[list[int], int, bool]:
        """Return the ends of the whole records from ``start`` on, where they stop, and whether a bad length follows."""
        unpack = _LENGTH.unpack_from
        largest = self._max
        ends: list[int] = []
        add = ends.append
        last = count - _PREFIX
        while start <= last:
            length = unpack(buffer, start)[0]
            if not 0 <= length <= largest:
                return ends, start, True
            end = start + _PREFIX + length
            if end > count:
                break
            add(end)
            start = end
        return ends, start, False

    def _refuse(self, taken: Taken) -> None:
        """Refuse the stream: the held bytes begin with an invalid length. Keep what has been read as a dead letter."""
        self._refused = True
        length = _LENGTH.unpack_from(self._held)[0]
        taken.refusal = f"{bytes(self._held[:_PREFIX])!r} is no length of a record: {length}, not 0 to {self._max}"
        taken.after.append(aside(DeadLetterReason.INVALID_LENGTH, self._held, most=self._letter_bytes))
        self._held.clear()
