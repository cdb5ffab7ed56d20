"""Append frames to a segment file, which one process writes, and read such a file back after a crash.

``SegmentWriter`` appends and syncs. It never appends after a failed write or sync, never truncates, and knows the
length up to which the file is good (``synced_length``), which is recorded when the segment is sealed.

``scan_segment`` reads a file of which nothing is known, by these rules:

- a frame whose bytes match its checksums is intact;
- a *complete* frame with a wrong checksum is damage: it is yielded as such and counted as loss, never skipped silently;
- an *incomplete* last frame is a torn write: its sync had not returned, so no caller was told that it is stored;
- where no header can be read, the scan looks for the next readable header of the same receiver, epoch and mark. If
  there is one, the bytes before it are damage; if there is none, the rest of the file is torn (as zeros after a crash
  are). A frame inside a record has another mark: a sender can't know it. (While no header has been read, no mark is
  known, and any readable header counts: salvage then compares receiver and epoch.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import google_crc32c

from receiver_runtime.block_store.frames.direct import LEAST_DIRECT_BYTES, copies, size_of, split
from receiver_runtime.block_store.frames.errors import InvalidFrameError, segment_ended, segment_write_failed
from receiver_runtime.block_store.frames.frame import (
    HEADER_LENGTH,
    MAGIC,
    EncodedFrame,
    FrameHeader,
    decode_header,
    header_checksum_seed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path, PurePath

    import pyarrow as pa

    from receiver_runtime.block_store.frames.direct import Portions
    from receiver_runtime.block_store.frames.files import Files

_WINDOW = 1 << 20
# The first window of a search, which grows: many small damages don't make a scan read the file many times.
_LEAST_WINDOW = 512
# Buffers per write call; Linux takes 1024.
_MOST_BUFFERS = 1000


class SegmentWriter:
    """Appends frames to one new file. One thread at a time; the write-ahead log holds the lock.

    Args:
        files: the operating system's calls.
        fd: the new file, open for appending.
        path: of the file.
        portions: where there are any, large frames are written past the page cache, see ``direct``.
    """

    def __init__(self, files: Files, fd: int, path: Path, *, portions: Portions | None = None) -> None:
        self._files = files
        self._fd: int | None = fd
        self._portions = portions
        self._direct_fd: int | None = None
        self._failed = False
        self._written = 0
        self.path = path
        #: Bytes that are written and synced: intact frames only.
        self.synced_length = 0

    def append(self, frame: EncodedFrame) -> int:
        """Write one frame at the end, without a sync; return its offset.

        Raises:
            BlockStoreError: an earlier write or sync failed, or the segment is closed; or this write failed or was
                short, and ends the segment.
        """
        fd = self._open_fd()
        offset = self._written
        try:
            if self._portions is not None and frame.length >= LEAST_DIRECT_BYTES:
                count = self._append_past_cache(fd, frame, self._portions)
            else:
                count = self._append(fd, frame.buffers)
        except OSError as error:
            self._failed = True
            raise segment_write_failed(self.path, offset, error) from error
        if count != frame.length:
            # A full disk may take only a part without an error. Frames after that part could never be found again.
            self._failed = True
            raise segment_write_failed(self.path, offset, f"short write: {count} of {frame.length} bytes")
        self._written += count
        return offset

    def sync(self) -> None:
        """Return when every appended frame survives a loss of power.

        Raises:
            BlockStoreError: as for ``append``, or the sync failed. The system may have dropped the pages and report
                success the next time, so this file is never synced again.
        """
        fd = self._open_fd()
        try:
            self._files.sync(fd)
        except OSError as error:
            self._failed = True
            raise segment_write_failed(self.path, self.synced_length, f"sync: {error}") from error
        self.synced_length = self._written

    def skip_sync(self) -> None:
        """Count what was appended as good without a sync (ephemeral durability)."""
        self._open_fd()
        # No caller waits for the disk here, so later frames go through the page cache.
        self._portions = None
        self.synced_length = self._written

    def close(self) -> None:
        """Close the file; safe to call twice. Syncs nothing: everything that counts is synced already."""
        if self._fd is not None:
            fd, self._fd = self._fd, None
            direct_fd, self._direct_fd = self._direct_fd, None
            if direct_fd is not None:
                self._files.close(direct_fd)
            self._files.close(fd)

    def _append_past_cache(self, fd: int, frame: EncodedFrame, portions: Portions) -> int:
        """Write a frame, its whole pages past the page cache; return how many bytes, fewer after a short write."""
        if self._direct_fd is None:
            self._direct_fd = self._files.open_direct(self.path, fd)
            if self._direct_fd is None:
                self._portions = None
                return self._append(fd, frame.buffers)
        head, middle, tail = split(frame.buffers, self._written)
        done = self._append(fd, head)
        if done < size_of(head):
            return done
        with portions.borrowed() as buffer:
            for portion in copies(middle, buffer):
                count = None
                if self._portions is not None:
                    count = self._files.write_direct(self._direct_fd, portion, self._written + done)
                if count is None:
                    # The system refused, and wrote nothing of it.
                    self._portions = None
                    count = self._files.write(fd, [portion])
                done += count
                if count < len(portion):
                    return done
        return done + self._append(fd, tail)

    def _append(self, fd: int, buffers: Sequence[pa.Buffer | bytes]) -> int:
        """Write at the end by as few calls as the system allows; return how many bytes, fewer after a short write."""
        done = 0
        for first in range(0, len(buffers), _MOST_BUFFERS):
            group = buffers[first : first + _MOST_BUFFERS]
            count = self._files.write(fd, group)
            done += count
            if count < size_of(group):
                break
        return done

    def _open_fd(self) -> int:
        if self._fd is None or self._failed:
            raise segment_ended(self.path)
        return self._fd


@dataclass(frozen=True, slots=True)
class IntactFrame:
    """Describe a frame whose checksums are right. ``offset`` and ``length`` (the whole frame's) are in bytes."""

    offset: int
    length: int
    crc32c: int
    header: FrameHeader


@dataclass(frozen=True, slots=True)
class DamagedFrame:
    """Bytes that were written whole and are damaged: a loss to be counted and reported.

    ``header`` is known where only the payload is damaged; ``expected`` and ``found`` are then the frame's checksums.
    """

    offset: int
    length: int
    header: FrameHeader | None
    detail: str
    expected: int | None = None
    found: int | None = None


@dataclass(frozen=True, slots=True)
class TornTail:
    """Describe the bytes that an interrupted last write left, from ``offset`` to the end of the file."""

    offset: int
    length: int
    detail: str


#: What a scan yields, in the order of the offsets.
ScannedItem = IntactFrame | DamagedFrame | TornTail


class ByteSource(Protocol):
    """Bytes of which a part can be read: a segment file, or one object of a segment that lies in several."""

    size: int

    def read(self, length: int, offset: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the end."""
        ...


class _OpenFile:
    def __init__(self, files: Files, fd: int) -> None:
        self._files = files
        self._fd = fd
        self.size = files.size(fd)

    def read(self, length: int, offset: int) -> bytes:
        return self._files.read(self._fd, length, offset)


def scan_segment(files: Files, path: PurePath, *, dir_fd: int | None = None) -> Iterator[ScannedItem]:
    """Yield everything in a segment file, in order; a ``TornTail``, if there is one, comes last.

    Memory is bounded by one window of 1 MiB, whatever the frames' size; payloads are checked, not returned. The path is
    relative to the open directory ``dir_fd`` where one is given.

    Raises:
        OSError: the file can't be opened or read.
    """
    fd = files.open(path, dir_fd=dir_fd)
    try:
        yield from scan_source(_OpenFile(files, fd))
    finally:
        files.close(fd)


def scan_source(source: ByteSource) -> Iterator[ScannedItem]:
    """Do as ``scan_segment``, for bytes from any source."""
    size = source.size
    offset = 0
    owner: tuple[int, int, int] | None = None
    while offset < size:
        raw = source.read(min(HEADER_LENGTH, size - offset), offset)
        try:
            header, carried = decode_header(raw)
        except InvalidFrameError as error:
            following = _next_header(source, offset + 1, owner)
            if following is None:
                yield TornTail(offset, size - offset, str(error))
                return
            yield DamagedFrame(offset, following - offset, None, str(error))
            offset = following
            continue
        owner = owner or _owner_of(header)
        length = header.frame_length
        if offset + length > size:
            yield TornTail(offset, size - offset, f"{size - offset} of the last frame's {length} bytes are there")
            return
        found = _checksum(source, raw, offset + HEADER_LENGTH, header.payload_length)
        if found == carried:
            yield IntactFrame(offset, length, carried, header)
        else:
            yield DamagedFrame(offset, length, header, "wrong checksum", expected=carried, found=found)
        offset += length


def _checksum(source: ByteSource, header: bytes, offset: int, length: int) -> int:
    crc = header_checksum_seed(header)
    done = 0
    while done < length:
        piece = source.read(min(_WINDOW, length - done), offset + done)
        if not piece:
            break
        crc = google_crc32c.extend(crc, piece)
        done += len(piece)
    return crc


def _owner_of(header: FrameHeader) -> tuple[int, int, int]:
    return header.receiver_id, header.epoch, header.mark


def _next_header(source: ByteSource, start: int, owner: tuple[int, int, int] | None) -> int | None:
    """Return the offset of the next readable header that the same process wrote, or None."""
    size = source.size
    base = start
    length = _LEAST_WINDOW
    while size - base >= HEADER_LENGTH:
        window = source.read(min(length, size - base), base)
        length = min(2 * length, _WINDOW)
        at = window.find(MAGIC)
        while at >= 0:
            candidate = window[at : at + HEADER_LENGTH]
            if len(candidate) < HEADER_LENGTH:
                candidate = source.read(HEADER_LENGTH, base + at)
            try:
                header, _ = decode_header(candidate)
            except InvalidFrameError:
                pass
            else:
                if owner is None or _owner_of(header) == owner:
                    return base + at
            at = window.find(MAGIC, at + 1)
        if base + len(window) >= size:
            return None
        # A magic that crosses the end of a window is found in the next one.
        base += len(window) - (len(MAGIC) - 1)
    return None
