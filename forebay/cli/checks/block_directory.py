"""Check that blocks can be written to the directories of a block store: `forebay doctor` and `forebay up` ask it.

It writes, reads and removes a small file, and makes no directory. It asks no object store.
"""

from __future__ import annotations

import errno
import os
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROBE = b"forebay"
WRITABLE = "Make the folder writable for this user, or name another in FOREBAY_BLOCK_STORE."
# What time does not heal. A full disk, or one that does not answer, may be well again: receivers wait for it.
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)


def nearest_folder(path: Path) -> Path:
    """Return the path, or the nearest existing folder above it, in which it would be created."""
    return next(folder for folder in (path, *path.absolute().parents) if folder.is_dir())


def write_and_sync(root: Path) -> None:
    """Do once what a block needs: a new file, written, synced, its directory synced, and read. Raises OSError."""
    folder = nearest_folder(root)
    if folder != root and (blocking := folder / root.relative_to(folder).parts[0]).exists():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(blocking))
    probe = folder / f".forebay-doctor-{secrets.token_hex(4)}"
    directory = os.open(folder, os.O_RDONLY)
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(descriptor, PROBE)
            os.fsync(descriptor)
            os.fsync(directory)
            if probe.read_bytes() != PROBE:
                raise OSError(errno.EIO, "what was written and synced is not what is read")
        finally:
            os.close(descriptor)
            probe.unlink()
        os.fsync(directory)
    finally:
        os.close(directory)


def refuse_unusable_store(block_store: str) -> None:
    """Raise BlockStoreError if the setting is wrong, or no root that it names can ever be written here.

    A store whose other replica can be written is used. What may be well again later is for the receivers to wait for.
    """
    from receiver_runtime.block_store.frames.errors import BlockStoreError  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores.local import LocalBlockStore  # noqa: PLC0415
    from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of  # noqa: PLC0415

    faults = []
    for store in replicas_of(open_block_store(block_store)):
        if not isinstance(store, LocalBlockStore):
            return
        try:
            write_and_sync(store.root)
        except OSError as error:
            if error.errno not in _LASTING:
                return
            faults.append(f"{store.root} can't be written: {error}")
        else:
            return
    raise BlockStoreError(f"block store: {'; '.join(faults)}. {WRITABLE}")
