"""List the files that match the pattern, and decide when to list them again.

This module owns the listing and its schedule. It must never open a file, and knows neither contents nor the driver log.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import stat
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.declaration import is_unfinished
from receiver_runtime.receivers.files.followed.contents.followed_file import key_of
from receiver_runtime.receivers.files.followed.reports import FileFailure
from receiver_runtime.receivers.files.local_tree import LocalTree, SymlinkRefusedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from receiver_runtime.receivers.files.declaration import FollowedSource
    from receiver_runtime.receivers.files.followed.contents.followed_file import Key
    from receiver_runtime.receivers.files.followed.reports import Reports

    #: The path and the status of each file.
    Listing = Mapping[Key, tuple[str, os.stat_result]]


class LookSchedule:
    """Decide when the directory is listed: each ``interval`` seconds, or at once when a caller asks for it."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._next_at = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether it is time to list the directory."""
        return now >= self._next_at

    def begin(self, now: float) -> None:
        """Note that the directory is listed now."""
        self._next_at = now + self._interval

    def hurry(self) -> None:
        """Have the directory listed with the next look."""
        self._next_at = 0.0


class Directory:
    """List the files that match the pattern of a source."""

    def __init__(self, settings: FollowedSource, reports: Reports) -> None:
        self._pattern = settings.path
        self._exclude = settings.exclude
        self._unfinished = settings.unfinished
        self._base = _base_of(settings.path)
        #: Opens the files that are listed.
        self.tree = LocalTree(self._base, follow_symlinks=settings.follow_symlinks)
        self._reports = reports
        self._is_unavailable = False

    def list_files(self) -> Listing | None:
        """Return the files that match now, or None where the directory is unavailable and nothing is known of it."""
        try:
            with os.scandir(self._base):
                pass
        except OSError as error:
            if not self._is_unavailable:
                self._is_unavailable = True
                self._reports.report_unlisted(self._base, error)
            return None
        if self._is_unavailable:
            self._is_unavailable = False
            self._reports.report_listed(self._pattern)
        found: dict[Key, tuple[str, os.stat_result]] = {}
        held: dict[str, bool] = {}
        refused: list[tuple[str, OSError]] = []
        for path in sorted(glob.iglob(self._pattern, recursive=True)):  # noqa: PTH207  of thousands, each second
            name = os.path.basename(path)  # noqa: PTH119  likewise
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._exclude) or is_unfinished(
                name, self._unfinished
            ):
                continue
            try:
                status = self._status(path, held)
            except SymlinkRefusedError as error:
                refused.append((path, error))
                continue
            except FileNotFoundError:
                continue
            except OSError as error:
                self._reports.report_failure(path, FileFailure.NO_STATUS, error)
                continue
            if stat.S_ISREG(status.st_mode):
                found.setdefault(key_of(status), (path, status))
        self._report_refused(refused, found)
        return found

    def _status(self, path: str, held: dict[str, bool]) -> os.stat_result:
        """Return a file's status. `held` keeps the answers for directories during one listing. Raises OSError."""
        directory = os.path.dirname(path)  # noqa: PTH120  of many, with each look
        if directory not in held:
            held[directory] = self.tree.holds(directory)
        if not held[directory]:
            raise SymlinkRefusedError(path)
        return self.tree.status(path)

    def _report_refused(self, refused: Sequence[tuple[str, OSError]], found: Listing) -> None:
        for path, error in refused:
            # A link to nothing, or to a file that is read by its own name, hides no lines.
            with contextlib.suppress(OSError):
                status = os.stat(path)  # noqa: PTH116  of many, with each look
                if stat.S_ISREG(status.st_mode) and key_of(status) not in found:
                    self._reports.report_failure(path, FileFailure.REFUSED, error)


def has_parent(path: str) -> bool:
    """Return whether the directory of a file exists."""
    return os.path.isdir(os.path.dirname(path))  # noqa: PTH112, PTH120  of many, with each look


def _base_of(pattern: str) -> str:
    """Return the directory before the first wild card."""
    parts = pattern.split("/")
    wild = next((n for n, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:wild]) or "/"
