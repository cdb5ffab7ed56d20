"""A file that is followed, and comparisons of what is in files.

It knows nothing of the driver log, but that a content has a reading.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.receivers.files.content import DecompressedFile, LocalFile

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.followed.contents import Print
    from receiver_runtime.receivers.files.records import Reading

OVERLAP_BYTES = 65_536
# Inodes are offsets in the driver log.
_INODE_BITS = (1 << 63) - 1

#: Device and inode.
Key = tuple[int, int]


@dataclass(slots=True, eq=False)
class FollowedFile:
    """One file, or one content that is in no file now (``key`` is None)."""

    key: Key | None
    path: str
    codec: str | None
    size: int
    mtime_ns: int
    grown_at: float
    reading: Reading | None = None
    print_: Print = (0, "")
    #: Of more of its beginning; None: no more than the print has been read.
    second: Print | None = None
    #: The length at its last mark.
    marked: int = 0
    #: As much was known when it was given its name.
    bound_at: int = 0
    #: Where a content was that is in no file now.
    was: Key | None = None
    ours: bool = False
    tail: bytes = b""
    #: The size at which its last line had not ended.
    waits_at: int = -1
    gone_since: float | None = None
    #: While it waits, as the copy of a file that is there: when it was first seen as one, and last seen to grow.
    held_since: float | None = None
    held_from: float = 0.0
    #: A compressed file that is read to its end, is marked so, and could not be read as it was then.
    done: bool = False
    marker: str | None = None
    failed: tuple[int, int] | None = None
    registered: int = -1
    #: False: it was changed since its beginning was last looked at.
    is_checked: bool = True

    @property
    def is_there(self) -> bool:
        """Is the content in a file of the directory?"""
        return self.key is not None and self.gone_since is None


def opened(file: FollowedFile) -> LocalFile | DecompressedFile:
    """What is in a file. Raises OSError."""
    path = file.path
    return LocalFile(path) if file.codec is None else DecompressedFile(lambda: pa.OSFile(path), file.codec)


def inode_of(file: FollowedFile) -> str:
    return f"{0 if file.key is None else file.key[1] & _INODE_BITS:x}"


def age(file: FollowedFile) -> tuple[int, str]:
    return file.mtime_ns, file.path


def begins_with(path: str, head: bytes) -> bool:
    """Has a file this beginning? True where that can't be seen: who asks waits."""
    try:
        with closing(LocalFile(path)) as content:
            return content.read(0, len(head)) == head
    except OSError:
        return True


def end_alike(deleted: LocalFile, file: FollowedFile) -> bool:
    """Has a file what is in one that is deleted, at the end of what the shorter has? Raises OSError."""
    with closing(LocalFile(file.path)) as content:
        return _has_same_overlap(deleted, content)


def same_overlap(one: str, other: str) -> bool:
    """Do two files have the same bytes at the end of what the shorter has? False where that can't be seen."""
    try:
        with closing(LocalFile(one)) as first, closing(LocalFile(other)) as second:
            return _has_same_overlap(first, second)
    except OSError:
        return False


def _has_same_overlap(first: LocalFile, second: LocalFile) -> bool:
    end = min(first.stat.st_size, second.stat.st_size)
    begin = max(0, end - OVERLAP_BYTES)
    return first.read(begin, end - begin) == second.read(begin, end - begin)
