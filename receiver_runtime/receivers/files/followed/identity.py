"""Tell which of the known contents a file may have.

This module owns the rules by which a content is found again: in its inode, in a copy, in a compressed file. A content
is known by its fingerprint, its second fingerprint and its last mark; one that was read here also by its last bytes,
and by its file if that is still open. It compares and answers: it must never bind a file, or ask the driver log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.comparisons import (
    ends_alike,
    has_head,
    has_tail,
    have_same_overlap,
    is_unchanged,
    reaches,
)
from receiver_runtime.receivers.files.followed.contents.content_names import copy_number, is_name_of
from receiver_runtime.receivers.files.followed.contents.fingerprints import FINGERPRINT_BYTES, matches
from receiver_runtime.receivers.files.followed.contents.followed_file import COPY_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.reading import OpenFiles
    from tracker_store.blocks.blocks import Position

_LONGEST_COPY_SECONDS = 60.0  # seconds: how long a copy waits that keeps growing; another file may begin like this one


class Identity:
    """Compare files with known contents. Every method raises OSError where a file can't be read."""

    def __init__(self, known: KnownContents, bindings: Bindings, open_files: OpenFiles) -> None:
        self._known = known
        self._bindings = bindings
        self._open = open_files

    def extent(self, name: str) -> tuple[bool, int, str]:
        """Return the key that sorts contents by how much is known: a second fingerprint, the position, the name."""
        content = self._bindings.named(name)
        if content is not None and content.reading is not None:
            return content.second is not None, content.reading.position, name
        at = self._known.at(name)
        if at is None:
            return False, 0, name
        return self._known.seconds.of(name, at.generation) is not None, at.offset, name

    def find_last_here(self, file: FollowedFile, head: bytes, *, is_certain: bool) -> str | None:
        """Return the name of the content that was last in this inode, if it may still be there.

        ``is_certain``: look for a content of which more than the fingerprint is known, or for one of which it is not.
        """
        if file.codec is not None:
            return None
        for name in sorted(self._known.index.begun_in(file.inode), key=copy_number, reverse=True):
            found = self._known.names.fingerprint_in(name)
            at = self._known.at(name)
            if (
                found is None
                or at is None
                or self._bindings.named(name) is not None
                or self._known.is_certain(name) is not is_certain
            ):
                continue
            if matches(head, found) and self._may_be(file, name, at, head, found[0], is_whole=False):
                return name
        return None

    def had_another(self, file: FollowedFile, head: bytes) -> bool:
        """Return whether this file had another content before that begins like its present one."""
        own = self._known.names.own(file.inode, file.fingerprint)
        names = self._known.index.with_fingerprint(file.fingerprint)
        return (
            any(is_name_of(name, own) for name in names) and self.find_last_here(file, head, is_certain=False) is None
        )

    def find_truncated_here(self, file: FollowedFile, names: Iterable[str]) -> FollowedFile | None:
        """Return the content that was in this file until it was truncated, if it is one of ``names``."""
        contents = [
            content
            for name in names
            if (content := self._bindings.named(name)) is not None and self._known.is_claimed(name)
        ]
        here = [one for one in contents if one.key is None and one.last_key == file.key and one.codec is None]
        return here[-1] if here and file.codec is None else None

    def find_own(self, file: FollowedFile, head: bytes) -> str | None:
        """Return the name by which a compressed file was read before, if no file has it now."""
        own = self._known.names.own(file.inode, file.fingerprint)
        for name in sorted(self._known.index.with_fingerprint(file.fingerprint) - self._bindings.names()):
            at = self._known.at(name)
            if at is not None and is_name_of(name, own) and self._may_be(file, name, at, head, file.fingerprint[0]):
                return name
        return None

    def may_have(self, file: FollowedFile, name: str, head: bytes) -> bool:
        """Return whether a file may have a known content."""
        at, found = self._known.at(name), self._known.names.fingerprint_in(name)
        return (
            at is not None
            and found is not None
            and (file.codec is not None or at.offset <= file.size)
            and self._may_be(file, name, at, head, found[0])
        )

    def may_continue_in(self, content: FollowedFile, file: FollowedFile, head: bytes) -> bool:
        """Return whether a content that is in no present file may be the one of this file, which begins like it."""
        reading = content.reading
        if reading is None or (
            # It got beyond its fingerprint and has no second one, so it was lost.
            content.second is None and content.fingerprint[0] < min(reading.position, FINGERPRINT_BYTES)
        ):
            return False
        if not matches(head, content.second) or (file.codec is None and reading.position > file.size):
            return False
        kept = self._open.plain(reading.name)
        if kept is not None and is_unchanged(content, kept, reading.position):
            # The file is deleted and was not truncated before: what it has behind the position is compared too.
            seen = kept.read(0, len(head))
            if not head.startswith(seen) or (file.codec is None and not ends_alike(kept, file)):
                return False
        if not content.tail:
            return reaches(file, reading.position, None)
        return has_tail(file, content.tail, reading.position)

    def is_waiting_copy(self, file: FollowedFile, content: FollowedFile, head: bytes, now: float) -> bool:
        """Return whether a file is a copy of a present file, and waits for that one to be truncated or deleted."""
        if file.codec is not None:
            return content.codec is None and has_head(content, head)
        if content.codec is not None or not have_same_overlap(file, content):
            return False
        if file.held_since is None:
            file.held_since = file.held_from = now
        if file.grown_at > file.held_from:
            file.held_from = now
        return now - file.held_from < COPY_SECONDS and now - file.held_since < _LONGEST_COPY_SECONDS

    def _may_be(
        self, file: FollowedFile, name: str, at: Position, head: bytes, length: int, *, is_whole: bool = True
    ) -> bool:
        """Return whether a file may have a content of which this much is known, and which has not ended.

        ``is_whole``: a file that ends before the second fingerprint, or the mark, does not have it.
        """
        return (
            matches(head, self._known.seconds.of(name, at.generation), is_whole=is_whole)
            and not self._known.seconds.has_ended(name, at, length)
            and reaches(file, at.offset, self._known.seconds.mark_of(name, at.generation), is_whole=is_whole)
        )
