"""Define what every block store can do, on any kind of storage: the Protocols that the rest of the program knows.

A segment has one path, and a frame one handle (path, offset, length, checksum), on every kind of store.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol

from receiver_runtime.block_store.frames.errors import BlockStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.frames.frame import EncodedFrame
    from receiver_runtime.block_store.frames.reading import FrameAt, StoredFrame
    from receiver_runtime.block_store.frames.segment import ScannedItem


class Segment(Protocol):
    """Write a segment. One thread at a time; after a failure it takes nothing more."""

    @property
    def synced_length(self) -> int:
        """Return the length up to which every frame is stored; this is what gets sealed."""
        ...

    def append(self, frame: EncodedFrame) -> int:
        """Take one frame; return its offset. The frame is not durable before ``sync``."""
        ...

    def sync(self) -> None:
        """Return when every frame taken survives a loss of power. Raises BlockStoreError."""
        ...

    def skip_sync(self) -> None:
        """Return when every frame taken can be read (ephemeral durability). Raises BlockStoreError."""
        ...

    def close(self) -> None:
        """Release what is held; safe to call twice. Syncs nothing."""
        ...


class BlockStore(Protocol):
    """Store segments. Reading is safe from any thread or process, also while a segment is written."""

    @property
    def name(self) -> str:
        """Return the store's name for people; holds no secret."""
        ...

    def check(self) -> None:
        """Raise StoreUnavailableError if this is known not to be the expected store, or can't be reached.

        A store of replicas passes if enough of them for a write pass.
        """
        ...

    def create_segment(self, path: str) -> Segment:
        """Begin a new segment, only in the expected store.

        Raises FileExistsError if there is one already, otherwise OSError or BlockStoreError.
        """
        ...

    def read_frame(self, path: str, offset: int, length: int, crc32c: int) -> StoredFrame:
        """Return one frame by its handle.

        Raises:
            BlockMissingError: the store can be reached, and the frame is not in it.
            BlockCorruptError: other bytes are in its place.
            StoreUnavailableError, OSError: nothing is known about the frame.
        """
        ...

    def read_batches(self, path: str, offset: int, length: int, crc32c: int) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of one block by its handle.

        Raises as ``read_frame``, before the first batch; and, for an encrypted block:
            BlockKeyError: the store was opened without its key.
            BlockAlteredError: its checksums are right and its authentication tag is not.
        """
        ...

    @property
    def crash_may_spoil(self) -> bool:
        """Return whether a crash may leave other bytes in the place of a frame that was never synced."""
        ...

    def lost_frames(self, path: str, frames: Sequence[FrameAt]) -> set[FrameAt]:
        """Return those of one segment's frames that are missing; if ``crash_may_spoil``, also those with other bytes.

        Raises:
            StoreUnavailableError, OSError: nothing is known about one of them.
        """
        ...

    def scan(self, path: str) -> Iterator[ScannedItem]:
        """Yield everything in one segment, in order. Raises FileNotFoundError if there is no such segment."""
        ...

    def segment_paths(self, under: str = "") -> Iterator[str]:
        """Yield the path of every segment in the store, or in its directory `under`, in no order.

        Leaves out what was set aside, notes and the store's identity.
        """
        ...

    def delete_segment(self, path: str) -> None:
        """Delete a segment; one that is gone already is a success. Only the clean-up calls this."""
        ...

    def delete_directory(self, path: str) -> None:
        """Delete an empty directory, where the store has directories; one that is gone is a success. As above.

        Raises OSError if something is in it.
        """
        ...


class Replica(BlockStore, Protocol):
    """Store segments in one place, which can be compared with other replicas and repaired from them."""

    def identity(self) -> str | None:
        """Return the store's identity; None if it has none. Raises OSError, StoreUnavailableError."""
        ...

    def make_identity(self, identity: str | None = None) -> str:
        """Return the identity, creating it if there is none: the given one, or a new one. Raises as ``identity``."""
        ...

    def leave_note(self, key: str, text: bytes) -> None:
        """Keep a few bytes beside the segments; an existing note of this key stays. See ``replica_notes``."""
        ...

    def take_notes(self) -> list[bytes]:
        """Return all notes, and remove them."""
        ...

    def set_aside(self, path: str) -> str:
        """Move a segment out of the way; return its new path."""
        ...

    def restore_segment(self, path: str, frames: Iterable[tuple[int, bytes]]) -> None:
        """Put (offset, the frame's bytes) in the place of a segment that is missing or damaged."""
        ...


def checked_path(path: str) -> PurePosixPath:
    """Return a segment's path, relative to the root. Raises BlockStoreError if it leads out of the store."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts:
        raise BlockStoreError(f"{path!r} is no path in the block store: give it relative to the root and without '..'")
    return pure
