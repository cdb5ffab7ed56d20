"""Replaces a directory that others read by another one, in one step where the system can.

Linux exchanges two names at once on the file systems of its own (ext4, xfs, btrfs, tmpfs); elsewhere it takes two
renames, and between them the directory is not there. A process that dies at any point leaves the old directory or the
new one, or, between the two renames, the old one under a hidden name, which `recover` gives its name back.

What was replaced stays for a while under a hidden name: who had it open to list it would find it half empty otherwise.
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

#: How long what was replaced, or never took its place, stays under a hidden name.
LEFT_SECONDS = 600.0
_REPLACED = "replaced"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# The kernel or the C library has no such call, or the file system can't.
_CAN_NOT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


def hidden_beside(target: Path) -> Path:
    """A name for a directory that is to replace `target`, which nobody has and readers pass over."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def replace(staged: Path, target: Path, check: Callable[[], None]) -> None:
    """Put `staged`, a directory beside `target`, in its place, durable on return; what was there is hidden.

    `check` is called just before readers see it. One process at a time.
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
    """Give a directory its name back that a process was about to replace when it died. One process at a time."""
    if not target.exists() and _replaced(target).exists():
        _replaced(target).rename(target)


def sweep(target: Path, *, older_than: float = LEFT_SECONDS) -> None:
    """Take away what replacing `target` left under hidden names so long ago. One process at a time."""
    for left in target.parent.glob(f".{target.name}.*"):
        # Of its last rename.
        if time.time() - left.stat().st_ctime >= older_than:
            shutil.rmtree(left, ignore_errors=True)


def exchanged(one: Path, other: Path) -> bool:
    """Exchange two names in one step; False, and nothing is done, where the system can't."""
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
    """Have a file, or a directory's names, on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replaced(target: Path) -> Path:
    return target.with_name(f".{target.name}.{_REPLACED}")
