"""Store blocks in an object store: each block is an object, because nothing can be appended to an object.

Owns the layout. A segment is a prefix; each write of the write-ahead log is ONE object below it. The object's name is
the offset, in 20 digits, at which its first frame would lie in a file. So a handle means the same as in any other
store; a segment is rolled, sealed, scanned and deleted as a file is; and a listing is in the order of the offsets. An
object is written as a whole and never changed; a PUT whose outcome is not known is repeated with the identical bytes. A
segment's name contains the epoch, so no two processes write below one prefix.

A write that failed may leave its object behind, as a file may have bytes after its sealed length.

An address may lead to another server, or to a bucket that was created again. So a store that knows its identity reads
the object `_store` before each segment is begun or deleted, and whenever an object is missing.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import (
    BlockMissingError,
    StoreUnavailableError,
    segment_ended,
    segment_write_failed,
)
from receiver_runtime.block_store.frames.reading import FrameAt, StoredFrame, batches_of, checked_frame
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, ScannedItem, TornTail, scan_source
from receiver_runtime.block_store.stores.identity import (
    IDENTITY_BYTES,
    IDENTITY_FILE,
    decoded,
    new_identity,
    require_identity,
)
from receiver_runtime.block_store.stores.interface import checked_path
from receiver_runtime.block_store.stores.retried_objects import OBJECT_NAME, RetriedObjects, holder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.frames.frame import EncodedFrame
    from receiver_runtime.block_store.stores.objects import Objects

ASIDE = "_aside"
NOTES = "_notes"


class ObjectBlockStore:
    """Store segments below one prefix of an object store.

    Args:
        objects: the store's calls.
        name: the URL, without secrets.
        timeout: seconds for one call with all its attempts.
        max_attempts: the most attempts at one call.
        expected: the identities of which it must have one, see ``identity``. None: any prefix will do.
        keys: decrypt encrypted blocks. None: they can't be decrypted.
    """

    #: An object is there as a whole, or not at all.
    crash_may_spoil = False

    def __init__(
        self,
        objects: Objects,
        name: str,
        *,
        timeout: float = 30.0,
        max_attempts: int = 5,
        expected: Collection[str] | None = None,
        keys: BlockKeys | None = None,
    ) -> None:
        self.name = name
        self._keys = keys or BlockKeys()
        self._expected = expected
        self._objects = RetriedObjects(objects, name, timeout=timeout, max_attempts=max_attempts)

    def check(self) -> None:
        """Check that this is the expected store. See ``BlockStore``."""
        if self._expected is not None:
            require_identity(self.name, self._expected, self.identity())

    def identity(self) -> str | None:
        """Return the id in its object ``_store``; see ``Replica``."""
        try:
            return decoded(self._objects.get(IDENTITY_FILE, 0, IDENTITY_BYTES))
        except FileNotFoundError:
            self._objects.require_bucket()
            return None

    def make_identity(self, identity: str | None = None) -> str:
        """Make it a store; see ``Replica``. If two processes make one at the same time, the later one's id stays."""
        found = self.identity()
        if found is not None:
            return found
        made = identity or new_identity("objects")
        self._objects.put(IDENTITY_FILE, [f"{made}\n".encode("ascii")])
        return self.identity() or made

    def create_segment(self, path: str) -> ObjectSegment:
        """Begin a segment; nothing is stored before its first frame.

        Raises:
            BlockStoreError: the path leads out of the store.
            FileExistsError: there are objects below it, of another epoch or another attempt.
            StoreUnavailableError: the store does not answer, or is another one.
        """
        path = checked_path(path).as_posix()
        self.check()
        if self._objects.sizes(path):
            raise FileExistsError(f"{self._objects.where(path)} has objects already: they belong to another process")
        return ObjectSegment(
            self._objects.where(path), lambda offset, frames: self._objects.put_frames(path, offset, frames)
        )

    def read_frame(self, path: str, offset: int, length: int, crc32c: int) -> StoredFrame:
        """Return one frame by its handle; see ``BlockStore``."""
        path = checked_path(path).as_posix()
        try:
            data = self._objects.get(f"{path}/{offset:020d}", 0, length)
        except FileNotFoundError as error:
            within = self._objects.get_within(path, offset, length)
            if within is None:
                # If everything is missing, the store is at fault, not this block.
                if self._expected is None:
                    self._objects.require_any()
                else:
                    self.check()
                raise BlockMissingError(self._objects.where(path), offset, length, "no such object") from error
            data = within
        return checked_frame(data, self._objects.where(path), offset, length, crc32c)

    def read_batches(self, path: str, offset: int, length: int, crc32c: int) -> Iterator[pa.RecordBatch]:
        """Return the record batches of one block by its handle; see ``BlockStore``."""
        return batches_of(self.read_frame(path, offset, length, crc32c), self._objects.where(path), offset, self._keys)

    def lost_frames(self, path: str, frames: Sequence[FrameAt]) -> set[FrameAt]:
        """Return the frames that are not there, by one listing; see ``BlockStore``."""
        path = checked_path(path).as_posix()
        objects = self._objects.of_segment(path)
        lost = {at for at in frames if holder_of(objects, at.offset, at.length) is None}
        if lost:
            if self._expected is None:
                self._objects.require_any()
            else:
                self.check()
        return lost

    def scan(self, path: str) -> Iterator[ScannedItem]:
        """Yield everything in one segment, in order; an object that is missing between others is damage.

        Raises:
            FileNotFoundError: there is no object.
            StoreUnavailableError: the store does not answer, or has no such bucket.
        """
        path = checked_path(path).as_posix()
        found = self._objects.of_segment(path)
        if not found:
            if self._expected is None:
                self._objects.require_bucket()
            self.check()
            raise FileNotFoundError(f"{self._objects.where(path)} has no objects")
        end = 0
        for number, (key, begin, size) in enumerate(found):
            if begin > end:
                yield DamagedFrame(end, begin - end, None, "the object that held these bytes is missing")
            last = number == len(found) - 1
            for item in scan_source(_OneObject(self._objects.get, key, size)):
                yield _moved(item, begin, may_be_torn=last)
            end = begin + size

    def segment_paths(self, under: str = "") -> Iterator[str]:
        """Yield the path of every segment, and of any other object, in the store or below a prefix, in no order.

        Leaves out objects that were set aside, notes and the store's identity.
        """
        self.check()
        keys = [PurePosixPath(key) for key, _ in self._objects.sizes(under)]
        if not keys:
            self._objects.require_bucket()
        yield from {
            (key.parent if OBJECT_NAME.fullmatch(key.name) else key).as_posix()
            for key in keys
            if key.parts[0] not in (ASIDE, NOTES, IDENTITY_FILE)
        }

    def leave_note(self, key: str, text: bytes) -> None:
        """Write an object below `_notes`; see ``Replica``. A later note with the same key replaces it."""
        self.check()
        self._objects.put(f"{NOTES}/{key}", [text])

    def take_notes(self) -> list[bytes]:
        """Return and remove the objects below `_notes`; see ``Replica``."""
        notes = []
        for key, size in self._objects.sizes(NOTES):
            notes.append(self._objects.get(key, 0, size))
            self._objects.remove(key)
        return notes

    def delete_segment(self, path: str) -> None:
        """Delete a segment's objects; see ``BlockStore``."""
        path = checked_path(path).as_posix()
        self.check()
        self._objects.delete(path)

    def delete_directory(self, path: str) -> None:
        """Do nothing: a prefix without objects is gone. See ``BlockStore``."""

    def set_aside(self, path: str) -> str:
        """Move a segment's objects below `_aside/`; return their new prefix. If interrupted, call it again."""
        path = checked_path(path).as_posix()
        self.check()
        target = self._objects.free_prefix(f"{ASIDE}/{path}")
        below = self._objects.sizes(path)
        if not below:
            self._objects.move(path, target)
        for key, _ in below:
            self._objects.move(key, target + key.removeprefix(path))
        return target

    def restore_segment(self, path: str, frames: Iterable[tuple[int, bytes]]) -> None:
        """Put frames, one object each, in the place of a segment that is missing or damaged; set that one aside.

        The frames may come from the old segment itself, so it is set aside only after they are written. A crash may
        leave this half done; it is then done again.
        """
        path = checked_path(path).as_posix()
        self.check()
        unfinished = f"{path}.restoring"
        self.delete_segment(unfinished)
        names = []
        for offset, data in frames:
            names.append(f"{offset:020d}")
            self._objects.put(f"{unfinished}/{names[-1]}", [data])
        if self._objects.of_segment(path):
            self.set_aside(path)
        for name in names:
            self._objects.move(f"{unfinished}/{name}", f"{path}/{name}")


