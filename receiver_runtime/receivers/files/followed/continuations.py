"""Claim what follows a fingerprint, so that it is read by one name.

This module owns the step from a fingerprint to what is behind it. Two receivers may know one content by two names
until one of them reads the line behind the fingerprint. From then on that line tells which name it has, and the other
name ends. It must never read a file: its callers hand it what they read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.block_links import BlockLinks
from receiver_runtime.receivers.files.followed.contents.fingerprints import fingerprint_of
from receiver_runtime.receivers.files.records import Reading

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.changes import ChangeDetector
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.identity import Identity
    from receiver_runtime.receivers.files.followed.reports import Reports


class Continuations:
    """Claim the lines behind fingerprints, or give up a name for the one that has the line."""

    def __init__(
        self, known: KnownContents, bindings: Bindings, identity: Identity, changes: ChangeDetector, reports: Reports
    ) -> None:
        self._known = known
        self._links = BlockLinks(known)
        self._bindings = bindings
        self._identity = identity
        self._changes = changes
        self._reports = reports

    def claim(self, file: FollowedFile, reading: Reading, head: bytes) -> bool:
        """Be the first to read what is behind a fingerprint; False: the content has another name, and is bound to it.

        Raises OSError.
        """
        end = head.find(b"\n", file.fingerprint[0]) + 1 or len(head)
        line = fingerprint_of(head, end)
        if self._links.is_continued(line) and self._take_other_name(file, reading, head):
            return False
        self._links.continuation(reading, line)
        return True

    def _take_other_name(self, file: FollowedFile, reading: Reading, head: bytes) -> bool:
        """Bind a file to the name by which another receiver has read on its content; False: there is none.

        The two had it in different files, as after a copytruncate, and more contents began alike since, so that neither
        could tell which one it is. A content that is in another present file is another content.
        """
        for name, generation in self._known.seconds.continued_with(head):
            at = self._known.registered(name)
            found = self._known.names.fingerprint_in(name)
            if at is None or at.generation != generation or name == reading.name or found is None:
                continue
            if not self._identity.may_have(file, name, head):
                continue
            content = self._bindings.named(name)
            if content is not None and content.is_present and self._changes.still_holds(content):
                continue
            if self._known.seconds.seen_at(name, generation) <= file.bound_at:
                self._reports.report_possible_duplicate(file, name, at)
                continue
            if content is not None:
                self._bindings.drop(content)
            self._bindings.unbind(file)
            file.fingerprint = found
            other = Reading(name)
            other.go_to(at)
            self._bindings.bind(file, other)
            self._links.end(reading.name, file.fingerprint[0] + 1, other)
            return True
        return False
