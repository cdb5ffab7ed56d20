"""Identify a block store by an id in the file `_store` at its root, so that no process takes another store for it.

The id is random and created once. Two hosts that mount one directory under two names find the same id, and two
directories of the same name never do. The same holds for a prefix of an object store, whose address may lead to another
server later. The driver log decides who creates the id, and when (``store_attachment``): an empty directory may be the
mount point of a store that is not mounted.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from receiver_runtime.block_store.stores.interface import Replica

#: Holds the store's id: a file, or an object.
IDENTITY_FILE = "_store"
#: Bytes; more than any id has.
IDENTITY_BYTES = 256

# File systems without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def identity_of(store: Replica) -> str | None:
    """Return the identity of one root; None if it has none yet.

    Raises OSError or StoreUnavailableError if the root can't be asked.
    """
    return store.identity()


def make_identity(store: Replica, identity: str | None = None) -> str:
    """Return the root's identity; if there is none, create the given one, or a new one, durably.

    Raises as ``identity_of``.
    """
    return store.make_identity(identity)


def new_identity(kind: str) -> str:
    """Return an id that no other store has."""
    return f"{kind}-{secrets.token_hex(8)}"


def decoded(content: bytes) -> str | None:
    """Return the id in the content of a `_store`; None if it is empty."""
    return content.decode("ascii", "replace").strip() or None


def require_identity(name: str, expected: Collection[str], found: str | None) -> None:
    """Raise StoreUnavailableError unless the store that was found is one of those that are expected."""
    if found in expected:
        return
    wanted = " or ".join(sorted(expected)) or "none that the driver log knows: restart its agent when it is there"
    here = f"says {found}" if found else "is missing"
    raise StoreUnavailableError(name, f"not mounted? Its file {IDENTITY_FILE} {here}, expected is {wanted}")


def read_identity(directory: int) -> str | None:
    """Return the id in `_store` of an open directory; None if there is none. Raises OSError."""
    try:
        fd = os.open(IDENTITY_FILE, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0), dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        return decoded(os.read(fd, IDENTITY_BYTES))
    finally:
        os.close(fd)


def make_identity_file(root: Path, identity: str | None = None) -> str:
    """Make a directory a block store if it is none, atomically; return its identity. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    directory = os.open(root, os.O_RDONLY)
    try:
        found = read_identity(directory)
        if found is not None:
            return found
        new = root / f"{IDENTITY_FILE}.{secrets.token_hex(4)}"
        with new.open("x", encoding="ascii") as file:
            file.write(f"{identity or new_identity('directory')}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            _name_if_free(new, root / IDENTITY_FILE)
        finally:
            new.unlink(missing_ok=True)
        os.fsync(directory)
        # If two processes made one at the same time, both read the same id.
        made = read_identity(directory)
    finally:
        os.close(directory)
    if made is None:
        raise FileNotFoundError(errno.ENOENT, "it was made just now and is gone", str(root / IDENTITY_FILE))
    return made


def _name_if_free(new: Path, name: Path) -> None:
    try:
        with contextlib.suppress(FileExistsError):
            name.hardlink_to(new)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Less strict without hard links: two processes at once may each take their own id for the one that stays.
        if not name.exists():
            new.rename(name)
