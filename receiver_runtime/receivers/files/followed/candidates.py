"""Find the known contents that an unidentified file may have, and move those that continue in it.

``identity`` answers which contents a file may have; here they are tried in an order, so that

- a renamed file keeps its content, and is read to its end;
- a content that was copied and truncated (copytruncate), or compressed, continues in the copy, once its own file is
  gone or begins otherwise;
- a truncated file's content has ended: what was seen and not read is lost, unless a copy of it appears;
- an inode that is used again has another content, because its fingerprint is another.

While a copy and its original are both present, the copy waits. This module must never give a file a new name:
``naming`` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.records import Reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.changes import ChangeDetector
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.identity import Identity
    from receiver_runtime.receivers.files.followed.retirement import Retirement


@dataclass(frozen=True, slots=True)
class Pass:
    """Hold what one pass has before it names files: the time, the unidentified files, the replacements so far."""

    now: float
    unknown: Sequence[tuple[FollowedFile, bytes]]
    replacements: int


class Candidates:
    """Find contents for files that have none."""

    def __init__(
        self,
        known: KnownContents,
        bindings: Bindings,
        identity: Identity,
        changes: ChangeDetector,
        retirement: Retirement,
    ) -> None:
        self._known = known
        self._bindings = bindings
        self._identity = identity
        self._changes = changes
        self._retirement = retirement

    def rebind_in_place(self, file: FollowedFile, head: bytes, *, is_certain: bool) -> bool:
        """Bind a file to the content that was last in its inode, if it is still there. Raises OSError.

        ``is_certain``: more than the fingerprint is known of that content.
        """
        name = self._identity.find_last_here(file, head, is_certain=is_certain)
        if name is None:
            return False
        found = self._known.names.fingerprint_in(name)
        assert found is not None
        file.fingerprint = found
        reading = Reading(name)
        reading.go_to(self._known.registered(name))
        self._bindings.bind(file, reading)
        if file.size < reading.position:
            self._bindings.replace(file)
        return True

    def find(self, file: FollowedFile, head: bytes, this_pass: Pass) -> list[str] | None:
        """Return the known contents that begin alike and are in no file; None: the file has one of them, or waits."""
        candidates: list[str] = []
        names = self._known.index.beginning_with(head)
        # Compare with present files first: a copy waits even if a content that is gone begins alike.
        if self._is_waiting_copy(file, head, names, this_pass.now):
            return None
        truncated = self._identity.find_truncated_here(file, names)
        # Then compare with the contents of which most is known.
        by_extent = sorted(names, key=self._identity.extent, reverse=True)
        certain = [name for name in by_extent if self._identity.extent(name)[0]]
        for name in certain:
            if self._continue(name, file, head, truncated, candidates):
                return None
        if truncated is not None and not candidates:
            # It begins with the same line again, and there is no copy.
            if not self._may_have_copy(truncated, file, this_pass):
                self._retirement.begin_next(truncated, file)
            return None
        if truncated is None and self._rebind_begun(file, head, is_known=bool(candidates)):
            return None
        for name in by_extent[len(certain) :]:
            if self._continue(name, file, head, truncated, candidates):
                return None
        return candidates

    def _is_waiting_copy(self, file: FollowedFile, head: bytes, names: set[str], now: float) -> bool:
        for present in [self._bindings.named(name) for name in sorted(names & self._bindings.names())]:
            if (
                present is not None
                and present.is_present
                and self._changes.still_holds(present)
                and self._identity.is_waiting_copy(file, present, head, now)
            ):
                return True
        return False

    def _may_have_copy(self, truncated: FollowedFile, file: FollowedFile, this_pass: Pass) -> bool:
        """Return whether a copy of a truncated content is among the unidentified files, or may be in the next pass."""
        return self._bindings.replacements != this_pass.replacements or any(
            self._identity.may_continue_in(truncated, other, head)
            for other, head in this_pass.unknown
            if other is not file
        )

    def _continue(
        self, name: str, file: FollowedFile, head: bytes, truncated: FollowedFile | None, candidates: list[str]
    ) -> bool:
        """Move a content into this file if it continues there; one that is not in memory becomes a candidate.

        Raises OSError.
        """
        content = self._bindings.named(name)
        if content is None:
            if self._identity.may_have(file, name, head):
                candidates.append(name)
            return False
        if content is truncated or content.is_present:
            return False
        if not self._known.is_claimed(name):
            # Nothing of it was read here, and the receiver that reads it may give it another name.
            self._bindings.drop(content)
            return False
        if self._identity.may_continue_in(content, file, head):
            self._bindings.move(content, file)
            return True
        if (
            self._known.is_registered(name)
            and self._known.is_certain(name)
            and self._identity.may_have(file, name, head)
        ):
            # Other receivers have read another content by that name, and what was read of it here is refused.
            self._bindings.drop(content, is_refused=True)
            candidates.append(name)
        return False

    def _rebind_begun(self, file: FollowedFile, head: bytes, *, is_known: bool) -> bool:
        """Bind a file to a content that began in its inode and of which no more than the fingerprint was read.

        ``is_known``: other known contents may continue in this file too, so the content must be registered.
        """
        name = self._identity.find_last_here(file, head, is_certain=False)
        return (
            name is not None
            and (self._known.is_registered(name) or not is_known)
            and self.rebind_in_place(file, head, is_certain=False)
        )
