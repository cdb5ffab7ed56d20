"""Make one block store of several replicas: written in parallel, read in turn, under one handle.

Owns the rule that a segment has the same path in every replica and a frame the same offset, so that one handle serves
all. A replica that fails or does not answer in time is reported to the listener and gets nothing more of this segment.
It holds a prefix of the segment, which a repair completes from the other replicas. The next segment tries it again. A
write succeeds if at least ``min_replicas`` have it; otherwise the segment ends in every replica, and the frames go to a
new one.

Each replica has one thread for writes, in order, so a replica that hangs costs one thread and is refused at once until
it answers.
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Protocol

from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import (
    BlockCorruptError,
    BlockMissingError,
    BlockStoreError,
    StoreUnavailableError,
    segment_ended,
    segment_write_failed,
)
from receiver_runtime.block_store.frames.reading import StoredFrame, batches_of
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, ScannedItem, TornTail
from receiver_runtime.block_store.stores.call_pool import CallPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import pyarrow as pa

    from receiver_runtime.block_store.frames.frame import EncodedFrame
    from receiver_runtime.block_store.frames.reading import FrameAt
    from receiver_runtime.block_store.stores.interface import Replica, Segment

_READ_THREADS = 4
_SCAN_TIMEOUTS = 10  # how many time-outs a scan may take: it reads a whole segment
_NOTE_SECONDS = 5.0  # how long to wait for a note at most: it is only a hint
_FAILURES = (OSError, BlockStoreError)


class ReplicaListener(Protocol):
    """Receive reports of changes of the replicas. Each method returns at once."""

    def on_replica_lost(self, name: str, detail: str) -> None:
        """Note that a replica gets nothing more of the current segment."""
        ...

    def on_replica_back(self, name: str) -> None:
        """Note that a replica that was lost takes part in the current segment."""
        ...

    def on_replica_damaged(self, name: str, receiver_id: int, detail: str) -> None:
        """Note that a replica that answers lacks a frame of this receiver, or has other bytes; another one has it."""
        ...


class _NoListener:
    def on_replica_lost(self, name: str, detail: str) -> None:
        """Do nothing."""

    def on_replica_back(self, name: str) -> None:
        """Do nothing."""

    def on_replica_damaged(self, name: str, receiver_id: int, detail: str) -> None:
        """Do nothing."""


class _Site:
    """One replica with its threads."""

    def __init__(self, store: Replica) -> None:
        self.store = store
        self.name = store.name
        self.writes = CallPool(f"writing to {store.name}", limit=1)
        self.reads = CallPool(f"reading from {store.name}", limit=_READ_THREADS)
        self.lost = False


class ReplicatedBlockStore:
    """See the module.

    Args:
        replicas: at least one, in the order in which they are read.
        min_replicas: how many replicas must have a write.
        timeout: seconds for one write, or one read of one replica.
        listener: gets reports of replicas that are lost, back or damaged.
        keys: decrypt encrypted blocks. None: they can't be decrypted.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        *,
        min_replicas: int = 1,
        timeout: float = 30.0,
        listener: ReplicaListener | None = None,
        keys: BlockKeys | None = None,
    ) -> None:
        self._keys = keys or BlockKeys()
        self.replicas = tuple(replicas)
        self.name = ", ".join(store.name for store in self.replicas)
        self._sites = [_Site(store) for store in self.replicas]
        self._min_replicas = min_replicas
        self._timeout = timeout
        self._listener = listener or _NoListener()

    def check(self) -> None:
        """Check that enough replicas for a write are the expected ones. Raises StoreUnavailableError with the others.

        Replicas are checked in turn, so that a hanging one is waited for only where it is needed.
        """
        wanted = self._min_replicas
        said: list[str] = []
        for site in self._sites:
            if not wanted:
                return
            try:
                site.reads.call(site.store.check, self._timeout)
            except _FAILURES as error:
                said.append(f"{site.name}: {error}")
            else:
                wanted -= 1
        if wanted:
            raise StoreUnavailableError(self.name, "; ".join(said))

    def create_segment(self, path: str) -> ReplicatedSegment:
        """Begin a segment in every replica that can.

        Raises:
            BlockStoreError: fewer than ``min_replicas`` can.
        """
        segment = ReplicatedSegment(
            path, self._sites, min_replicas=self._min_replicas, timeout=self._timeout, listener=self._listener
        )
        segment.open()
        return segment

    def read_frame(self, path: str, offset: int, length: int, crc32c: int) -> StoredFrame:
        """Return one frame by its handle, from the first replica that has it whole.

        Raises, with the answer of each replica:
            StoreUnavailableError: one replica did not answer, and no other has it.
            BlockCorruptError: one replica has other bytes, and no other has it.
            BlockMissingError: no replica has it.
        """
        said: list[str] = []
        unavailable = False
        corrupt: BlockCorruptError | None = None
        damaged: list[tuple[str, str]] = []
        for site in self._sites:
            try:
                frame = site.reads.call(partial(site.store.read_frame, path, offset, length, crc32c), self._timeout)
            except (BlockMissingError, BlockCorruptError) as error:
                corrupt = error if isinstance(error, BlockCorruptError) else corrupt
                damaged.append((site.name, f"{path}, offset {offset}: {error.detail}"))
                said.append(f"{site.name}: {error.detail}")
            except _FAILURES as error:
                unavailable = True
                said.append(f"{site.name}: {error}")
            else:
                for name, detail in damaged:
                    self._listener.on_replica_damaged(name, frame.header.receiver_id, detail)
                return frame
        detail = "; ".join(said)
        if unavailable:
            raise StoreUnavailableError(self.name, f"reading {path}, offset {offset}: {detail}")
        if corrupt is not None:
            raise BlockCorruptError(path, offset, corrupt.expected, corrupt.found, detail)
        raise BlockMissingError(path, offset, length, f"no replica has it: {detail}")

    def read_batches(self, path: str, offset: int, length: int, crc32c: int) -> Iterator[pa.RecordBatch]:
        """Return the record batches of one block by its handle; see ``read_frame``."""
        return batches_of(self.read_frame(path, offset, length, crc32c), path, offset, self._keys)

    @property
    def crash_may_spoil(self) -> bool:
        """Return whether it may in every replica. If not, other bytes in one replica may not be due to a crash."""
        return all(site.store.crash_may_spoil for site in self._sites)

    def lost_frames(self, path: str, frames: Sequence[FrameAt]) -> set[FrameAt]:
        """Return the frames that every replica has lost; see ``BlockStore``."""
        lost = set(frames)
        said: list[str] = []
        for site in self._sites:
            asked = sorted(lost)
            if not asked:
                break
            try:
                lost &= site.reads.call(partial(site.store.lost_frames, path, asked), self._timeout * _SCAN_TIMEOUTS)
            except _FAILURES as error:
                said.append(f"{site.name}: {error}")
        if lost and said:
            raise StoreUnavailableError(self.name, f"looking for the blocks of {path}: {'; '.join(said)}")
        return lost

    def scan(self, path: str) -> Iterator[ScannedItem]:
        """Yield everything in one segment: a frame that is whole in any replica is intact.

        Raises:
            FileNotFoundError: no replica has it.
            StoreUnavailableError: one replica does not answer, and no other has it.
        """
        scans: list[list[ScannedItem]] = []
        said: list[str] = []
        for site in self._sites:
            try:
                scans.append(site.reads.call(partial(_whole_scan, site.store, path), self._timeout * _SCAN_TIMEOUTS))
            except FileNotFoundError:
                continue
            except _FAILURES as error:
                said.append(f"{site.name}: {error}")
        if scans:
            return merge_scans(scans)
        if said:
            raise StoreUnavailableError(self.name, f"scanning {path}: {'; '.join(said)}")
        raise FileNotFoundError(f"no replica has {path}")

    def segment_paths(self, under: str = "") -> Iterator[str]:
        """Yield the path of everything in any replica; see ``BlockStore``. Raises if one does not answer."""
        found: set[str] = set()
        for site in self._sites:
            found |= site.reads.call(partial(_whole_listing, site.store, under), self._timeout)
        yield from found

    def leave_note(self, key: str, text: bytes, *, about: str) -> None:
        """Keep a note in the first replica that takes it, except the one that it is about; see ``replica_notes``."""
        for site in self._sites:
            if site.name != about:
                try:
                    site.reads.call(partial(site.store.leave_note, key, text), min(self._timeout, _NOTE_SECONDS))
                except _FAILURES:
                    continue
                return

    def take_notes(self) -> list[bytes]:
        """Return and remove the notes in every replica that answers."""
        notes: list[bytes] = []
        for site in self._sites:
            with contextlib.suppress(*_FAILURES):
                notes += site.reads.call(site.store.take_notes, min(self._timeout, _NOTE_SECONDS))
        return notes

    def delete_segment(self, path: str) -> None:
        """Delete a segment in every replica. Raises StoreUnavailableError if one failed, after all have been asked."""
        self._delete(path, lambda store: store.delete_segment(path))

    def delete_directory(self, path: str) -> None:
        """Delete an empty directory in every replica that has directories. Raises as ``delete_segment``."""
        self._delete(path, lambda store: store.delete_directory(path))

    def _delete(self, path: str, delete: Callable[[Replica], None]) -> None:
        said: list[str] = []
        for site in self._sites:
            try:
                site.reads.call(partial(delete, site.store), self._timeout)
            except _FAILURES as error:
                said.append(f"{site.name}: {error}")
        if said:
            raise StoreUnavailableError(self.name, f"deleting {path}: {'; '.join(said)}")