class ObjectSegment:
    """Write a segment. One thread at a time; the write-ahead log holds the lock."""

    def __init__(self, where: str, put: Callable[[int, list[EncodedFrame]], None]) -> None:
        self.path = where
        #: All frames up to here are stored as objects.
        self.synced_length = 0
        self._put = put
        self._frames: list[EncodedFrame] = []
        self._taken = 0
        self._ended = False

    def append(self, frame: EncodedFrame) -> int:
        """Take one frame into the next object; return its offset. Raises BlockStoreError."""
        self._check()
        offset = self._taken
        self._frames.append(frame)
        self._taken += frame.length
        return offset

    def sync(self) -> None:
        """Store the frames taken as one object. Raises BlockStoreError, which may end it."""
        self._check()
        frames, self._frames = self._frames, []
        try:
            if frames:
                self._put(self.synced_length, frames)
        except (OSError, StoreUnavailableError) as error:
            self._ended = True
            raise segment_write_failed(self.path, self.synced_length, error) from error
        self.synced_length = self._taken

    def skip_sync(self) -> None:
        """Do as ``sync``: an object is stored durably or not at all."""
        self.sync()

    def close(self) -> None:
        """Take nothing more."""
        self._ended = True
        self._frames.clear()

    def _check(self) -> None:
        if self._ended:
            raise segment_ended(self.path)


class _OneObject:
    """Read one object, for a scan."""

    def __init__(self, get: Callable[[str, int, int], bytes], key: str, size: int) -> None:
        self._get = get
        self._key = key
        self.size = size

    def read(self, length: int, offset: int) -> bytes:
        return self._get(self._key, offset, length)


def _moved(item: ScannedItem, begin: int, *, may_be_torn: bool) -> ScannedItem:
    """Return an item of one object with its place in the segment."""
    offset = begin + item.offset
    match item:
        case IntactFrame():
            return IntactFrame(offset, item.length, item.crc32c, item.header)
        case DamagedFrame():
            return DamagedFrame(offset, item.length, item.header, item.detail, item.expected, item.found)
        case TornTail() if may_be_torn:
            return TornTail(offset, item.length, item.detail)
        case TornTail():
            return DamagedFrame(offset, item.length, None, item.detail)
