"""Check that blocks can be written to the directories of a block store: `forebay doctor` and `forebay up` ask it.

It writes, reads and removes a small file, and makes no directory. It asks no object store.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROBE = b"forebay"
WRITABLE = "Make the folder writable for this user, or name another in FOREBAY_BLOCK_STORE."


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


def check_roots(block_store: str, tell: Callable[[str], None]) -> None:
    """Refuse a wrong setting, and tell, in a thread, of each directory that can't be written now.

    It may not be mounted yet, or not answer for long: receivers wait for it. Raises BlockStoreError.
    """
    from receiver_runtime.block_store.stores.local import LocalBlockStore  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of  # noqa: PLC0415

    stores = [store for store in replicas_of(open_block_store(block_store)) if isinstance(store, LocalBlockStore)]

    def look() -> None:
        for store in stores:
            try:
                write_and_sync(store.root)
            except OSError as error:
                tell(f"block store: {store.root} can't be written: {error}. Mount it if it is not; else: {WRITABLE}")

    threading.Thread(target=look, name="block store", daemon=True).start()