class ReplicatedSegment:
    """Write a segment to several replicas. One thread at a time; the write-ahead log holds the lock."""

    def __init__(
        self, path: str, sites: Sequence[_Site], *, min_replicas: int, timeout: float, listener: ReplicaListener
    ) -> None:
        self.path = path
        #: At least ``min_replicas`` have every frame up to here.
        self.synced_length = 0
        self._parts = [_ReplicaPart(site, path) for site in sites]
        self._min_replicas = min_replicas
        self._timeout = timeout
        self._listener = listener
        self._frames: list[EncodedFrame] = []
        self._taken = 0
        self._ended = False

    def open(self) -> None:
        """Begin the segment in every replica. Raises BlockStoreError."""
        said = self._in_all(lambda part: part.open())
        held = len(self._parts)
        if held < self._min_replicas:
            self.close()
            raise BlockStoreError(
                f"{held} of the {self._min_replicas} replicas that min_replicas asks for took {self.path} ({said}): "
                "bring the others back, or lower min_replicas; the block is written again in a new segment"
            )
        for part in self._parts:
            if part.site.lost:
                part.site.lost = False
                self._listener.on_replica_back(part.site.name)

    def append(self, frame: EncodedFrame) -> int:
        """Take one frame; return its offset. Raises BlockStoreError."""
        self._check()
        offset = self._taken
        self._frames.append(frame)
        self._taken += frame.length
        return offset

    def sync(self) -> None:
        """Write the frames taken to every replica, synced. Raises BlockStoreError, which may end it."""
        self._write(durable=True)

    def skip_sync(self) -> None:
        """Do as ``sync``, without the replicas' syncs."""
        self._write(durable=False)

    def close(self) -> None:
        """Close the segment in every replica, on their own threads, without waiting for one that hangs."""
        self._ended = True
        self._frames.clear()
        for part in self._parts:
            part.drop()
        self._parts = []

    def _write(self, *, durable: bool) -> None:
        self._check()
        frames, self._frames = self._frames, []
        offset = self.synced_length
        said = self._in_all(lambda part: part.write(frames, offset, durable=durable))
        if len(self._parts) < self._min_replicas:
            self._ended = True
            detail = f"{len(self._parts)} of the {self._min_replicas} replicas of min_replicas took it: {said}"
            raise segment_write_failed(self.path, offset, detail)
        self.synced_length = self._taken

    def _in_all(self, action: Callable[[_ReplicaPart], None]) -> str:
        """Do an action in every replica at once. Drop and report those that fail; return their errors."""
        deadline = time.monotonic() + self._timeout
        started: list[tuple[_ReplicaPart, Future[None] | Exception]] = []
        for part in self._parts:
            try:
                started.append((part, part.site.writes.submit(partial(action, part))))
            except OSError as error:
                started.append((part, error))
        said: list[str] = []
        held: list[_ReplicaPart] = []
        for part, call in started:
            try:
                if isinstance(call, Exception):
                    raise call
                part.site.writes.wait(call, deadline - time.monotonic())
            except _FAILURES as error:
                said.append(f"{part.site.name}: {error}")
                part.drop()
                part.site.lost = True
                self._listener.on_replica_lost(part.site.name, f"{self.path}: {error}")
            else:
                held.append(part)
        self._parts = held
        return "; ".join(said)

    def _check(self) -> None:
        if self._ended:
            raise segment_ended(self.path)


