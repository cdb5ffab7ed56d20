"""Hold the state of one followed file.

``FollowedFile`` owns what is known in memory of one file and of the content in it. It must never read a file, ask the
driver log, or know other files: ``bindings`` holds the files, and ``comparisons`` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping

    from receiver_runtime.receivers.files.file_kinds import Codec
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.receivers.files.local_tree import LocalTree
    from receiver_runtime.receivers.files.records import Reading

#: Device and inode.
Key = tuple[int, int]

#: Seconds: how long to wait for the copy of a file that is gone or truncated; and how long a copy that stands still
#: waits for its original to be truncated. A rotation takes less between the two steps.
COPY_SECONDS = 5.0
_GROWING_SECONDS = 10.0  # seconds after its last growth in which a file counts as growing: several pauses of a writer
_INODE_BITS = (1 << 63) - 1  # the driver log stores an inode as an offset, a signed 64-bit integer


@dataclass(slots=True, eq=False)
class FollowedFile:
    """Hold the state of one file, or of one content that is in no file now (``key`` is None)."""

    key: Key | None
    path: str
    #: Opens the file, if it is still one that may be read.
    tree: LocalTree
    size: int
    mtime_ns: int
    #: When the file was last seen to change, on the monotonic clock.
    grown_at: float
    #: How the content is compressed, by its first bytes; None: it is plain, or not identified.
    codec: Codec | None = None
    #: Why a file of its kind is not read; None: it is, as far as is known.
    refused: OSError | None = None
    #: Why it could not be read when that was tried last.
    unreadable: OSError | None = None
    #: How far the content is read; None: the content is not identified.
    reading: Reading | None = None
    fingerprint: Fingerprint = (0, "")
    #: Covers more of the beginning than ``fingerprint``; None: no more than that has been read.
    second: Fingerprint | None = None
    #: The position of the last mark; 0: there is none.
    marked: int = 0
    #: The number of refreshes of the known contents at which the content got its name.
    bound_at: int = 0
    #: The file in which the content was, where it is in no file now.
    last_key: Key | None = None
    #: This receiver reads the file.
    ours: bool = False
    #: The last bytes that were read.
    tail: bytes = b""
    #: The size at which the last line had not ended; -1: it has.
    waits_at: int = -1
    #: Where records begin that may have more lines, and when each was first seen.
    open_records: Mapping[int, float] = field(default_factory=dict)
    #: When the file was first seen to be missing.
    gone_since: float | None = None
    #: When the file was first seen to be a copy of a present file; and, while it waits as one, last seen to grow.
    held_since: float | None = None
    held_from: float = 0.0
    #: A compressed file is read to its end.
    done: bool = False
    #: The name that registers a compressed file as done.
    done_name: str | None = None
    #: Size and modification time at which the file could not be read.
    failed: tuple[int, int] | None = None
    #: The position up to which the driver log has the content.
    registered: int = -1
    #: The beginning has been checked since the file last changed.
    is_checked: bool = True

    @property
    def is_present(self) -> bool:
        """Return whether the content is in a file of the directory."""
        return self.key is not None and self.gone_since is None

    @property
    def inode(self) -> str:
        """Return the inode in hexadecimal, as names of contents have it."""
        return f"{0 if self.key is None else self.key[1] & _INODE_BITS:x}"

    @property
    def age(self) -> tuple[int, str]:
        """Return the key that sorts files from the oldest to the newest."""
        return self.mtime_ns, self.path

    def is_growing(self, now: float) -> bool:
        """Return whether the file grew a short time ago."""
        return now - self.grown_at <= _GROWING_SECONDS

    def is_complete(self, now: float, after: float | None) -> bool:
        """Return whether the file has not grown for ``after`` seconds; with None no file is complete."""
        return after is not None and now - self.grown_at >= after

    def note_open_records(self, places: Iterable[int], now: float) -> None:
        """Note where all records begin that may have more lines."""
        self.open_records = {at: self.open_records.get(at, now) for at in places}

    def is_overdue(self, position: int, now: float, after: float | None) -> bool:
        """Return whether a record from a position on has waited for more lines for ``after`` seconds.

        That at the position may be complete, and wait for the end of one that began between its lines.
        """
        since = [first_seen for at, first_seen in self.open_records.items() if at >= position]
        return after is not None and bool(since) and now - min(since) >= after

    def note_failure(self, error: OSError) -> None:
        """Note that the file can't be read as it is now."""
        self.failed = (self.size, self.mtime_ns)
        self.unreadable = error

    def why_unread(self, now: float) -> OSError | None:
        """Return why the file is not read; None: it is, or it may be under way."""
        is_settled = now - self.grown_at > _GROWING_SECONDS
        return self.refused or (self.unreadable if is_settled else None)

    def clear_identity(self) -> None:
        """Forget which content the file has, so that it is identified again."""
        self.reading = None
        self.held_since = None
        self.second = None
        self.marked = 0
        self.tail = b""
        self.waits_at = -1
        self.open_records = {}

    def leave_file(self, now: float) -> None:
        """Become a content that is in no file."""
        self.key, self.last_key = None, self.key
        self.gone_since = now

    def move_to(self, file: FollowedFile) -> None:
        """Become the content of another file, which has a copy of it."""
        assert self.reading is not None
        self.key, self.path, self.codec, self.done_name = file.key, file.path, file.codec, file.done_name
        self.size, self.mtime_ns, self.grown_at = file.size, file.mtime_ns, file.grown_at
        self.gone_since = self.failed = None
        self.waits_at = -1
        if self.codec is not None:
            self.tail = b""
        # A line that is too large begins again: the copy has it at the same place.
        self.reading.large = None


def key_of(status: os.stat_result) -> Key:
    """Return the device and inode of a file."""
    return status.st_dev, status.st_ino
