"""List the wanted files of a folder, and report what can't be read there, once for each file and reason.

This module owns which files are wanted, and what was reported. It must never read a file.
"""

from __future__ import annotations

import fnmatch
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.declaration import is_unfinished

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.declaration import FileLines, WholeFiles
    from receiver_runtime.receivers.files.folders import Folder, Found
    from receiver_runtime.supervisor.receiver import Receiver


class Listing:
    """List files. Only the reader's thread uses it."""

    def __init__(self, source: FileLines | WholeFiles, receiver: Receiver, folder: Folder) -> None:
        self._settings = source
        self._receiver = receiver
        self._folder = folder
        self._reported: set[tuple[str, str]] = set()
        self._is_unavailable = False

    def present(self) -> dict[str, Found] | None:
        """Return the wanted files by path, or None where the folder can't be listed."""
        try:
            present = {found.path: found for found in self._folder.files() if self._is_wanted(found.path)}
            for path, refused in self._folder.refused:
                if self._is_wanted(path):
                    self.report_once(path, "is not read", refused)
        except OSError as error:
            if not self._is_unavailable:
                self._is_unavailable = True
                self._receiver.report_error(f"{self._settings.path} can't be listed, it is tried again", error)
            self._receiver.report_degraded("listing", f"{self._settings.path} can't be listed: {error}")
            return None
        if self._is_unavailable:
            self._is_unavailable = False
            self._receiver.report_degraded("listing", None)
            self._receiver.report_connected(self._settings.path)
        return present

    def report_once(self, path: str, what: str, error: OSError) -> None:
        """Report an error once for each file and reason."""
        reported = (path, str(error))
        if reported not in self._reported:
            self._reported.add(reported)
            self._receiver.report_error(f"{self._folder.shown(path)} {what}", error)

    def _is_wanted(self, path: str) -> bool:
        parts = PurePosixPath(path).parts
        return (
            not any(part.startswith(("_", ".")) for part in parts)
            and not is_unfinished(parts[-1], self._settings.unfinished)
            and fnmatch.fnmatchcase(parts[-1], self._settings.pattern)
        )
