"""Store blocks in a local (or network-mounted) directory.

Owns where segment files lie below the root, and that a new file's name survives a loss of power before anything in it
counts. It never truncates, never opens an existing file for writing, and deletes only what clean-up names.

The root of a store that is not mounted is an empty directory, or another store. So a store that knows its identity
checks it, through an open directory, before each segment is created and whenever a file is missing or can't be read.
The file is then created, or looked for again, in that same directory. If the identity is another one, nothing is known
about what is in the store: it raises StoreUnavailableError and creates nothing. Reading a block successfully needs no
check.

Readers (Spark's Python workers among them) import this module: it loads the standard library, pyarrow and
google_crc32c, and nothing else.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.direct import Portions
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import (
    BlockCorruptError,
    BlockMissingError,
    StoreUnavailableError,
)
from receiver_runtime.block_store.frames.files import Files
from receiver_runtime.block_store.frames.reading import FrameAt, StoredFrame, batches_of, checked_frame, lost_by_reading
from receiver_runtime.block_store.frames.segment import ScannedItem, SegmentWriter
from receiver_runtime.block_store.stores.identity import (
    IDENTITY_FILE,
    make_identity_file,
    read_identity,
)
from receiver_runtime.block_store.stores.interface import checked_path
from receiver_runtime.block_store.stores.root_directory import RootDirectory, StoreDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import pyarrow as pa


#: The directory for files that no row of the driver log names.
ASIDE = "_aside"
#: The directory in which readers leave notes; see ``replica_notes``.
NOTES = "_notes"
_NOTES = PurePosixPath(NOTES)
_NOTE_BYTES = 64 * 1024


class LocalBlockStore:
    """Store segments below one directory. Reading is safe from any thread or process, also while a segment is written.

    Args:
        root: the directory.
        expected: the identities of which it must have one, see ``identity``; then the root is never created. None: any
            directory is accepted, and it is created with the first segment.
        files: the operating system's calls (tests inject faults there).
        keys: decrypt encrypted blocks. None: they can't be decrypted.
    """

    #: Of a file that was not synced, any part may have reached the disk.
    crash_may_spoil = True

    def __init__(
        self,
        root: str | Path,
        *,
        expected: Collection[str] | None = None,
        files: Files | None = None,
        keys: BlockKeys | None = None,
    ) -> None:
        self.root = Path(root).absolute()
        #: The store's name for people.
        self.name = str(self.root)
        self._expected = expected
        self._files = files or Files()
        self._keys = keys or BlockKeys()
        self._portions = Portions()
        self._directory = StoreDirectory(self.root, self._files, expected)
        # Without an identity the root is created at most once: if it is gone later, it may not be mounted.
        self._may_make_root = expected is None

    def check(self) -> None:
        """Check that this is the expected store. See ``BlockStore``."""
        try:
            with self._directory.opened():
                return
        except StoreUnavailableError as error:
            # Where no store is expected yet, the first segment makes its root.
            if self._expected is not None or not isinstance(error.__cause__, FileNotFoundError):
                raise

    def identity(self) -> str | None:
        """Return the id in its file ``_store``; see ``Replica``."""
        try:
            directory = self._files.open_directory(self.root)
        except FileNotFoundError:
            return None
        try:
            return read_identity(directory)
        finally:
            self._files.close(directory)

    def make_identity(self, identity: str | None = None) -> str:
        """Make it a store, creating the root too; see ``Replica``."""
        return make_identity_file(self.root, identity)

    def create_segment(self, path: str) -> SegmentWriter:
        """Make a new segment file at ``path`` (relative to the root); its name is durable on return.

        Raises:
            BlockStoreError: the path leads out of the store.
            FileExistsError: a file of that name is there; it is another epoch's or another attempt's.
            StoreUnavailableError: the root is not there, or is another store.
            OSError: the system refused; nothing may be assumed about the file.
        """
        relative = checked_path(path)
        if self._may_make_root:
            self._directory.make()
        with self._directory.opened() as root:
            fd = root.create(relative)
        self._may_make_root = False
        return SegmentWriter(self._files, fd, self.root / relative, portions=self._portions)

    def read_frame(self, path: str, offset: int, length: int, crc32c: int) -> StoredFrame:
        """Return one frame by its handle: one read, one checksum, one copy in memory.

        Args:
            path: of the segment, relative to the root.
            offset: of the frame in the file, in bytes.
            length: of the whole frame, in bytes.
            crc32c: the frame's checksum as the driver log has it.

        Raises:
            BlockMissingError: the file is missing, or ends before the frame does.
            StoreUnavailableError: the root is missing, or is another store.
            BlockCorruptError: the bytes are not the frame that was registered.
        """
        relative = checked_path(path)
        where = str(self.root / relative)
        try:
            fd = self._files.open(self.root / relative)
            try:
                data = self._files.read(fd, length, offset)
            finally:
                self._files.close(fd)
            return checked_frame(data, where, offset, length, crc32c)
        except (OSError, BlockMissingError, BlockCorruptError):
            # Find out whether the frame is missing in the store, or another store is in its place.
            with self._directory.opened() as root:
                try:
                    data = root.read(relative, length, offset)
                except FileNotFoundError as error:
                    raise BlockMissingError(where, offset, length, "no such file") from error
            return checked_frame(data, where, offset, length, crc32c)

    def read_batches(self, path: str, offset: int, length: int, crc32c: int) -> Iterator[pa.RecordBatch]:
        """Return the record batches of one block by its handle, decompressed one at a time.

        Memory: the stored block, its decrypted copy if it is encrypted, and one decompressed batch. Arguments and
        errors as for ``read_frame``; the checksum is compared before the first batch is returned.
        """
        frame = self.read_frame(path, offset, length, crc32c)
        return batches_of(frame, str(self.root / checked_path(path)), offset, self._keys)

    def lost_frames(self, path: str, frames: Sequence[FrameAt]) -> set[FrameAt]:
        """Return the frames that a crash took, by reading them; see ``BlockStore``."""
        return lost_by_reading(self.read_frame, path, frames)

    def delete_segment(self, path: str) -> None:
        """Delete a segment's file; one that is gone already is a success. Only the clean-up calls this.

        Raises:
            BlockStoreError: the path leads out of the store.
            StoreUnavailableError: the root is not there, or is another store.
            OSError: the system refused.
        """
        relative = checked_path(path)
        with self._directory.opened() as root:
            root.delete(relative)

    def delete_directory(self, path: str) -> None:
        """Delete an empty directory; see ``BlockStore``. Raises as ``delete_segment``."""
        relative = checked_path(path)
        with self._directory.opened() as root:
            root.delete_directory(relative)

    def segment_paths(self, under: str = "") -> Iterator[str]:
        """Yield the path of every file in the store, or in one directory of it, from the root, in no order.

        Leaves out files that were set aside, notes and the store's identity.

        Raises:
            StoreUnavailableError: the root is missing, or is another store.
            OSError: the system refused.
        """
        if self._may_make_root and not self.root.is_dir():
            return
        with self._directory.opened() as root:
            for path in root.paths(checked_path(under) if under else None):
                if path.parts[0] not in (ASIDE, NOTES) and not _is_identity(path):
                    yield path.as_posix()

    def leave_note(self, key: str, text: bytes) -> None:
        """Write a file in `_notes`; see ``Replica``."""
        with self._directory.opened() as root, suppress(FileExistsError):
            root.write_new(_NOTES / key, text)

    def take_notes(self) -> list[bytes]:
        """Return and remove the files in `_notes`; see ``Replica``."""
        notes = []
        with self._directory.opened() as root:
            for name in root.names(_NOTES):
                notes.append(root.read(_NOTES / name, _NOTE_BYTES, 0))
                root.delete(_NOTES / name)
        return notes

    def set_aside(self, path: str) -> str:
        """Move a file out of the way, below `_aside/`; return its new path, relative to the root.

        Raises:
            BlockStoreError: the path leads out of the store.
            StoreUnavailableError: the root is missing, or is another store.
            OSError: the system refused.
        """
        relative = checked_path(path)
        with self._directory.opened() as root:
            return _set_aside(root, relative)

    def scan(self, path: str) -> Iterator[ScannedItem]:
        """Yield everything in one segment; see ``segment.scan_segment``.

        Raises:
            FileNotFoundError: the store can be reached, and the segment is not in it.
            StoreUnavailableError: the root is missing, or is another store.
        """
        relative = checked_path(path)
        if self._may_make_root and not self.root.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such directory yet", self.name)
        with self._directory.opened() as root:
            yield from root.scan(relative)

    def restore_segment(self, path: str, frames: Iterable[tuple[int, bytes]]) -> None:
        """Put a whole segment in the place of one that is missing or damaged, which is set aside before.

        A crash anywhere leaves the old segment, or the new one, or neither under this path; it is then done again.

        Args:
            path: of the segment, relative to the root.
            frames: (offset, the whole frame's bytes), in order; what is between them stays a hole.

        Raises:
            BlockStoreError: the path leads out of the store.
            StoreUnavailableError: the root is not there, or is another store.
            OSError: the system refused.
        """
        target = checked_path(path)
        unfinished = target.with_name(f"{target.name}.restoring")
        if self._may_make_root:
            self._directory.make()
        with self._directory.opened() as root:
            root.make_directories(target.parent)
            root.write_whole(unfinished, frames)
            if root.exists(target):
                _set_aside(root, target)
            root.move(unfinished, target)


def _set_aside(root: RootDirectory, path: PurePosixPath) -> str:
    target = root.free_name(ASIDE / path)
    root.make_directories(target.parent)
    root.move(path, target)
    return target.as_posix()


def _is_identity(path: PurePosixPath) -> bool:
    """Return whether a path is the identity file, or one that was never finished."""
    return len(path.parts) == 1 and path.name.partition(".")[0] == IDENTITY_FILE
