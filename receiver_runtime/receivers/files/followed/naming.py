"""Name files: each gets the name of a known content, a new name, or none yet.

This module owns the pass over unidentified files: which file comes first, which name it gets, and when a name is
claimed. ``candidates`` says which known contents a file may continue. All receivers take the same steps in the same
order, because two that read one file must give it one name. This module must never read records or move a position.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.file_kinds import UnreadableKindError
from receiver_runtime.receivers.files.followed.candidates import Pass
from receiver_runtime.receivers.files.followed.contents.comparisons import read_head
from receiver_runtime.receivers.files.followed.contents.content_names import copy_number
from receiver_runtime.receivers.files.followed.contents.fingerprints import (
    FINGERPRINT_BYTES,
    fingerprint_length,
    fingerprint_of,
)
from receiver_runtime.receivers.files.followed.reports import FileFailure
from receiver_runtime.receivers.files.plain_text import check_text
from receiver_runtime.receivers.files.records import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from receiver_runtime.receivers.files.declaration import FollowedSource
    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.candidates import Candidates
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.identity import Identity
    from receiver_runtime.receivers.files.followed.marks import Marks
    from receiver_runtime.receivers.files.followed.reconciliation import Reconciliation
    from receiver_runtime.receivers.files.followed.reports import Reports


class Naming:
    """Give names to files that have none."""

    def __init__(
        self,
        settings: FollowedSource,
        known: KnownContents,
        bindings: Bindings,
        identity: Identity,
        candidates: Candidates,
        reconciliation: Reconciliation,
        marks: Marks,
        reports: Reports,
    ) -> None:
        self._encoding = settings.text_encoding
        self._fingerprint_lines = settings.fingerprint_lines
        self._complete_after = settings.complete_after
        self._known = known
        self._bindings = bindings
        self._identity = identity
        self._candidates = candidates
        self._reconciliation = reconciliation
        self._marks = marks
        self._reports = reports

    def name_files(self, now: float, *, at_end: bool) -> bool:
        """Name the files that can be named; False: others know more than this receiver did, so look again.

        Files that stayed in place come first, because another may begin like one of them. Files that had another
        content come last, because that content may continue in a copy.

        ``at_end``: files are read from the ends that they have now.
        """
        unknown: list[tuple[FollowedFile, bytes]] = []
        for file in self._bindings.files():
            if file.reading is None and file.gone_since is None and file.refused is None:
                with self._report_unreadable(file):
                    unknown += self._look_into(file, now)
        self._reports.show_unread(self._bindings.files(), now)
        this_pass = Pass(now, unknown, self._bindings.replacements)
        for file, head in sorted(unknown, key=lambda one: (self._identity.had_another(*one), one[0].path)):
            if not self._name_file(file, head, this_pass, at_end=at_end):
                return False
        return True

    def _name_file(self, file: FollowedFile, head: bytes, this_pass: Pass, *, at_end: bool) -> bool:
        """Name one file, or let it wait; False: others know more than this receiver did."""
        name = None
        if self._bindings.file_at(file.key) is file:
            with self._report_unreadable(file):
                name = self._choose_name(file, head, this_pass)
        if name is None:
            return True
        if not self._known.is_claimed(name) and (at_end or self._bindings.is_ours(file)):
            if not self._known.claim(name, file.inode, file.fingerprint):
                # Since the last refresh another receiver began this content, or one that begins alike.
                self._reconciliation.refresh()
                self._reconciliation.reidentify_unclaimed()
                return False
            if at_end:
                self._marks.skip(file, name, head)
        reading = Reading(name)
        reading.go_to(self._known.registered(name))
        self._bindings.bind(file, reading)
        self._marks.report_uncompared(file, reading)
        return True

    # -- files that stayed in place ----------------------------------------------------------------------------------

    def _look_into(self, file: FollowedFile, now: float) -> list[tuple[FollowedFile, bytes]]:
        """Return the file with its beginning, or nothing where it stayed in place or waits. Raises OSError."""
        head = self._inspect(file, now)
        if head is None:
            return []
        if not self._candidates.rebind_in_place(file, head, is_certain=True):
            return [(file, head)]
        # If it was truncated since, its file is now an unidentified one.
        new = self._bindings.file_at(file.last_key)
        if new is None or new is file or (head := self._inspect(new, now)) is None:
            return []
        return [(new, head)]

    def _inspect(self, file: FollowedFile, now: float) -> bytes | None:
        """Return a file's beginning and note its fingerprint; None: it has none yet, or is done. Raises OSError."""
        head, file.codec, checksum = read_head(file)
        if self._encoding is not None:
            check_text(head, self._encoding)
        is_complete = file.codec is not None or file.is_complete(now, self._complete_after)
        length = fingerprint_length(head, self._fingerprint_lines, is_complete=is_complete)
        if length is None:
            return None
        self._reconciliation.ensure_fresh()
        if file.codec is None:
            # Other receivers may have read more of it than this look saw.
            with contextlib.suppress(OSError):
                file.size = file.tree.status(file.path).st_size
        file.done_name = None if checksum is None else self._known.names.done(checksum)
        file.fingerprint = fingerprint_of(head, length)
        if file.done_name is not None and self._known.is_registered(file.done_name):
            file.done = True
            self._bindings.bind(file, Reading(file.done_name))
            return None
        return head

    # -- other files -------------------------------------------------------------------------------------------------

    def _choose_name(self, file: FollowedFile, head: bytes, this_pass: Pass) -> str | None:
        """Return the name of a content that is in no other file, or a new name; None: the file has one, or waits."""
        candidates = self._candidates.find(file, head, this_pass)
        if candidates is None:
            return None
        certain = [name for name in candidates if self._known.is_certain(name)]
        if len(certain) == 1:
            return certain[0]
        if len(candidates) > 1:
            # Of several that began alike, choose the one that was read to exactly this end.
            candidates = [name for name in candidates if file.codec is None and self._known.offset(name) == file.size]
        if len(candidates) == 1:
            return candidates[0]
        if file.codec is not None and (own := self._identity.find_own(file, head)) is not None:
            return own
        return self._new_name(file, head)

    def _new_name(self, file: FollowedFile, head: bytes) -> str:
        alike = self._known.index.with_fingerprint(file.fingerprint)
        if alike:
            self._report_same_lines(file, head, alike)
        own = self._known.names.own(file.inode, file.fingerprint)
        taken = {copy_number(name) for name in alike}
        number = next(n for n in itertools.count() if n not in taken)
        return f"{own}~{number}" if number else own

    def refuse(self, file: FollowedFile, error: UnreadableKindError) -> None:
        """Read no more of a file while it is as it is, because its kind is not read."""
        file.refused = error
        self._reports.report_failure(file.path, FileFailure.REFUSED, error)

    # -- reports -----------------------------------------------------------------------------------------------------

    def _report_same_lines(self, file: FollowedFile, head: bytes, alike: Iterable[str]) -> None:
        """Report that two present files begin with the same lines and differ later: the user can tell them apart."""
        length = file.fingerprint[0]
        if self._reports.has_reported_same_lines or length == FINGERPRINT_BYTES:
            return
        others = [other for name in alike if (other := self._bindings.named(name)) is not None]
        for other in others:
            with contextlib.suppress(OSError):
                its = read_head(other).data if other.is_present else b""
                end = min(len(its), len(head))
                if end > length and its[length:end] != head[length:end]:
                    self._reports.report_same_lines(file.path, other.path, self._fingerprint_lines)
                    return

    @contextlib.contextmanager
    def _report_unreadable(self, file: FollowedFile) -> Iterator[None]:
        """Leave a file that can't be compared to the next pass."""
        try:
            yield
            file.unreadable = None
        except UnreadableKindError as error:
            self.refuse(file, error)
        except OSError as error:
            file.unreadable = error
            self._reports.report_failure(file.path, FileFailure.UNREADABLE, error)
