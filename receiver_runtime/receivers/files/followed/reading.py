"""Read one file: its next piece, and keep files open for that.

This module owns open files. It moves a file's position and notes how its last line ends. It must never ask the driver
log, and never change which content a file has: it raises ``ContentReplacedError`` where the content is another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.content import LocalFile, OpenContents
from receiver_runtime.receivers.files.followed.contents.comparisons import (
    is_unchanged,
    open_content,
    open_plain,
    read_head,
)
from receiver_runtime.receivers.files.followed.contents.followed_file import key_of
from tracker_store.receivers.source_lag import Unread

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.receivers.files.content import Content
    from receiver_runtime.receivers.files.declaration import FollowedSource
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.directory import LookSchedule
    from receiver_runtime.receivers.files.records import Limits, LineReader, Part, Reading
    from receiver_runtime.watching.clock import Clock

    #: Returns the bytes at an offset, up to a size. Raises OSError.
    ReadBytes = Callable[[int, int], bytes]

_MOST_OPEN = 128  # plain files that stay open, so that a deleted one can be read to its end: few of the descriptors
_MOST_DECOMPRESSED = 4  # compressed files that stay open: each holds the memory of a decompressor
_TAIL_BYTES = 64  # bytes before the position that are compared before the next read: cheap, and they hold a time stamp


class ContentReplacedError(Exception):
    """Signal that the file has another content than the one that is read: identify it again."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Hold what was read of a file, and a way to read the same content again.

    Args:
        part: None where the piece has nothing in it.
        reread: None where the position has not moved.
    """

    part: Part | None
    reread: ReadBytes | None


def unread_of(file: FollowedFile, reading: Reading) -> Unread:
    """Return how many bytes of a file are not read; a last line that has not ended counts as read."""
    modified = file.mtime_ns / 10**9
    if file.codec is not None:
        return Unread(0 if file.done else file.size, "bytes", oldest_at=None if file.done else modified)
    waits = file.waits_at == file.size
    return Unread(0 if waits else max(0, file.size - reading.position), "bytes", end=file.size, oldest_at=modified)


class OpenFiles:
    """Hold the open files of contents, by the names of the contents."""

    def __init__(self) -> None:
        self._plain: OpenContents[Content] = OpenContents(_MOST_OPEN)
        self._decompressed: OpenContents[Content] = OpenContents(_MOST_DECOMPRESSED)

    def plain(self, name: str) -> LocalFile | None:
        """Return a content's open plain file, or None."""
        content = self._plain.get(name)
        assert content is None or isinstance(content, LocalFile)
        return content

    def keep_plain(self, name: str, content: LocalFile) -> None:
        """Keep a plain file open."""
        self._plain.put(name, content)

    def decompressed(self, name: str) -> Content | None:
        """Return a content's open compressed file, or None."""
        return self._decompressed.get(name)

    def keep_decompressed(self, name: str, content: Content) -> None:
        """Keep a compressed file open."""
        self._decompressed.put(name, content)

    def close_decompressed(self, name: str) -> None:
        """Close a content's compressed file, if it is open."""
        self._decompressed.close(name)

    def close(self, name: str) -> None:
        """Close a content's files, if they are open."""
        self._plain.close(name)
        self._decompressed.close(name)

    def close_all(self) -> None:
        """Close every file."""
        self._plain.close_all()
        self._decompressed.close_all()


class PieceReader:
    """Read files on from their positions."""

    def __init__(
        self,
        settings: FollowedSource,
        lines: LineReader,
        open_files: OpenFiles,
        schedule: LookSchedule,
        clock: Clock,
    ) -> None:
        self._complete_after = settings.complete_after
        self._join_timeout = settings.join_timeout
        self._lines = lines
        self._open = open_files
        self._schedule = schedule
        self._clock = clock

    def has_more(self, file: FollowedFile, now: float) -> bool:
        """Return whether a file of ours may have something to be read."""
        reading = file.reading
        if (
            reading is None
            or not file.ours
            or file.done
            or file.refused is not None
            or file.failed == (file.size, file.mtime_ns)
        ):
            return False
        if file.codec is not None:
            return file.gone_since is None
        if file.size <= reading.position:
            return False
        if not file.is_present:
            return file.key is not None and self._open.plain(reading.name) is not None
        return (
            file.waits_at != file.size
            or file.is_complete(now, self._complete_after)
            or file.is_overdue(reading.position, now, self._join_timeout)
        )

    def read(self, file: FollowedFile, reading: Reading, limits: Limits) -> FilePiece | None:
        """Return a file's next piece, or None where there is none. Raises OSError, and ContentReplacedError."""
        return (self._read_plain if file.codec is None else self._read_compressed)(file, reading, limits)

    def _read_plain(self, file: FollowedFile, reading: Reading, limits: Limits) -> FilePiece | None:
        content = self._content_of(file, reading)
        if content is None:
            return None
        at, large = reading.position, reading.large
        part = self._next_lines(file, reading, content, limits)
        # Compare after the read: drop what was read of a file that was truncated meanwhile.
        if not is_unchanged(file, content, at):
            reading.position, reading.large = at, large
            if file.is_present:
                raise ContentReplacedError
            return None
        file.waits_at = file.size if part.waits else -1
        file.note_open_records(part.open_at, self._clock.monotonic())
        if reading.position == at:
            return FilePiece(part if part.batch is not None or part.letters or part.more else None, None)
        begin = max(0, reading.position - _TAIL_BYTES)
        file.tail = content.read(begin, reading.position - begin)
        return FilePiece(part, content.read)

    def _next_lines(self, file: FollowedFile, reading: Reading, content: LocalFile, limits: Limits) -> Part:
        now = self._clock.monotonic()
        return self._lines.read(
            reading,
            content,
            limits,
            path=file.path,
            modified_ms=content.stat.st_mtime_ns // 10**6,
            ends=file.gone_since is not None,
            completes=file.is_complete(now, self._complete_after),
            closes=file.is_overdue(reading.position, now, self._join_timeout),
        )

    def _content_of(self, file: FollowedFile, reading: Reading) -> LocalFile | None:
        content = self._open.plain(reading.name)
        if content is None:
            if not file.is_present:
                return None
            content = open_plain(file)
            if key_of(content.stat) != file.key:
                # The file was renamed since the last look.
                content.close()
                self._schedule.hurry()
                return None
            self._open.keep_plain(reading.name, content)
        return content

    def _read_compressed(self, file: FollowedFile, reading: Reading, limits: Limits) -> FilePiece | None:
        content = self._open.decompressed(reading.name)
        if content is None:
            content = open_content(file)
            self._open.keep_decompressed(reading.name, content)
        part = self._lines.read(reading, content, limits, path=file.path, modified_ms=file.mtime_ns // 10**6, ends=True)
        if part.batch is None and not part.letters and not part.more:
            file.done = True
            self._open.close_decompressed(reading.name)
            return None
        there = content
        # The beginning comes from a stream of its own, because this one does not go back.
        return FilePiece(part, lambda at, size: there.read(at, size) if at else read_head(file).data[:size])
