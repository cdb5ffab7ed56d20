"""Find contents by what they begin with, and by the inodes in which they began.

This module must never ask whether a receiver reads a content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.fingerprints import digest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint


class ContentIndex:
    """Hold the names of contents by fingerprint and inode."""

    def __init__(self) -> None:
        self._by_fingerprint: dict[Fingerprint, set[str]] = {}
        self._by_inode: dict[str, list[str]] = {}

    def add(self, name: str, fingerprint: Fingerprint, inode: str | None = None) -> None:
        """Note that a content has this fingerprint, and is in this inode; the driver log need not have it yet."""
        self._by_fingerprint.setdefault(fingerprint, set()).add(name)
        if inode is not None:
            self._by_inode.setdefault(inode, []).append(name)

    def discard(self, name: str, fingerprint: Fingerprint) -> None:
        """Forget the fingerprint of a content."""
        self._by_fingerprint.get(fingerprint, set()).discard(name)

    def begun_in(self, inode: str) -> Iterable[str]:
        """Return the names of contents that began in this inode."""
        return self._by_inode.get(inode, ())

    def with_fingerprint(self, fingerprint: Fingerprint) -> AbstractSet[str]:
        """Return the names of contents with this fingerprint."""
        return self._by_fingerprint.get(fingerprint, set())

    def beginning_with(self, head: bytes) -> set[str]:
        """Return the names of contents whose fingerprint this beginning has, at any length."""
        lengths = {length for length, _ in self._by_fingerprint if length <= len(head)}
        fingerprints = {(length, digest(head[:length])) for length in lengths}
        return {name for one in fingerprints for name in self._by_fingerprint.get(one, ())}
