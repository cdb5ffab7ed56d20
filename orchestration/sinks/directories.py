"""Replace a directory that other processes read by another one, atomically where the system supports it.

Linux exchanges two names atomically on its own file systems (ext4, xfs, btrfs, tmpfs). Elsewhere it takes two renames,
and between them the directory is missing. A process that dies at any point leaves the old or the new directory; between
the two renames it leaves the old one under a hidden name, and `recover` renames it back.

A replaced directory stays for a while under a hidden name, so that a reader that is listing it does not find it half
empty.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: How long, in seconds, a replaced or never published directory stays under a hidden name.
LEFT_SECONDS = 600.0
_REPLACED = "replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The kernel or the C library lacks the call, or the file system does not support it.
_CAN_NOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def hidden_beside(target: Path) -> Path:
    """Return an unused name for a directory that is to replace `target`; readers skip it."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def replace(staged: Path, target: Path, check: Callable[[], None]) -> None:
    """Replace `target` by `staged`, a directory beside it, durably on return; the old directory becomes hidden.

    `check` is called just before readers see the new one. Only one process at a time may call this.
    """
    recover(target)
    check()
    if not target.exists():
        staged.rename(target)
    elif not exchanged(staged, target):
        replaced = _replaced(target)
        if replaced.exists():
            replaced.rename(hidden_beside(target))
        target.rename(replaced)
        staged.rename(target)
    sync(target.parent)


def recover(target: Path) -> None:
    """Rename a directory back if a process died while replacing it. Only one process at a time may call this."""
    if not target.exists() and _replaced(target).exists():
        _replaced(target).rename(target)


def sweep(target: Path, *, older_than: float = LEFT_SECONDS) -> None:
    """Delete hidden leftovers of replacing `target` that are older than `older_than` seconds. One process at a time."""
    for left in target.parent.glob(f".{target.name}.*"):
        # The time of its last rename.
        if time.time() - left.stat().st_ctime >= older_than:
            shutil.rmtree(left, ignore_errors=True)


def exchanged(one: Path, other: Path) -> bool:
    """Exchange two names atomically; return False without any change if the system can't."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    arguments = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_RENAME_EXCHANGE))
    if rename(*arguments) == 0:
        return True
    code = ctypes.get_errno()
    if code in _CAN_NOT:
        return False
    raise OSError(code, os.strerror(code), str(other))


def sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replaced(target: Path) -> Path:
    return target.with_name(f".{target.name}.{_REPLACED}")


def remove_empty(folder: Path, before: float) -> None:
    """Remove the folders below one whose files were all deleted, unless they were changed after `before`."""
    for inner in (entry for entry in folder.iterdir() if entry.is_dir()) if folder.is_dir() else ():
        remove_empty(inner, before)
        if inner.stat().st_mtime <= before:
            try:
                inner.rmdir()
            except OSError:
                continue
