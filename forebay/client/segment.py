"""Write and read the files of a spool: segments, in which frames of records follow one another.

A frame is all there or not there: a kill or a power cut leaves at most a torn tail, which is found by its checksum and
cut. It must never append behind bytes of which it does not know that they are whole.
"""

from __future__ import annotations

import errno
import os
import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.client.errors import SpoolDamagedError
from forebay.client.spool_state import sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SUFFIX = ".records"
_MAGIC = b"forebay1"
# Bytes of the records, number of records, checksum of both and of the records.
_HEAD = struct.Struct("<III")
_SEED = 0x466F7265  # zeros, which a power cut leaves, are no frame
HEAD_BYTES = _HEAD.size
EMPTY_BYTES = len(_MAGIC)
_MOST_CHECKED_BYTES = 2**28  # how many bytes the search for a frame behind damage reads at most


@dataclass(frozen=True, slots=True)
class Frame:
    """Hold the place of a frame: its first byte in the segment, its first record, its records and their bytes."""

    at: int
    index: int
    count: int
    length: int


def path_of(folder: Path, first: int) -> Path:
    """Return where a segment is: its name is the index of its first record."""
    return folder / f"{first:020d}{SUFFIX}"


def first_of(path: Path) -> int:
    """Return the index of a segment's first record. Raises SpoolDamagedError: it has no segment's name."""
    number = path.name.removesuffix(SUFFIX)
    if not number.isdecimal() or not number.isascii():
        raise SpoolDamagedError(f"{path} is no segment of a spool: move it away")
    return int(number)


def frame_of(records: bytes, count: int) -> bytes:
    """Return a frame of records."""
    head = _HEAD.pack(len(records), count, 0)
    return _HEAD.pack(len(records), count, zlib.crc32(records, zlib.crc32(head[:8], _SEED))) + records


