"""Make a local block store's calls on the operating system, all in one place.

Tests inject faults here: they pass a subclass of ``Files`` that writes short or fails a sync, so that they test the
real code and not a stand-in. Nothing else in the block store touches a file descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import PurePath

#: Bytes. Writes past the page cache consist of pages of this size, which every disk takes.
DIRECT_BYTES = 4096

# The errors with which a file system refuses such writes, or this alignment.
_NO_DIRECT = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
_DIRECTORY_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
# Write past the page cache; 0 if the system can't.
_DIRECT_FLAGS = os.O_WRONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_DIRECT", 0)
# Flushes the data and the size needed to read it back; without fdatasync, everything.
_sync_data = getattr(os, "fdatasync", os.fsync)


class Files:
    """Call the real operating system. Every method raises ``OSError`` as the system does.

    If an open directory ``dir_fd`` is given, a path is relative to it. It then leads to a file of that directory,
    whatever is mounted or renamed meanwhile.
    """

    def open_directory(self, path: PurePath) -> int:
        """Open a directory, to look up names relative to it."""
        return os.open(path, _DIRECTORY_FLAGS)

    def create(self, path: PurePath, *, dir_fd: int | None = None) -> int:
        """Make a file that must not exist and open it for appending."""
        return os.open(path, _CREATE_FLAGS, 0o644, dir_fd=dir_fd)

    def create_holed(self, path: PurePath, *, dir_fd: int) -> int:
        """Make a file that must not exist and open it for writing anywhere in it."""
        return os.open(path, _CREATE_FLAGS & ~os.O_APPEND, 0o644, dir_fd=dir_fd)

    def open(self, path: PurePath, *, dir_fd: int | None = None) -> int:
        """Open a file for reading."""
        return os.open(path, _READ_FLAGS, dir_fd=dir_fd)

    def write(self, fd: int, buffers: Sequence[Any]) -> int:
        """Append the buffers by one call; return how many bytes were written, which may be fewer."""
        return os.writev(fd, buffers)

    def open_direct(self, path: PurePath, fd: int) -> int | None:
        """Open the file of ``fd`` again, for writing past the page cache; return None if the system can't.

        Raises FileNotFoundError if another file is at ``path`` now.
        """
        if not hasattr(os, "O_DIRECT"):
            return None
        try:
            direct = os.open(path, _DIRECT_FLAGS)
        except OSError as error:
            if error.errno in _NO_DIRECT:
                return None
            raise
        if not os.path.sameopenfile(fd, direct):
            os.close(direct)
            raise FileNotFoundError(errno.ENOENT, "another file is there now", str(path))
        return direct

    def write_direct(self, fd: int, buffer: Any, offset: int) -> int | None:  # noqa: ANN401  a buffer
        """Write by one call; return how many bytes were written, or None if the file system refuses such a write.

        Memory, length and offset are whole multiples of ``DIRECT_BYTES``.
        """
        try:
            return os.pwrite(fd, buffer, offset)
        except OSError as error:
            if error.errno in _NO_DIRECT:
                return None
            raise

    def sync(self, fd: int) -> None:
        """Return when what was written survives a loss of power."""
        _sync_data(fd)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer only at the file's end."""
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        total = len(data)
        while total < length and (more := os.pread(fd, length - total, offset + total)):
            parts.append(more)
            total += len(more)
        return b"".join(parts)

    def size(self, fd: int) -> int:
        """Return the file's length in bytes."""
        return os.fstat(fd).st_size

    def names(self, path: PurePath, *, dir_fd: int) -> list[str]:
        """Return the names in a directory."""
        fd = os.open(path, _DIRECTORY_FLAGS, dir_fd=dir_fd)
        try:
            return os.listdir(fd)  # noqa: PTH208  of an open directory
        finally:
            os.close(fd)

    def exists(self, path: PurePath, *, dir_fd: int) -> bool:
        """Return whether this name exists."""
        try:
            os.stat(path, dir_fd=dir_fd)
        except FileNotFoundError:
            return False
        return True

    def rename(self, path: PurePath, to: PurePath, *, dir_fd: int) -> None:
        """Rename a file; an existing file of the new name is replaced."""
        os.rename(path, to, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def delete(self, path: PurePath, *, dir_fd: int) -> None:
        """Delete a file; a missing file is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path, dir_fd=dir_fd)

    def delete_directory(self, path: PurePath, *, dir_fd: int) -> None:
        """Delete an empty directory; a missing one is no error."""
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path, dir_fd=dir_fd)

    def make_directory(self, path: PurePath, *, dir_fd: int | None = None) -> None:
        """Make one directory; an existing one is no error."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, dir_fd=dir_fd)

    def sync_directory(self, path: PurePath, *, dir_fd: int | None = None) -> None:
        """Make the directory's entries survive a loss of power."""
        fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
