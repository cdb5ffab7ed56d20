"""Use an open directory that was found to be the root of the block store; every name is looked up relative to it.

So if a store is unmounted, or another is mounted, after the identity check, no write goes astray and no file is wrongly
reported missing. Owns the directories below the root, and that new names survive a loss of power. It makes the root
only where it is asked to.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import PurePath, PurePosixPath
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.frames.segment import scan_segment
from receiver_runtime.block_store.stores.identity import IDENTITY_FILE, read_identity, require_identity

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from pathlib import Path

    from receiver_runtime.block_store.frames.files import Files
    from receiver_runtime.block_store.frames.segment import ScannedItem

_HERE = PurePosixPath()


class DurableDirectories:
    """Remember directories whose entries one store has synced, by the root's inode; it grows by one per receiver."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int, PurePath]] = set()

    def __contains__(self, key: tuple[int, int, PurePath]) -> bool:
        return key in self._known

    def add(self, key: tuple[int, int, PurePath]) -> None:
        """Note that a directory is durable."""
        self._known.add(key)

    def forget(self, key: tuple[int, int, PurePath]) -> None:
        """Note that a directory is gone."""
        self._known.discard(key)


class RootDirectory:
    """Use files below the directory that ``fd`` is open on; the caller closes it. Every method raises OSError."""

    def __init__(self, files: Files, fd: int, durable: DurableDirectories) -> None:
        self.fd = fd
        self._files = files
        self._durable = durable
        status = os.fstat(fd)
        self._inode = (status.st_dev, status.st_ino)

    def create(self, path: PurePosixPath) -> int:
        """Make a file that must not exist, durable by name, and open it for appending."""
        self.make_directories(path.parent)
        try:
            fd = self._files.create(path, dir_fd=self.fd)
        except FileNotFoundError:
            # Its directory was deleted meanwhile.
            self._durable.forget((*self._inode, path.parent))
            self.make_directories(path.parent)
            fd = self._files.create(path, dir_fd=self.fd)
        try:
            self.sync(path.parent)
        except OSError:
            self._files.close(fd)
            raise
        return fd

    def make_directories(self, directory: PurePosixPath) -> None:
        """Create the missing directories of a path, each entry durable."""
        key = (*self._inode, directory)
        if key in self._durable:
            return
        # An earlier process may have died after creating one and before syncing its entry, so sync each entry.
        for path in [*reversed(directory.parents), directory][1:]:
            self._files.make_directory(path, dir_fd=self.fd)
            self.sync(path.parent)
        self._durable.add(key)

    def read(self, path: PurePosixPath, length: int, offset: int) -> bytes:
        """Return at most ``length`` bytes of a file."""
        fd = self._files.open(path, dir_fd=self.fd)
        try:
            return self._files.read(fd, length, offset)
        finally:
            self._files.close(fd)

    def scan(self, path: PurePosixPath) -> Iterator[ScannedItem]:
        """Yield everything in one segment."""
        return scan_segment(self._files, path, dir_fd=self.fd)

    def write_whole(self, path: PurePosixPath, parts: Iterable[tuple[int, bytes]]) -> None:
        """Create or replace a file from (offset, bytes) with holes between them; it is durable, except its name."""
        self._files.delete(path, dir_fd=self.fd)
        with os.fdopen(self._files.create_holed(path, dir_fd=self.fd), "wb") as file:
            for offset, data in parts:
                file.seek(offset)
                file.write(data)
            file.flush()
            self._files.sync(file.fileno())

    def write_new(self, path: PurePosixPath, data: bytes) -> None:
        """Make a file that must not exist, in one write; a crash may lose it."""
        self.make_directories(path.parent)
        fd = self._files.create(path, dir_fd=self.fd)
        try:
            self._files.write(fd, [data])
        finally:
            self._files.close(fd)

    def names(self, directory: PurePosixPath) -> list[str]:
        """Return the names in a directory; none if it is missing."""
        try:
            return self._files.names(directory, dir_fd=self.fd)
        except FileNotFoundError:
            return []

    def move(self, path: PurePosixPath, to: PurePosixPath) -> None:
        """Rename a file durably; an existing file of the new name is replaced."""
        self._files.rename(path, to, dir_fd=self.fd)
        for directory in {path.parent, to.parent}:
            self.sync(directory)

    def free_name(self, path: PurePosixPath) -> PurePosixPath:
        """Return the path, or the first of path.1, path.2 … that is free."""
        number = 0
        free = path
        while self.exists(free):
            number += 1
            free = path.with_name(f"{path.name}.{number}")
        return free

    def exists(self, path: PurePosixPath) -> bool:
        """Return whether this name exists."""
        return self._files.exists(path, dir_fd=self.fd)

    def delete(self, path: PurePosixPath) -> None:
        """Delete a file, durably; a missing file is no error."""
        self._files.delete(path, dir_fd=self.fd)
        if self.exists(path.parent):
            self.sync(path.parent)

    def delete_directory(self, path: PurePosixPath) -> None:
        """Delete an empty directory; a missing one is no error. A crash may bring it back."""
        self._files.delete_directory(path, dir_fd=self.fd)
        self._durable.forget((*self._inode, path))

    def paths(self, under: PurePosixPath | None = None) -> Iterator[PurePosixPath]:
        """Yield every file, or every one below a directory that may be missing; in no order."""
        if under is not None and not self.exists(under):
            return

        def refuse(error: OSError) -> None:
            raise error

        for directory, _, names, _ in os.fwalk(under or _HERE, dir_fd=self.fd, onerror=refuse):
            for name in names:
                yield PurePosixPath(directory, name)

    def sync(self, directory: PurePosixPath) -> None:
        """Make a directory's entries survive a loss of power."""
        self._files.sync_directory(directory, dir_fd=self.fd)


class StoreDirectory:
    """Open the root of a store in a directory, or make it.

    Args:
        path: absolute.
        expected: the identities of which it must have one; None: any directory is accepted.
    """

    def __init__(self, path: Path, files: Files, expected: Collection[str] | None) -> None:
        self._path = path
        self._files = files
        self._expected = expected
        self._durable = DurableDirectories()

    @contextmanager
    def opened(self) -> Iterator[RootDirectory]:
        """Open the root, after checking its identity."""
        try:
            fd = self._files.open_directory(self._path)
        except OSError as error:
            mounted = "there is no such directory" if isinstance(error, FileNotFoundError) else str(error)
            raise StoreUnavailableError(str(self._path), f"not mounted? {mounted}") from error
        try:
            if self._expected is not None:
                try:
                    found = read_identity(fd)
                except OSError as error:
                    raise StoreUnavailableError(str(self._path), f"{IDENTITY_FILE}: {error}") from error
                require_identity(str(self._path), self._expected, found)
            yield RootDirectory(self._files, fd, self._durable)
        finally:
            self._files.close(fd)

    def make(self) -> None:
        """Create the missing part of the root's path, each entry durable."""
        missing = [path for path in (self._path, *self._path.parents) if not path.is_dir()]
        for path in reversed(missing):
            self._files.make_directory(path)
            self._files.sync_directory(path.parent)
