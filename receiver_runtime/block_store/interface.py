"""What every block store can do, whatever it lies on: the Protocols that the rest of the program knows.

A segment has one path, and a frame one handle (path, offset, length, checksum), on every kind of store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.frame import EncodedFrame
    from receiver_runtime.block_store.reading import FrameAt, StoredFrame
    from receiver_runtime.block_store.segment import ScannedItem


class Segment(Protocol):
    """A segment that is being written. One thread at a time; after a failure it takes nothing more."""

    @property
    def synced_length(self) -> int:
        """Up to here every frame is stored: what gets sealed."""
        ...

    def append(self, frame: EncodedFrame) -> int:
        """Take one frame; returns its offset. Nothing is promised before ``sync``."""
        ...

    def sync(self) -> None:
        """Return when every frame taken survives a loss of power. Raises SegmentWriteError."""
        ...

    def skip_sync(self) -> None:
        """Return when every frame taken can be read (ephemeral durability). Raises SegmentWriteError."""
        ...

    def close(self) -> None:
        """Give up what is held; safe to call twice. What counts was synced."""
        ...


class BlockStore(Protocol):
    """Where segments lie. Reading is safe from any thread or process, also while a segment is written."""

    @property
    def name(self) -> str:
        """As people name it; holds no secret."""
        ...

    def check(self) -> None:
        """Raise StoreUnavailableError where this is known to be not the store that it should be, or can't be reached.

        A store of replicas passes when enough of them for a write do.
        """
        ...

    def create_segment(self, path: str) -> Segment:
        """Begin a new segment, in the store that it should be and no other.

        Raises FileExistsError where there is one, OSError or BlockStoreError else.
        """
        ...

    def read_frame(self, path: str, offset: int, length: int, crc32c: int) -> StoredFrame:
        """One frame by its handle.

        Raises:
            BlockMissingError: the store can be reached, and the frame is not in it.
            BlockCorruptError: other bytes are in its place.
            StoreUnavailableError, OSError: nothing is known about the frame.
        """
        ...

    def read_batches(self, path: str, offset: int, length: int, crc32c: int) -> Iterator[pa.RecordBatch]:
        """The record batches of one block by its handle. Raises as ``read_frame``, before the first comes out."""
        ...

    @property
    def crash_may_spoil(self) -> bool:
        """May a crash leave other bytes in the place of a frame that was never synced?"""
        ...

    def lost_frames(self, path: str, frames: Sequence[FrameAt]) -> set[FrameAt]:
        """Those of one segment's frames that are not there; where ``crash_may_spoil``, or that have other bytes.

        Raises:
            StoreUnavailableError, OSError: nothing is known about one of them.
        """
        ...

    def scan(self, path: str) -> Iterator[ScannedItem]:
        """Everything in one segment, in order. Raises FileNotFoundError where nothing is."""
        ...

    def segment_paths(self, under: str = "") -> Iterator[str]:
        """The path of everything in the store, or in its directory `under`, in no order.

        Without what was set aside, notes and its identity.
        """
        ...

    def delete_segment(self, path: str) -> None:
        """Delete a segment; one that is gone already is a success. Only the clean-up calls this."""
        ...


class Replica(BlockStore, Protocol):
    """A store in one place, which can be compared with others and repaired from them."""

    def identity(self) -> str | None:
        """Which store it says it is; None where it says nothing. Raises OSError, StoreUnavailableError."""
        ...

    def make_identity(self, identity: str | None = None) -> str:
        """The same, made where there is none: a new one, or the one that is given. Raises as ``identity``."""
        ...

    def leave_note(self, key: str, text: bytes) -> None:
        """Keep a few bytes beside the segments; one of this key that is there stays. See ``replica_notes``."""
        ...

    def take_notes(self) -> list[bytes]:
        """All of them, each taken away."""
        ...

    def set_aside(self, path: str) -> str:
        """Move a segment out of the way; returns its new path."""
        ...

    def restore_segment(self, path: str, frames: Iterable[tuple[int, bytes]]) -> None:
        """Put (offset, the frame's bytes) in the place of a segment that is missing or damaged."""
        ...