class _ReplicaPart:
    """Write a segment to one replica. ``open`` and ``write`` run on the replica's thread, ``drop`` on any."""

    def __init__(self, site: _Site, path: str) -> None:
        self.site = site
        self._path = path
        self._segment: Segment | None = None
        self._dropped = threading.Event()

    def open(self) -> None:
        self._segment = self.site.store.create_segment(self._path)
        self._close_if_dropped()

    def write(self, frames: Sequence[EncodedFrame], offset: int, *, durable: bool) -> None:
        segment = self._segment
        assert segment is not None
        try:
            for frame in frames:
                at = segment.append(frame)
                if at != offset:
                    raise segment_write_failed(self._path, offset, f"the replica would write it at {at}")
                offset += frame.length
            if durable:
                segment.sync()
            else:
                segment.skip_sync()
        finally:
            self._close_if_dropped()

    def drop(self) -> None:
        """Write nothing more, and close the segment; if a call hangs in it now, after that call."""
        self._dropped.set()
        try:
            self.site.writes.submit(self._close_if_dropped)
        except OSError:
            # A call hangs in `open` or `write`, and will close it.
            return

    def _close_if_dropped(self) -> None:
        if self._dropped.is_set() and self._segment is not None:
            segment, self._segment = self._segment, None
            segment.close()


