"""Which block store is it? Two hosts see the same one if its root has the same identity for both.

A directory's identity is a random word in a file of its own at the root, made once, whole or not at all: two hosts that
mount one directory under two names find the same word, and two directories of one name never do. An object store has
one name for everybody, which is its identity.
"""

from __future__ import annotations

import errno
import os
import secrets
from typing import TYPE_CHECKING

from receiver_runtime.block_store.local import IDENTITY_FILE, LocalBlockStore

if TYPE_CHECKING:
    from pathlib import Path

    from receiver_runtime.block_store.interface import Replica

# File systems without hard links.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


def identity_of(store: Replica) -> str | None:
    """The identity of one root; None where a directory has none yet. Raises OSError: it can't be asked."""
    if not isinstance(store, LocalBlockStore):
        return store.name
    try:
        return (store.root / IDENTITY_FILE).read_text(encoding="ascii").strip() or None
    except FileNotFoundError:
        return None


def make_identity(store: Replica) -> str:
    """The same, made where there is none, and durable. Raises OSError."""
    found = identity_of(store)
    if found is not None or not isinstance(store, LocalBlockStore):
        return found or store.name
    store.root.mkdir(parents=True, exist_ok=True)
    new = store.root / f"{IDENTITY_FILE}.{secrets.token_hex(4)}"
    with new.open("x", encoding="ascii") as file:
        file.write(f"directory-{secrets.token_hex(8)}\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        _name_if_free(new, store.root / IDENTITY_FILE)
    finally:
        new.unlink(missing_ok=True)
    descriptor = os.open(store.root, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    # Of two that made one at the same time both read the same.
    made = identity_of(store)
    if made is None:
        raise FileNotFoundError(errno.ENOENT, "it was made just now and is gone", str(store.root / IDENTITY_FILE))
    return made


def _name_if_free(new: Path, name: Path) -> None:
    try:
        name.hardlink_to(new)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        # Not quite the same: two at the same moment may each take their own for the one that stays.
        if not name.exists():
            new.rename(name)