class Segment:
    """Hold one open segment. Its owner holds the lock."""

    def __init__(self, path: Path, first: int, descriptor: int) -> None:
        self.path = path
        self.first = first
        self.end = first
        self.size = EMPTY_BYTES
        self.descriptor = descriptor
        #: Whether a failed write may have left bytes behind the end.
        self.is_broken = False
        # Where the frame is that a reader needs next who reads in order.
        self._next = (first, EMPTY_BYTES)

    @classmethod
    def create(cls, folder: Path, first: int) -> Segment:
        """Create an empty segment, and have its name on the disk. Raises OSError: there is none."""
        path = path_of(folder, first)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        segment = cls(path, first, descriptor)
        try:
            segment._write_magic()
            sync_folder(folder)
        except BaseException:
            # What stays would be in the way when it is tried again.
            segment.remove()
            raise
        return segment

    @classmethod
    def open(cls, path: Path, first: int) -> Segment:
        """Open a segment whose end is known to its owner, who sets it."""
        segment = cls(path, first, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        segment.size = os.fstat(segment.descriptor).st_size
        return segment

    def recover(self) -> int:
        """Find the end of the last whole frame, and cut what follows. Return the number of bytes that were cut.

        Raises:
            SpoolDamagedError: the file is no segment, or what follows has whole frames, so it is no torn tail.
        """
        data = os.pread(self.descriptor, self.size, 0)
        if not data.startswith(_MAGIC):
            if len(data) >= len(_MAGIC) and any(data):
                raise SpoolDamagedError(f"{self.path} is no segment of a spool: move it away")
            os.ftruncate(self.descriptor, 0)
            self._write_magic()
            return 0
        at = EMPTY_BYTES
        for frame in _frames(data, at, self.first):
            self.end = frame.index + frame.count
            at = frame.at + HEAD_BYTES + frame.length
        torn = self.size - at
        if torn:
            if _has_frame(data[at:]):
                raise SpoolDamagedError(
                    f"{self.path} is damaged at byte {at}, record {self.end}, and has whole records behind it: restore "
                    f"the file, or cut it there, which deletes them (truncate -s {at} {self.path})"
                )
            os.ftruncate(self.descriptor, at)
            os.fsync(self.descriptor)
        self.size = at
        return torn

    def append(self, frame: bytes, count: int) -> None:
        """Append a frame. Raises OSError: nothing was appended, or, if `is_broken`, the end is not known."""
        try:
            written = os.pwrite(self.descriptor, frame, self.size)
            if written < len(frame):
                rest = memoryview(frame)[written:]
                written += os.pwrite(self.descriptor, rest, self.size + written)
        except OSError:
            self._cut_back()
            raise
        if written < len(frame):
            self._cut_back()
            raise OSError(errno.ENOSPC, f"only {written} of {len(frame)} bytes were written", str(self.path))
        self.size += len(frame)
        self.end += count

    def read(self, index: int, most_bytes: int) -> list[tuple[Frame, bytes]]:
        """Return frames from the one that holds a record on: at least that one, and as many more as fit.

        Raises:
            SpoolDamagedError: a frame is not as it was written.
        """
        begin = self._next if self._next[0] <= index else (self.first, EMPTY_BYTES)
        found: list[tuple[Frame, bytes]] = []
        while not found and begin[0] < self.end:
            limit = max(most_bytes, HEAD_BYTES)
            data = os.pread(self.descriptor, min(limit, self.size - begin[1]), begin[1])
            if len(data) >= HEAD_BYTES:
                whole = HEAD_BYTES + _HEAD.unpack_from(data)[0]
                if len(data) < whole <= self.size - begin[1]:
                    data = os.pread(self.descriptor, whole, begin[1])
            before = begin
            for frame in _frames(data, begin[1], begin[0], at_zero=True):
                begin = (frame.index + frame.count, frame.at + HEAD_BYTES + frame.length)
                if begin[0] > index:
                    start = frame.at - before[1] + HEAD_BYTES
                    found.append((frame, data[start : start + frame.length]))
                    if found[0][0] is frame:
                        self._next = (frame.index, frame.at)
            if begin == before:
                raise SpoolDamagedError(
                    f"{self.path} has no whole record {begin[0]} at byte {begin[1]}, but {self.end - begin[0]} more "
                    "were spooled: restore the file, or move the spool away and use another channel"
                )
        return found

    def sync(self) -> None:
        """Have all that was appended on the disk."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        os.close(self.descriptor)

    def remove(self) -> None:
        """Close the file and delete it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _cut_back(self) -> None:
        """Cut what a failed write left behind the end."""
        self.is_broken = True
        os.ftruncate(self.descriptor, self.size)
        self.is_broken = False

    def _write_magic(self) -> None:
        if (written := os.pwrite(self.descriptor, _MAGIC, 0)) < len(_MAGIC):
            raise OSError(errno.ENOSPC, f"only {written} of {len(_MAGIC)} bytes were written", str(self.path))
        self.size = EMPTY_BYTES


def _has_frame(tail: bytes) -> bool:
    """Return whether a whole frame is anywhere in bytes that do not begin with one."""
    # Length and count of a frame are at most the size of the tail, which bounds their highest bytes.
    highest = b"[\\x00-\\x%02x]" % min(len(tail) >> 24, 0xFF)
    heads = re.compile(rb"(?=...%b(?!\0{4})...%b....)" % (highest, highest), re.DOTALL)
    checked = 0
    for head in heads.finditer(tail):
        length, count, _ = _HEAD.unpack_from(tail, head.start())
        if 0 < count <= length <= len(tail) - head.start() - HEAD_BYTES:
            checked += length
            # What needs this many checks is no torn record.
            if checked > _MOST_CHECKED_BYTES or next(_frames(tail, head.start(), 0), None):
                return True
    return False


def _frames(data: bytes, at: int, index: int, *, at_zero: bool = False) -> Iterator[Frame]:
    """Find whole frames. `data` begin at the byte `at` of the file, or, unless `at_zero`, with the file."""
    base = at if at_zero else 0
    while at - base + HEAD_BYTES <= len(data):
        length, count, checksum = _HEAD.unpack_from(data, at - base)
        begin = at - base + HEAD_BYTES
        if count == 0 or length < count or begin + length > len(data):
            return
        records = memoryview(data)[begin : begin + length]
        if zlib.crc32(records, zlib.crc32(data[begin - HEAD_BYTES : begin - 4], _SEED)) != checksum:
            return
        yield Frame(at, index, count, length)
        at += HEAD_BYTES + length
        index += count
