"""Retire contents whose files are gone or truncated.

This module owns the end of a content: how long its copy is waited for, what of it is lost, when its partition goes on
with the next content of the file, and when the driver log forgets it. It must never look for a copy (``naming``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.followed_file import COPY_SECONDS

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.reading import PieceReader
    from receiver_runtime.receivers.files.followed.reconciliation import Reconciliation
    from receiver_runtime.receivers.files.followed.reports import Reports
    from receiver_runtime.receivers.files.records import Reading
    from receiver_runtime.receivers.files.sharing import Sharing

_FORGET_SECONDS = 60.0  # seconds between two searches for what can be forgotten: each asks the driver log for all names


class Retirement:
    """End contents, and account for what is lost of them.

    Args:
        forget_after: for how many seconds a file is gone before it is forgotten.
        now: the monotonic clock's time.
    """

    def __init__(
        self,
        known: KnownContents,
        bindings: Bindings,
        reader: PieceReader,
        reconciliation: Reconciliation,
        sharing: Sharing,
        reports: Reports,
        *,
        forget_after: float,
        now: float,
    ) -> None:
        self._known = known
        self._bindings = bindings
        self._reader = reader
        self._reconciliation = reconciliation
        self._sharing = sharing
        self._reports = reports
        self._forget_after = forget_after
        self._forget_at = now + min(_FORGET_SECONDS, forget_after)
        # Readings with links that go in though nothing was read.
        self._changed: list[Reading] = []

    def take_changed(self) -> list[Reading]:
        """Return the readings that have links to go in though nothing of them was read, once."""
        changed, self._changed = self._changed, []
        return changed

    def begin_next(self, old: FollowedFile, file: FollowedFile) -> None:
        """Give a truncated file its old content's partition, in the next generation."""
        reading = old.reading
        assert reading is not None
        if old.ours:
            self._lose(old, "what was seen there and not read")
            reading.begin_again(self._known.source)
            self._changed.append(reading)
        self._bindings.drop(old)
        self._bindings.bind(file, reading)
        file.second = None
        file.marked = 0

    def give_up_gone(self, now: float) -> None:
        """Let contents go that are gone, are read as far as possible, and have no copy."""
        for file in self._bindings.contents():
            if file.gone_since is None:
                continue
            if file.reading is None or not file.ours:
                is_plain = file.codec is None and file.refused is None
                if file.reading is None and is_plain and file.size and file.held_since is None:
                    self._reports.report_unidentified(file)
                self._bindings.drop(file)
            elif now - file.gone_since >= COPY_SECONDS and not self._reader.has_more(file, now):
                self._lose(file, f"{file.path} is gone: what was seen of it and not read")
                self._bindings.drop(file)

    def forget_expired(self, now: float) -> None:
        """Have the driver log forget what has been gone for long.

        Nothing is forgotten while no file is present: all of them may be unavailable.
        """
        if now < self._forget_at:
            return
        self._forget_at = now + min(_FORGET_SECONDS, self._forget_after)
        self._reconciliation.refresh()
        files = self._bindings.files()
        present = [*self._bindings.names(), *(file.done_name for file in files)]
        expired = self._known.expired(present, now, after=self._forget_after, is_ours=self._sharing.is_ours)
        if expired and any(file.is_present for file in files):
            self._reconciliation.forget(expired)

    def _lose(self, file: FollowedFile, what: str) -> None:
        reading = file.reading
        if reading is None or file.done:
            return
        if file.codec is not None:
            self._reports.report_unfinished(file)
            return
        if file.size <= reading.position:
            return
        self._reports.report_lost(file, what, reading.position)
        reading.lose(self._known.source, file.size)
        self._changed.append(reading)
