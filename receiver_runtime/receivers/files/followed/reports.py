"""Report events of followed files to the operator.

This module owns the texts, and the memory of what was reported once already. It must never decide whether something is
to be reported: its callers do.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.file_kinds import unread_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.holes import Hole
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Position


class FileFailure(StrEnum):
    """Say why a file is not read."""

    NO_STATUS = "can't be looked at, it is tried again"
    UNREADABLE = "can't be read, it is tried again"
    REFUSED = "is not read"  # a symbolic link, or a kind without lines


class Reports:
    """Report events of the files that one receiver follows."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        # Paths, each with a reason.
        self._reported: set[tuple[str, str]] = set()
        self._has_reported_same_lines = False

    def report_unlisted(self, directory: str, error: OSError) -> None:
        """Report that a directory can't be listed."""
        self._receiver.report_error(f"{directory} can't be listed, it is tried again", error)
        self._receiver.report_degraded("listing", f"{directory} can't be listed: {error}")

    def report_listed(self, pattern: str) -> None:
        """Report that a directory can be listed again."""
        self._receiver.report_degraded("listing", None)
        self._receiver.report_connected(pattern)

    def report_failure(self, path: str, failure: FileFailure, error: OSError) -> None:
        """Report, once for each file and reason, that a file is not read now, or never."""
        if self._is_first(path, str(error)):
            self._receiver.report_error(f"{path} {failure}", error)

    def show_unread(self, files: Iterable[FollowedFile], now: float) -> None:
        """Show in the receiver's status, for as long as there are any, the files that are not read."""
        # What another receiver reads is its to show.
        ours = (file for file in files if file.reading is None or file.ours)
        unread = [(file.path, why) for file in ours if (why := file.why_unread(now)) is not None]
        self._receiver.report_degraded("kinds of files", unread_files(unread))

    def report_hole(self, path: str, hole: Hole) -> None:
        """Report that NULs of a file were passed over."""
        self._receiver.report_error(hole.words(path))

    def report_truncated(self, file: FollowedFile, position: int) -> None:
        """Report that a file has another content, and its content may be gone."""
        self._receiver.report_error(
            f"{file.path} was truncated, or replaced: it had {file.size} bytes, {position} of them are "
            "read; it is read again from its beginning"
        )

    def report_unidentified(self, file: FollowedFile) -> None:
        """Report that a file is gone before it had enough lines to be identified."""
        self._receiver.report_error(
            f"{file.path} is gone: its {file.size} bytes were seen and not read, because it did not have the "
            "whole lines yet that identify it; they are lost",
        )

    def report_unfinished(self, file: FollowedFile) -> None:
        """Report that a compressed file is gone before it was read to its end."""
        self._receiver.report_error(f"{file.path} is gone, and was not read to its end")

    def report_lost(self, file: FollowedFile, what: str, position: int) -> None:
        """Report that the bytes behind ``position`` are lost."""
        self._receiver.report_error(
            f"{what}: bytes {position} up to {file.size}, {file.size - position} of them, are lost ({file.path})"
        )

    def report_uncompared(self, file: FollowedFile, name: str, compared: int, position: int) -> None:
        """Report, once for each file and content, that most of a compressed file was not compared."""
        said = f"is taken for what was read of {name}"
        if self._is_first(file.path, said):
            self._receiver.report_error(
                f"{file.path} {said} before: its first {compared} bytes, decompressed, are the same, the others "
                f"up to {position} are not compared and not read again; if it is another file, put it "
                "there with another beginning"
            )

    def report_possible_duplicate(self, file: FollowedFile, name: str, at: Position) -> None:
        """Report that a file may be one that was read before, and is read as another."""
        self._receiver.report_error(
            f"{file.path} begins as {name} did, {at.offset} bytes of which were read, and which is in no file "
            "now: it is read as another file, and what is the same comes twice if it is that one; set "
            "fingerprint_lines to more lines than are the same in all files"
        )

    @property
    def has_reported_same_lines(self) -> bool:
        """Return whether ``report_same_lines`` has reported: once is enough for a directory."""
        return self._has_reported_same_lines

    def report_same_lines(self, path: str, other: str, fingerprint_lines: int) -> None:
        """Report that two files begin with the same lines, and are different."""
        self._has_reported_same_lines = True
        self._receiver.report_error(
            f"{path} begins with the same line as {other}, as others may: while no more than "
            "that is read of a file it may be taken for another; set fingerprint_lines to more lines "
            f"than are the same (now {fingerprint_lines})"
        )

    def _is_first(self, path: str, reason: str) -> bool:
        reported = (path, reason)
        if reported in self._reported:
            return False
        self._reported.add(reported)
        return True
