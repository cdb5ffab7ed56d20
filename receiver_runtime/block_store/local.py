"""The block store in a local (or network-mounted) directory.

Owns where segment files lie below the root, and that a new file's name survives a loss of power before anything in it
counts. It never truncates, never opens a file that exists for writing, and deletes only what clean-up names.

Readers (Spark's Python workers among them) import this module: it loads the standard library, pyarrow and
google_crc32c, and nothing else.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from receiver_runtime.block_store.direct import Portions
from receiver_runtime.block_store.errors import BlockMissingError, InvalidPathError, StoreUnavailableError
from receiver_runtime.block_store.files import Files
from receiver_runtime.block_store.reading import FrameAt, StoredFrame, batches_of, checked_frame, lost_by_reading
from receiver_runtime.block_store.segment import ScannedItem, SegmentWriter, scan_segment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa


#: Where files go that no row of the driver log names.
ASIDE = "_aside"
#: Says which store this is; see ``identity``.
IDENTITY_FILE = "_store"


class LocalBlockStore:
    """Segments below one directory. Reading is safe from any thread or process, also while a segment is written.

    Args:
        root: the directory; it is made with the first segment.
        files: the operating system's calls (a test's seam for faults).
    """

    def __init__(self, root: str | Path, *, files: Files | None = None) -> None:
        self.root = Path(root).absolute()
        #: As people name it.
        self.name = str(self.root)
        self._files = files or Files()
        self._portions = Portions()
        # Directories whose own entries this instance has synced; a set that only grows, by one per receiver.
        self._durable: set[Path] = set()

    @property
    def crash_may_spoil(self) -> bool:
        """Yes: of a file that was not synced, any part may have reached the disk."""
        return True

    def create_segment(self, path: str) -> SegmentWriter:
        """Make a new segment file at ``path`` (relative to the root); its name is durable on return.

        Raises:
            InvalidPathError: the path leads out of the store.
            FileExistsError: a file of that name is there; it is another epoch's or another attempt's.
            OSError: the system refused; nothing may be assumed about the file.
        """
        target = self._resolve(path)
        self._make_directories(target.parent)
        try:
            fd = self._files.create(target)
        except FileNotFoundError:
            # Its directory went. A root that is there again, emptied or on a new disk, takes segments again; one that
            # is not there is not mounted, say, and is not made in the place of its mount.
            if not self.root.is_dir():
                raise
            self._durable.discard(target.parent)
            self._make_directories(target.parent)
            fd = self._files.create(target)
        try:
            self._files.sync_directory(target.parent)
        except OSError:
            self._files.close(fd)
            raise
        return SegmentWriter(self._files, fd, target, portions=self._portions)

    def read_frame(self, path: str, offset: int, length: int, crc32c: int) -> StoredFrame:
        """One frame by its handle: one read, one checksum, one copy in memory.

        Args:
            path: of the segment, relative to the root.
            offset: of the frame in the file, in bytes.
            length: of the whole frame, in bytes.
            crc32c: the frame's checksum as the driver log has it.

        Raises:
            BlockMissingError: the file is not there, or ends before the frame does.
            StoreUnavailableError: the root is not there.
            BlockCorruptError: the bytes are not the frame that was registered.
        """
        target = self._resolve(path)
        try:
            fd = self._files.open(target)
        except FileNotFoundError as error:
            if not self.root.is_dir():
                # Not mounted, say: that says nothing about what is in it.
                raise StoreUnavailableError(self.name, "there is no such directory") from error
            raise BlockMissingError(str(target), offset, length, "no such file") from error
        try:
            data = self._files.read(fd, length, offset)
        finally:
            self._files.close(fd)
        return checked_frame(data, str(target), offset, length, crc32c)

    def read_batches(self, path: str, offset: int, length: int, crc32c: int) -> Iterator[pa.RecordBatch]:
        """The record batches of one block by its handle, decompressed one at a time.

        Memory: the stored block and one decompressed batch. Arguments and errors as for ``read_frame``; the checksum
        is compared before the first batch comes out.
        """
        return batches_of(self.read_frame(path, offset, length, crc32c), str(self._resolve(path)), offset)

    def lost_frames(self, path: str, frames: Sequence[FrameAt]) -> set[FrameAt]:
        """Those that a crash took, by reading them; see ``BlockStore``."""
        return lost_by_reading(self.read_frame, path, frames)

    def delete_segment(self, path: str) -> None:
        """Delete a segment's file; one that is gone already is a success. Only the clean-up calls this.

        Raises:
            InvalidPathError: the path leads out of the store.
            OSError: the system refused.
        """
        target = self._resolve(path)
        self._files.delete(target)
        if target.parent.is_dir():
            self._files.sync_directory(target.parent)

    def segment_paths(self, under: str = "") -> Iterator[str]:
        """The path of every file in the store, or in one directory of it, but those set aside and its identity.

        From the root, in no order.
        """
        directory = self._resolve(under) if under else self.root
        if directory.is_dir():
            for path in directory.rglob("*"):
                relative = path.relative_to(self.root)
                if relative.parts[0] != ASIDE and not _is_identity(relative) and path.is_file():
                    yield relative.as_posix()

    def set_aside(self, path: str) -> str:
        """Move a file out of the way, below `_aside/`; returns its new path, relative to the root.

        Raises:
            InvalidPathError: the path leads out of the store.
            OSError: the system refused.
        """
        source = self._resolve(path)
        target = _free_name(self.root / ASIDE / path)
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        self._files.sync_directory(source.parent)
        self._files.sync_directory(target.parent)
        return target.relative_to(self.root).as_posix()

    def scan(self, path: str) -> Iterator[ScannedItem]:
        """Everything in one segment; see ``segment.scan_segment``."""
        return scan_segment(self._files, self._resolve(path))

    def restore_segment(self, path: str, frames: Iterable[tuple[int, bytes]]) -> None:
        """Put a whole segment in the place of one that is missing or damaged, which is set aside before.

        A crash anywhere leaves the old segment, or the new one, or neither under this path; it is then done again.

        Args:
            path: of the segment, relative to the root.
            frames: (offset, the whole frame's bytes), in order; what is between them stays a hole.

        Raises:
            InvalidPathError: the path leads out of the store.
            OSError: the system refused.
        """
        target = self._resolve(path)
        self._make_directories(target.parent)
        unfinished = target.with_name(f"{target.name}.restoring")
        self._files.delete(unfinished)
        with unfinished.open("xb") as file:
            for offset, data in frames:
                file.seek(offset)
                file.write(data)
            file.flush()
            self._files.sync(file.fileno())
        if target.exists():
            self.set_aside(path)
        unfinished.rename(target)
        self._files.sync_directory(target.parent)

    def _resolve(self, path: str) -> Path:
        pure = PurePosixPath(path)
        if not path or pure.is_absolute() or ".." in pure.parts:
            raise InvalidPathError(path)
        return self.root / pure

    def _make_directories(self, directory: Path) -> None:
        """Make what is missing from the root's first existing ancestor down, each entry durable."""
        if directory in self._durable:
            return
        missing = []
        at = directory
        while at != at.parent and not at.is_dir():
            missing.append(at)
            at = at.parent
        for path in reversed(missing):
            self._files.make_directory(path)
        # An earlier process may have made a directory and died before its entry was synced, so that those below the
        # root are synced also where they were there.
        for path in {*missing, *self._below_root(directory)}:
            self._files.sync_directory(path.parent)
        self._durable.add(directory)

    def _below_root(self, directory: Path) -> list[Path]:
        parts = directory.relative_to(self.root).parts
        return [self.root.joinpath(*parts[: n + 1]) for n in range(len(parts))]


def _is_identity(path: Path) -> bool:
    """Also one that was never finished."""
    return len(path.parts) == 1 and path.name.partition(".")[0] == IDENTITY_FILE


def _free_name(path: Path) -> Path:
    """The path, or the first of path.1, path.2 … that is free."""
    number = 0
    free = path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free