def _whole_listing(store: Replica, under: str) -> set[str]:
    return set(store.segment_paths(under))


def _whole_scan(store: Replica, path: str) -> list[ScannedItem]:
    return list(store.scan(path))


def merge_scans(scans: Sequence[Sequence[ScannedItem]]) -> Iterator[ScannedItem]:
    """Yield what several copies of one segment have together, in order."""
    intact = {item.offset: item for scan in scans for item in scan if isinstance(item, IntactFrame)}
    ends = [item.offset + item.length for scan in scans for item in scan]
    damaged = [item for scan in scans for item in scan if isinstance(item, DamagedFrame)]
    at = 0
    for offset in sorted(intact):
        if offset > at:
            yield _damage(at, offset, damaged)
        yield intact[offset]
        at = offset + intact[offset].length
    last = max((item.offset + item.length for item in damaged), default=0)
    if last > at:
        yield _damage(at, last, damaged)
        at = last
    if ends and max(ends) > at:
        torn = next(item for scan in scans for item in scan if item.offset + item.length == max(ends))
        yield TornTail(at, max(ends) - at, torn.detail if isinstance(torn, TornTail) else "torn")


def _damage(begin: int, end: int, damaged: Sequence[DamagedFrame]) -> DamagedFrame:
    for item in damaged:
        if item.offset == begin and item.offset + item.length == end:
            return item
    return DamagedFrame(begin, end - begin, None, "no replica has these bytes whole")
