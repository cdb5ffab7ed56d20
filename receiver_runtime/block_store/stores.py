"""From the setting ``block_store`` to a block store."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from receiver_runtime.block_store.errors import BlockStoreError
from receiver_runtime.block_store.local import LocalBlockStore


class UnknownBlockStoreError(BlockStoreError):
    """Only a directory (a path, or a file:// URL) can be a block store. Set FOREBAY_BLOCK_STORE to one."""


def open_block_store(url: str) -> LocalBlockStore:
    """The block store at a path or ``file://`` URL; nothing is made or read before it is used.

    Raises:
        UnknownBlockStoreError: another scheme, or a host in the file URL.
    """
    parts = urlsplit(url)
    # A path may have a colon in it; only scheme:// is a URL.
    if "://" not in url:
        return LocalBlockStore(url)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return LocalBlockStore(unquote(parts.path))
    raise UnknownBlockStoreError(f"block store {url!r} can't be used: {UnknownBlockStoreError.__doc__}")
