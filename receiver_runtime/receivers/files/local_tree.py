"""Open files below one directory of this host, and no others.

Who may write in a followed directory may put a symbolic link, a FIFO or a device there, and exchange a file for one
between a look and a read. This module owns the rule that such an entry is never read: it opens each directory on the
way by its descriptor without following a link, opens without waiting, and reads only regular files. It must never read
content, and knows no record.
"""

from __future__ import annotations

import errno
import os
import stat

# O_PATH needs only the right to pass through a directory; systems without it need the right to read it.
_DIRECTORY = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class SymlinkRefusedError(OSError):
    """It is a symbolic link, or behind one: put the file itself there, or set follow_symlinks=True."""

    def __init__(self, path: str, why: str | None = None) -> None:
        """Describe the refused path; `why` replaces the default text."""
        super().__init__(errno.ELOOP, why or (type(self).__doc__ or ""), path)


class LocalTree:
    """Open regular files below a directory.

    Args:
        base: the directory. It is the operator's own choice: links on the way to it are followed.
        follow_symlinks: also open files by links below the base, if they lead to a file below the base.
    """

    def __init__(self, base: str, *, follow_symlinks: bool = False) -> None:
        self._base = base.rstrip("/") or "/"
        self._follows = follow_symlinks

    def status(self, path: str) -> os.stat_result:
        """Return the status of the file that ``open`` would open. Raises OSError, and SymlinkRefusedError for a link.

        It looks at the last part of the path only: see ``holds`` for the directories before it.
        """
        status = os.lstat(path)
        if not stat.S_ISLNK(status.st_mode):
            return status
        if not self._follows:
            raise SymlinkRefusedError(path)
        self._inside(path)
        return os.stat(path)  # noqa: PTH116  of many, with each look

    def holds(self, directory: str) -> bool:
        """Return whether files of a directory may be opened: no link leads to it, or one that may be followed."""
        real = os.path.realpath(directory)
        if self._follows:
            return self._below(real) is not None
        base = os.path.realpath(self._base)
        return real == _joined(base, _relative(self._base, directory))

    def open(self, path: str) -> int:
        """Return a descriptor of a regular file, for reading. Raises OSError, and SymlinkRefusedError."""
        if self._follows:
            base, relative = os.path.realpath(self._base), self._inside(path)
        else:
            base, relative = self._base, _relative(self._base, path)
        *directories, name = [part for part in relative.split("/") if part]
        if ".." in directories:
            raise SymlinkRefusedError(path, "the path goes back by '..': give it without")
        at = os.open(base, _DIRECTORY)
        try:
            for directory in directories:
                inner = _open_at(directory, _DIRECTORY | os.O_NOFOLLOW, at, path)
                os.close(at)
                at = inner
            descriptor = _open_at(name, _FILE, at, path)
        finally:
            os.close(at)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "it is no regular file any more, and is not read", path)
        return descriptor

    def _inside(self, path: str) -> str:
        """Return where a path leads, relative to the base. Raises SymlinkRefusedError if that is outside."""
        real = os.path.realpath(path)
        relative = self._below(real)
        if relative is None:
            raise SymlinkRefusedError(path, f"it leads to {real}, outside {self._base}: only files below are read")
        return relative

    def _below(self, real: str) -> str | None:
        base = os.path.realpath(self._base).rstrip("/")
        return real[len(base) :] if real == base or real.startswith(f"{base}/") else None


def open_local(path: str) -> int:
    """Return a descriptor of a regular file in a directory that the caller trusts. Raises OSError."""
    directory, name = os.path.split(path)
    return LocalTree(directory or ".").open(f"{directory or '.'}/{name}")


def _relative(base: str, path: str) -> str:
    if path == base:
        return ""
    inside = base.rstrip("/") + "/"
    if not path.startswith(inside):
        raise SymlinkRefusedError(path, f"it is outside {base}: only files below are read")
    return path[len(inside) :]


def _joined(base: str, relative: str) -> str:
    parts = [part for part in relative.split("/") if part]
    return "/".join([base.rstrip("/"), *parts]) or "/"


def _open_at(name: str, flags: int, at: int, path: str) -> int:
    try:
        return os.open(name, flags, dir_fd=at)
    except OSError as error:
        # A link is ELOOP, or ENOTDIR where a directory is wanted.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EMLINK) and _is_link(name, at):
            raise SymlinkRefusedError(path) from error
        error.filename = path
        raise


def _is_link(name: str, at: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode)
    except OSError:
        return False
