"""Spool records on the disk until the receiver has registered them.

Owns the folder of one sender: its lock, its segments, its state, and the records that were refused. It numbers records
by their index, and knows the offsets of those that are sent. It never talks to a receiver, and deletes no record that
is not acknowledged.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import threading
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.client.errors import RecordRefusedError, SpoolDamagedError, SpoolFullError, SpoolLockedError
from forebay.client.refused_records import RefusedRecords
from forebay.client.segment import HEAD_BYTES, SUFFIX, Segment, first_of, frame_of
from forebay.client.spool_state import SpoolState, read_state, sync_folder

if TYPE_CHECKING:
    from pathlib import Path

    from forebay.client.framing import Framing

_log = logging.getLogger("forebay.client")

_SEGMENT_BYTES = 2**23
_LEAST_SPOOL_BYTES = 2**16
_SEGMENTS = 4  # a spool's limit is at least so many segments, so that room comes in parts


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold records of one request: the index of the first, how many, and their bytes as they are sent."""

    first: int
    count: int
    body: bytes

    @property
    def end(self) -> int:
        """Return the index behind the last record."""
        return self.first + self.count


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
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(folder)
        try:
            self.refused = RefusedRecords(folder)
            self.state, self._segments = self._opened(channel)
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
        parts: list[bytes] = []
        size, at = 0, index
        for frame, records in frames:
            upto = min(until, frame.index + frame.count)
            part = records
            if at > frame.index or upto < frame.index + frame.count:
                begin, end = self._framing.cut(records, (at - frame.index, upto - frame.index))
                part = records[begin:end]
            if size + len(part) > most_bytes:
                if parts:
                    break
                part, upto = self._fitting(part, at, upto, most_bytes)
            parts.append(part)
            size += len(part)
            at = upto
            if at >= until or size >= most_bytes:
                break
        return Batch(index, at - index, b"".join(parts))

    def _fitting(self, records: bytes, index: int, until: int, most_bytes: int) -> tuple[bytes, int]:
        """Return as many records as fit, at least one, and the index behind them."""
        ends = self._framing.cut(records, range(1, until - index + 1))
        count = max(1, bisect_right(ends, most_bytes))
        return records[: ends[count - 1]], index + count

    # -- what is added and goes ----------------------------------------------------------------------------------------

    def append(self, records: bytes, count: int) -> int:
        """Append records, all or none, and return the index behind the last.

        Raises:
            SpoolFullError: there is no room now.
            RecordRefusedError: there is never room for so many bytes.
            SpoolDamagedError: an earlier write failed, so that the end is not known.
            OSError: they were not written.
        """
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
                raise SpoolFullError(
                    f"{self.folder} has {self.used_bytes} bytes, spool_bytes is {self._most_bytes}, and "
                    f"{self.end - self.acknowledged} records are not registered yet"
                )
            active = self._segments[-1]
            try:
                active.append(frame, count)
            except OSError:
                self._check_end(active)
                raise
            if self.wake_at is not None and active.end >= self.wake_at:
                self.changed.notify_all()
            return active.end

    def sync(self, upto: int | None = None) -> int:
        """Have records on the disk, and return the index up to which they are.

        Raises:
            SpoolDamagedError: the disk failed.
        """
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

    def bind(self, *, shift: int) -> None:
        """Note durably which offsets the records have, before any is sent."""
        with self.changed:
            self.state.shift = shift
            self.state.unsent_from = None
            self.state.write(self.folder)

    def close(self) -> None:
        """Close the files. If all is registered, an empty segment is left, which keeps the next index."""
        with self._sync_lock, self.changed:
            try:
                if self._broken is None and self.first < self.end == self.acknowledged:
                    self._rotate()
            finally:
                for segment in self._segments:
                    segment.close()
                os.close(self._lock)
                self._broken = SpoolDamagedError(f"{self.folder} is closed")

    # -- its files -----------------------------------------------------------------------------------------------------

    def _opened(self, channel: str) -> tuple[SpoolState, list[Segment]]:
        state = read_state(self.folder)
        names = sorted(path for path in self.folder.iterdir() if path.name.endswith(SUFFIX))
        if not names:
            # It is new, or its records are lost: then the channel goes on where the receiver is.
            if state is not None and state.shift is not None:
                _log.warning("%s has no records any more: it goes on where its channel is", self.folder)
            state = SpoolState(channel, self._framing.name)
            state.write(self.folder)
            segments = [Segment.create(self.folder, 0)]
            sync_folder(self.folder)
            return state, segments
        if state is None:
            raise SpoolDamagedError(
                f"{self.folder} has records, and no state.json: restore it, or move the spool away and use another one"
            )
        for name, theirs, ours in (("channel", state.channel, channel), ("records", state.records, self._framing.name)):
            if theirs != ours:
                raise SpoolDamagedError(
                    f"{self.folder} is a spool of {name} {theirs!r}, not {ours!r}: open it so, or take another folder"
                )
        return state, self._opened_segments(state, names)

    def _opened_segments(self, state: SpoolState, names: list[Path]) -> list[Segment]:
        segments: list[Segment] = []
        try:
            segments.extend(Segment.open(path, first_of(path)) for path in names)
            for segment, following in itertools.pairwise(segments):
                segment.end = following.first
            if torn := segments[-1].recover():
                _log.warning("%s: cut %d bytes of a record that was not written whole", segments[-1].path, torn)
            os.fsync(segments[-1].descriptor)
            if state.unsent_from is None:
                state.unsent_from = segments[-1].end
                state.write(self.folder)
        except BaseException:
            for segment in segments:
                segment.close()
            raise
        return segments

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
        sync_folder(self.folder)
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
        if self._broken is not None:
            raise self._broken

    def _check_end(self, segment: Segment) -> None:
        """Take no more records if a failed write may have left bytes behind the end."""
        if os.fstat(segment.descriptor).st_size != segment.size:
            self._break(f"{segment.path} has an unknown end after a failed write")

    def _break(self, why: str) -> None:
        self._broken = SpoolDamagedError(f"{why}: close the sender, mend the disk, and open it again")
        raise self._broken


def _locked(folder: Path) -> int:
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SpoolLockedError(
            f"{folder} is open in another process or sender: give each a spool and a channel of its own"
        ) from error
    return descriptor
