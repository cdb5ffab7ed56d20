"""Spool records on the disk until the receiver has registered them.

Owns the folder of one sender: its lock, its segments, its state, and the records that were refused. It numbers records
by their index, and knows the offsets of those that are sent. It never talks to a receiver, and deletes no record that
is not acknowledged.
"""

from __future__ import annotations

import contextlib
import os
import threading
from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from forebay.client.batch import Batch, batch_of
from forebay.client.errors import RecordRefusedError, SpoolDamagedError, SpoolFullError, SpoolLockedError
from forebay.client.refused_records import RefusedRecords
from forebay.client.segment import HEAD_BYTES, Segment, frame_of
from forebay.client.spool_files import locked, opened
from forebay.client.spool_state import sync_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from forebay.client.framing import Framing

_SEGMENT_BYTES = 2**23
_LEAST_SPOOL_BYTES = 2**16
_SEGMENTS = 4  # a spool's limit is at least this many segments, so that room comes in parts


class Spool:
    """Hold one open spool. Any thread may call its methods; `changed` is notified of what others wait for."""

    def __init__(self, folder: Path, channel: str, framing: Framing, *, most_bytes: int) -> None:
        """Open or create a spool.

        Raises:
            SpoolLockedError: it is open already.
            SpoolDamagedError: a file is not as it was written, or the spool is of another channel.
            OSError: the folder can't be used.
        """
        if most_bytes < _LEAST_SPOOL_BYTES:
            raise ValueError(f"spool_bytes is {most_bytes}: give it at least {_LEAST_SPOOL_BYTES}")
        self.folder = folder
        self.changed = threading.Condition()
        #: An append that reaches this index notifies.
        self.wake_at: int | None = None
        self._framing = framing
        self._most_bytes = most_bytes
        self._segment_bytes = min(_SEGMENT_BYTES, most_bytes // _SEGMENTS)
        self._sync_lock = threading.Lock()
        self._broken: SpoolDamagedError | None = None
        self._process = os.getpid()
        _make(folder)
        self._lock = locked(folder)
        try:
            self.refused = RefusedRecords(folder)
            self.state, self._segments = opened(folder, channel, framing.name)
        except BaseException:
            os.close(self._lock)
            raise
        # Of all segments but the last.
        self._segment_sizes = sum(segment.size for segment in self._segments[:-1])
        self._synced = self.end
        #: The index up to which all records are registered.
        self.acknowledged = self._segments[0].first

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """Return the index of the first record that it holds."""
        return self._segments[0].first

    @property
    def end(self) -> int:
        """Return the index behind the last record: how many it has taken since it was made."""
        return self._segments[-1].end

    @property
    def used_bytes(self) -> int:
        """Return the bytes of its files."""
        return self._segment_sizes + self._segments[-1].size + self.refused.size

    def read(self, index: int, *, until: int, most_bytes: int) -> Batch:
        """Return records from an index on, at least one, without those that were refused.

        Args:
            index: smaller than `until`, and of no refused record.
            until: the index behind the last one.
            most_bytes: of them; one record may have more.
        """
        with self.changed:
            self._check()
            place = bisect_right(self._segments, index, key=lambda segment: segment.first) - 1
            segment = self._segments[place]
            until = min([until, segment.end, *(refused for refused in self.state.refused if refused > index)])
            frames = segment.read(index, most_bytes + HEAD_BYTES)
        return batch_of(frames, self._framing, index=index, until=until, most_bytes=most_bytes)

    @property
    def is_of_another_process(self) -> bool:
        """Return whether this is the child of the process that opened it: a fork shares the lock, not the sizes."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise SpoolLockedError in another process, before it waits for a lock."""
        if self.is_of_another_process:
            raise SpoolLockedError(
                f"{self.folder} was opened by process {self._process}, and this is its child {os.getpid()}: open a "
                "sender with a spool and a channel of its own after the fork"
            )

    # -- what is added and goes ----------------------------------------------------------------------------------------

    def append(self, records: bytes, count: int) -> int:
        """Append records, all or none, and return the index behind the last.

        Raises:
            SpoolFullError: there is no room now.
            RecordRefusedError: the records are larger than the whole spool.
            SpoolDamagedError: an earlier write failed, so that the end is not known.
            SpoolLockedError: another process opened it.
            OSError: they were not written.
        """
        self.check_process()
        frame = frame_of(records, count)
        with self.changed:
            self._check()
            if len(frame) > self._most_bytes // 2:
                raise RecordRefusedError(
                    f"a record of {len(records)} bytes has no room in a spool of {self._most_bytes}: raise spool_bytes"
                )
            active = self._segments[-1]
            if active.end > active.first and active.size + len(frame) > self._segment_bytes:
                self._rotate()
            if self.used_bytes + len(frame) > self._most_bytes:
                self.refused.notice_removal()
            if self.used_bytes + len(frame) > self._most_bytes:
                raise SpoolFullError(
                    f"{self.folder} has {self.used_bytes} bytes, spool_bytes is {self._most_bytes}, and "
                    f"{self.end - self.acknowledged} records are not registered yet"
                )
            active = self._segments[-1]
            active.append(frame, count)
            if self.wake_at is not None and active.end >= self.wake_at:
                self.changed.notify_all()
            return active.end

    def sync(self, upto: int | None = None) -> int:
        """Have records on the disk, and return the index up to which they are.

        Raises:
            SpoolDamagedError: the disk failed.
            SpoolLockedError: another process opened it.
        """
        self.check_process()
        with self._sync_lock:
            with self.changed:
                self._check()
                if self._synced >= (self.end if upto is None else upto):
                    return self._synced
                end = self.end
                # The segment may be closed meanwhile.
                descriptor = os.dup(self._segments[-1].descriptor)
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                self._break(f"{self.folder} can't be synced: {error}")
            finally:
                os.close(descriptor)
            with self.changed:
                self._synced = max(self._synced, end)
                return self._synced

    def acknowledge(self, index: int) -> None:
        """Note that all records before an index are registered, and delete segments that have no other."""
        with self.changed:
            if index <= self.acknowledged:
                return
            self.acknowledged = index
            self._delete_acknowledged()
            self.changed.notify_all()

    def take_back(self, index: int) -> None:
        """Keep records that were acknowledged, from an index on and as far as they are still there."""
        with self.changed:
            self.acknowledged = min(self.acknowledged, max(index, self.first))

    def set_aside(self, index: int, status: int, reason: str, record: bytes) -> None:
        """Keep a record that was refused, durably, and give its offset to the next one. Raises OSError."""
        with self.changed:
            self.refused.add(index, status, reason, record)
            before = self.state.refused
            self.state.refused = sorted([*before, index])
            try:
                self.state.write(self.folder)
            except OSError:
                self.state.refused = before
                raise

    def note_input(self, first: int, *, is_open: bool) -> None:
        """Note durably where the last input began, and whether it is still read. Raises OSError: nothing is noted."""
        with self.changed:
            self._check()
            before = self.state.input_first, self.state.is_input_open
            self.state.input_first, self.state.is_input_open = first, is_open
            try:
                self.state.write(self.folder)
            except OSError:
                self.state.input_first, self.state.is_input_open = before
                raise

    def bind(self, shift: int, *, doubted: Sequence[int] = ()) -> None:
        """Note durably which offsets the records have, before any is sent.

        Args:
            shift: see `SpoolState`.
            doubted: first and end of records that the receiver had before they were sent.

        Raises:
            OSError: nothing is noted.
        """
        with self.changed:
            bound = replace(self.state, shift=shift, unsent_from=None, doubted=list(doubted))
            bound.write(self.folder)
            self.state = bound

    def close(self) -> None:
        """Close the files. If all is registered, an empty segment is left, which keeps the next index."""
        if self.is_of_another_process:
            # The locks may be held by threads that only the other process has, and its files are not to change.
            self._close_files()
            return
        with self._sync_lock, self.changed:
            try:
                if self._broken is None and self.first < self.end == self.acknowledged:
                    # On a full disk the segment stays: its records are found to be registered.
                    with contextlib.suppress(OSError):
                        self._rotate()
            finally:
                self._close_files()
                self._broken = SpoolDamagedError(f"{self.folder} is closed")

    def _close_files(self) -> None:
        for segment in self._segments:
            segment.close()
        os.close(self._lock)

    # -- its files -----------------------------------------------------------------------------------------------------

    def _rotate(self) -> None:
        """Begin a segment. The one before is on the disk as a whole, so only the last one can have a torn tail."""
        active = self._segments[-1]
        try:
            active.sync()
        except OSError as error:
            self._break(f"{active.path} can't be synced: {error}")
        self._synced = active.end
        self._segments.append(Segment.create(self.folder, active.end))
        self._segment_sizes += active.size
        self._delete_acknowledged()

    def _delete_acknowledged(self) -> None:
        # The oldest first: a kill leaves no hole.
        while len(self._segments) > 1 and self._segments[0].end <= self.acknowledged:
            gone = self._segments.pop(0)
            self._segment_sizes -= gone.size
            gone.remove()
            if self.state.forget_before(self.first):
                self.state.write(self.folder)

    def _check(self) -> None:
        if self._segments[-1].is_broken:
            self._break(f"{self._segments[-1].path} has an unknown end after a failed write")
        if self._broken is not None:
            raise self._broken

    def _break(self, why: str) -> NoReturn:
        self._broken = SpoolDamagedError(f"{why}: close the sender, mend the disk, and open it again")
        raise self._broken


def _make(folder: Path) -> None:
    """Make a folder and those above it, and have their names on the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for one in missing:
        sync_folder(one.parent)
