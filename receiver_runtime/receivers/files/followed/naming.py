"""Name files: each gets the name of a known content, a new name, or none yet.

This module owns the pass over unidentified files. ``identity`` answers which contents a file may have; here one is
chosen, so that

- a renamed file keeps its content, and is read to its end;
- a content that was copied and truncated (copytruncate), or compressed, continues in the copy, once its own file is
  gone or begins otherwise;
- a truncated file's content has ended: what was seen and not read is lost, unless a copy of it appears;
- an inode that is used again has another content, because its fingerprint is another.

While a copy and its original are both present, the copy waits. All receivers take the same steps in the same order,
because two that read one file must give it one name. This module must never read records or move a position.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.file_kinds import UnreadableKindError
from receiver_runtime.receivers.files.followed.contents.comparisons import read_head
from receiver_runtime.receivers.files.followed.contents.fingerprints import (
    FINGERPRINT_BYTES,
    fingerprint_length,
    fingerprint_of,
)
from receiver_runtime.receivers.files.followed.contents.known_contents import copy_number
from receiver_runtime.receivers.files.records import Reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from receiver_runtime.receivers.files.declaration import FollowedFiles
    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.changes import ChangeDetector
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.identity import Identity
    from receiver_runtime.receivers.files.followed.marks import Marks
    from receiver_runtime.receivers.files.followed.reconciliation import Reconciliation
    from receiver_runtime.receivers.files.followed.reports import Reports
    from receiver_runtime.receivers.files.followed.retirement import Retirement


@dataclass(frozen=True, slots=True)
class _Pass:
    """Hold what one pass has before it names files: the time, the unidentified files, the replacements so far."""

    now: float
    unknown: Sequence[tuple[FollowedFile, bytes]]
    replacements: int


class Naming:
    """Give names to files that have none."""

    def __init__(
        self,
        settings: FollowedFiles,
        known: KnownContents,
        bindings: Bindings,
        identity: Identity,
        changes: ChangeDetector,
        reconciliation: Reconciliation,
        marks: Marks,
        retirement: Retirement,
        reports: Reports,
    ) -> None:
        self._fingerprint_lines = settings.fingerprint_lines
        self._complete_after = settings.complete_after
        self._known = known
        self._bindings = bindings
        self._identity = identity
        self._changes = changes
        self._reconciliation = reconciliation
        self._marks = marks
        self._retirement = retirement
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
        self._reports.show_refused([file for file in self._bindings.files() if file.refused is not None])
        this_pass = _Pass(now, unknown, self._bindings.replacements)
        for file, head in sorted(unknown, key=lambda one: (self._identity.had_another(*one), one[0].path)):
            if not self._name_file(file, head, this_pass, at_end=at_end):
                return False
        return True

    def _name_file(self, file: FollowedFile, head: bytes, this_pass: _Pass, *, at_end: bool) -> bool:
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
        if not self._rebind_in_place(file, head, is_certain=True):
            return [(file, head)]
        # If it was truncated since, its file is now an unidentified one.
        new = self._bindings.file_at(file.last_key)
        if new is None or new is file or (head := self._inspect(new, now)) is None:
            return []
        return [(new, head)]

    def _inspect(self, file: FollowedFile, now: float) -> bytes | None:
        """Return a file's beginning and note its fingerprint; None: it has none yet, or is done. Raises OSError."""
        head, file.codec, checksum = read_head(file)
        is_complete = file.codec is not None or file.is_complete(now, self._complete_after)
        length = fingerprint_length(head, self._fingerprint_lines, is_complete=is_complete)
        if length is None:
            return None
        self._reconciliation.ensure_fresh()
        if file.codec is None:
            # Other receivers may have read more of it than this look saw.
            with contextlib.suppress(OSError):
                file.size = file.tree.status(file.path).st_size
        file.done_name = None if checksum is None else self._known.done_name(checksum)
        file.fingerprint = fingerprint_of(head, length)
        if file.done_name is not None and self._known.is_registered(file.done_name):
            file.done = True
            self._bindings.bind(file, Reading(file.done_name))
            return None
        return head

    def _rebind_in_place(self, file: FollowedFile, head: bytes, *, is_certain: bool) -> bool:
        """Bind a file to the content that was last in its inode, if it is still there. Raises OSError.

        ``is_certain``: more than the fingerprint is known of that content.
        """
        name = self._identity.find_last_here(file, head, is_certain=is_certain)
        if name is None:
            return False
        found = self._known.fingerprint_in(name)
        assert found is not None
        file.fingerprint = found
        reading = Reading(name)
        reading.go_to(self._known.registered(name))
        self._bindings.bind(file, reading)
        if file.size < reading.position:
            self._bindings.replace(file)
        return True

    # -- other files -------------------------------------------------------------------------------------------------

    def _choose_name(self, file: FollowedFile, head: bytes, this_pass: _Pass) -> str | None:
        """Return the name of a content that is in no other file, or a new name; None: the file has one, or waits."""
        candidates = self._find_candidates(file, head, this_pass)
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
        alike = self._known.with_fingerprint(file.fingerprint)
        if alike:
            self._report_same_lines(file, head, alike)
        own = self._known.own_name(file.inode, file.fingerprint)
        taken = {copy_number(name) for name in alike}
        number = next(n for n in itertools.count() if n not in taken)
        return f"{own}~{number}" if number else own

    def _find_candidates(self, file: FollowedFile, head: bytes, this_pass: _Pass) -> list[str] | None:
        """Return the known contents that begin alike and are in no file; None: the file has one of them, or waits."""
        candidates: list[str] = []
        names = self._known.beginning_with(head)
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

    def _may_have_copy(self, truncated: FollowedFile, file: FollowedFile, this_pass: _Pass) -> bool:
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
            and self._rebind_in_place(file, head, is_certain=False)
        )

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
        except UnreadableKindError as error:
            file.refused = error
            self._reports.report_refused(file.path, error)
        except OSError as error:
            self._reports.report_unreadable(file.path, error)
