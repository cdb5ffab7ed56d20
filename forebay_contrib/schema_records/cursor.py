"""Walk through the bytes of many records at once: each step reads one value of each record, by NumPy.

So no Python object exists for a record, and what one record has never changes what is read of another: a record whose
bytes are wrong is noted as a fault, stands at its end from then on, and gives zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Flags = NDArray[np.bool_]

# Bytes after the last record, so that a step may look past it before it finds that it did.
_PAD = bytes(16)
_CONTINUES = np.uint64(0x8080808080808080)
_SEVENS = np.uint64(0x7F7F7F7F7F7F7F7F)
# A varint's groups of 7 bits become 14, 28 and 56: (mask of what stays, mask of what moves, by how many bits).
_JOINS = [
    (np.uint64(keep), np.uint64(move), np.uint64(bits))
    for keep, move, bits in (
        (0x007F007F007F007F, 0x7F007F007F007F00, 1),
        (0x00003FFF00003FFF, 0x3FFF00003FFF0000, 2),
        (0x000000000FFFFFFF, 0x0FFFFFFF00000000, 4),
    )
]
_ONE = np.uint64(1)
_ENDS_AT = 0x80

#: What is wrong with a record.
TOO_SHORT = "it ends within a value"
LONG_VARINT = "a varint is longer than 64 bits"
NO_UTF8 = "a string is not UTF-8"
BAD_LENGTH = "a length is larger than what is left of the record, or negative"


class Cursor:
    """Stand in each of some records. A step of each method moves it behind what was read.

    Args:
        data: the bytes of all records, and ``_PAD``.
        places: where it stands in each.
        ends: where each record ends.
        rows: the number by which each record's fault is noted.
        faults: what is wrong, by these numbers; shared with the cursors of some of the records.
        failed: whether it is wrong, for each record.
    """

    __slots__ = ("data", "ends", "failed", "faults", "places", "rows")

    def __init__(
        self,
        data: NDArray[np.uint8],
        places: Numbers,
        ends: Numbers,
        rows: Numbers,
        faults: dict[int, str],
        failed: Flags,
    ) -> None:
        self.data = data
        self.places = places
        self.ends = ends
        self.rows = rows
        self.faults = faults
        self.failed = failed

    @classmethod
    def of(cls, values: pa.BinaryArray) -> Cursor:
        """Stand at the beginning of each record; none of them is null."""
        _, offsets, data = values.buffers()
        places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1].astype(np.int64)
        first, last = (int(places[0]), int(places[-1])) if len(places) else (0, 0)
        copied = bytearray(memoryview(data)[first:last] if data is not None else b"")
        copied += _PAD
        places -= first
        rows = np.arange(len(values))
        return cls(
            np.frombuffer(copied, np.uint8), places[:-1].copy(), places[1:], rows, {}, np.zeros(len(rows), np.bool_)
        )

    def __len__(self) -> int:
        """Return how many records there are."""
        return len(self.places)

    def only(self, which: Numbers) -> Cursor:
        """Return a cursor for some of the records; ``put`` it back after its steps."""
        return Cursor(
            self.data,
            self.places[which],
            self.ends[which],
            self.rows[which],
            self.faults,
            self.failed[which],
        )

    def at_items(self, which: Numbers, counts: Numbers, starts: Numbers) -> Cursor:
        """Return a cursor that stands at several places of some records: ``counts`` of each, at these places."""
        return Cursor(
            self.data,
            starts,
            np.repeat(self.ends[which], counts),
            np.repeat(self.rows[which], counts),
            self.faults,
            np.zeros(len(starts), np.bool_),
        )

    def put(self, which: Numbers, moved: Cursor) -> None:
        """Stand where another cursor stands, which was made by ``only`` of the same records."""
        self.places[which] = moved.places
        self.failed[which] = moved.failed

    def fail(self, which: Flags | Numbers, why: str) -> None:
        """Note a fault of some records, unless they have one, and stand at their ends."""
        for row in self.rows[which].tolist():
            self.faults.setdefault(row, why)
        self.places[which] = self.ends[which]
        self.failed[which] = True

    def finish(self) -> None:
        """Note a fault of each record that goes on behind what was read."""
        if len(late := np.flatnonzero(self.places != self.ends)):
            for one in late.tolist():
                self.fail(np.array([one]), f"{self.ends[one] - self.places[one]} bytes are left behind its last value")

    # -- steps -------------------------------------------------------------------------------------------------------

    def varints(self) -> NDArray[np.uint64]:
        """Read a varint of each record."""
        first = self.data[self.places]
        if not len(first) or first.max() < _ENDS_AT:
            self.places += 1
            found = first.astype(np.uint64)
        else:
            words = self._view("<u8")[self.places]
            # In place, because new arrays cost a third of these steps.
            ends = np.invert(words)
            ends &= _CONTINUES
            lowest = np.negative(ends)
            lowest &= ends
            # All bits up to the one that says that the varint ends.
            through = lowest - _ONE
            through ^= lowest
            found = words & through
            found &= _SEVENS
            moved = np.empty_like(found)
            for keep, move, bits in _JOINS:
                np.bitwise_and(found, move, out=moved)
                moved >>= bits
                found &= keep
                found |= moved
            self.places += np.bitwise_count(through) >> 3
            if len(long := np.flatnonzero(lowest == 0)):
                self._finish_long(long, found)
        self._check_ends(found)
        return found

    def _finish_long(self, which: Numbers, found: NDArray[np.uint64]) -> None:
        """Read the ninth and the tenth byte of varints."""
        ninth, tenth = (self.data[self.places[which] + n] for n in (0, 1))
        goes_on = ninth >= _ENDS_AT
        found[which] |= (ninth & 0x7F).astype(np.uint64) << np.uint64(56)
        found[which] |= np.where(goes_on, tenth, 0).astype(np.uint64) << np.uint64(63)
        self.places[which] += 1 + goes_on
        is_within = self.places[which] <= self.ends[which]
        if len(bad := which[goes_on & (tenth > 1) & is_within]):
            self.fail(bad, LONG_VARINT)
            found[bad] = 0

    def zigzags(self) -> Numbers:
        """Read a zigzag varint of each record."""
        found = self.varints()
        return (found >> _ONE).view(np.int64) ^ -(found & _ONE).view(np.int64)

    def step(self, size: int) -> None:
        """Move over ``size`` bytes of each record."""
        self.places += size
        self._check_ends(np.zeros(len(self), np.int64))

    def unsigned_lengths(self) -> Numbers:
        """Read a length, a varint, of each record, and check that as many bytes are left."""
        found = self.varints()
        return self.checked_lengths(np.where(found > np.uint64(len(self.data)), -1, found.astype(np.int64)))

    def fixed(self, kind: str) -> NDArray[Any]:
        """Read a number of a NumPy type, such as ``<f8``, of each record."""
        found = self._view(kind)[self.places]
        self.places += found.dtype.itemsize
        self._check_ends(found)
        return found

    def lengths(self) -> Numbers:
        """Read a zigzag length of each record, and check that as many bytes are left."""
        return self.checked_lengths(self.zigzags())

    def checked_lengths(self, found: Numbers) -> Numbers:
        """Return lengths; a record that has no such number of bytes left has a fault, and 0."""
        bad = (found < 0) | (found > self.ends - self.places)
        if bad.any():
            self.fail(bad & ~self.failed, BAD_LENGTH)
            self.places[bad] = self.ends[bad]
            found = np.where(bad, 0, found)
        return found

    def skip(self, lengths: Numbers | int) -> Numbers:
        """Move by checked lengths; return where it stood."""
        starts = self.places.copy()
        self.places += lengths
        return starts

    def step_over(self, which: Numbers, counts: Numbers, size: int | None) -> Numbers:
        """Move over ``counts`` numbers of some records; return where each begins: of ``size`` bytes, or varints."""
        some = self.only(which)
        if size is not None:
            spans = some.checked_lengths(counts * size)
            counts = np.where(some.failed, 0, counts)
            starts = np.repeat(some.skip(spans), counts) + size * numbers_of(counts)
        else:
            # Only what these records have, so that few of them cost little.
            begin = int(some.places.min(initial=len(self.data)))
            ends = np.flatnonzero(self.data[begin : some.ends.max(initial=0)] < _ENDS_AT) + begin
            ends = np.append(ends, len(self.data))
            first = np.searchsorted(ends, some.places)
            last = np.minimum(first + counts, len(ends)) - 1
            bad = (first + counts > len(ends)) | (ends[last] >= some.ends)
            if bad.any():
                some.fail(bad, TOO_SHORT)
                counts = np.where(bad, 0, counts)
            before = np.repeat(first, counts) + numbers_of(counts) - 1
            starts = np.where(numbers_of(counts) > 0, ends[before] + 1, np.repeat(some.places, counts))
            some.places = np.where(some.failed, some.ends, ends[last] + 1)
        self.put(which, some)
        return starts

    def _view(self, kind: str) -> NDArray[Any]:
        """Return the numbers that begin at each byte."""
        size = np.dtype(kind).itemsize
        return np.ndarray((len(self.data) - size + 1,), kind, self.data, strides=(1,))

    def _check_ends(self, found: NDArray[Any]) -> None:
        late = self.places > self.ends
        if late.any():
            self.fail(late, TOO_SHORT)
            found[late] = 0


class WrongRecordError(Exception):
    """Note the fault of a record; the message says what is wrong."""


class SingleRecord:
    """Walk through one record by itself, from where a cursor stands in it. Each method raises WrongRecordError."""

    __slots__ = ("_data", "at", "end")

    def __init__(self, cursor: Cursor, row: int) -> None:
        self._data = cursor.data
        self.at, self.end = int(cursor.places[row]), int(cursor.ends[row])

    def take(self, size: int, otherwise: str = TOO_SHORT) -> bytes:
        """Read ``size`` bytes."""
        if size > self.end - self.at:
            raise WrongRecordError(otherwise)
        found = self._data[self.at : self.at + size].tobytes()
        self.at += size
        return found

    def zigzag(self) -> int:
        """Read a zigzag varint."""
        found = self.varint()
        return (found >> 1) ^ -(found & 1)

    def varint(self) -> int:
        """Read a varint."""
        found = 0
        for shift in range(0, 70, 7):
            if self.at >= self.end:
                raise WrongRecordError(TOO_SHORT)
            byte = int(self._data[self.at])
            self.at += 1
            found |= (byte & 0x7F) << shift
            if byte < _ENDS_AT:
                break
        if byte >= _ENDS_AT or found >> 64:
            raise WrongRecordError(LONG_VARINT)
        return found

    def checked_length(self, length: int) -> int:
        """Return a length if as many bytes are left."""
        if not 0 <= length <= self.end - self.at:
            raise WrongRecordError(BAD_LENGTH)
        return length

    def sized(self) -> bytes:
        """Read bytes with their length before them."""
        return self.take(self.checked_length(self.zigzag()))


def numbers_of(counts: Numbers) -> Numbers:
    """Return 0, 1, … for each count."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)


def bytes_array(cursor: Cursor, starts: Numbers, lengths: Numbers, valid: Flags | None, kind: pa.DataType) -> pa.Array:
    """Return an array of what stands at these places, which do not go back; ``valid``: False for null."""
    places = np.empty(2 * len(starts) + 1, np.int32)
    places[0:-1:2] = starts
    places[1::2] = starts + lengths
    places[-1] = places[-2] if len(starts) else 0
    # The values, and what stands between them.
    both = pa.Array.from_buffers(kind, len(places) - 1, [None, pa.py_buffer(places), pa.py_buffer(cursor.data)])
    at = pa.array(2 * np.arange(len(starts)), mask=None if valid is None else ~valid)
    return both.take(at)


def joined(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    """Return arrays as one."""
    if not parts:
        return pa.array([], kind)
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
