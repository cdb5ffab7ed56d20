"""Detect which files came, grew, were truncated or replaced, and are gone.

This module owns what a file's size, times and inode say about it, and the check that it still has its content. It must
never decide which content a new file has (``naming``), or what happens to one that is gone (``retirement``).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.comparisons import is_unchanged, open_plain
from receiver_runtime.receivers.files.followed.contents.followed_file import key_of
from receiver_runtime.receivers.files.followed.directory import has_parent

if TYPE_CHECKING:
    import os

    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.directory import Listing, LookSchedule
    from receiver_runtime.receivers.files.followed.reading import OpenFiles
    from receiver_runtime.watching.clock import Clock


class ChangeDetector:
    """Compare files with what was seen of them before."""

    def __init__(self, bindings: Bindings, open_files: OpenFiles, schedule: LookSchedule, clock: Clock) -> None:
        self._bindings = bindings
        self._open = open_files
        self._schedule = schedule
        self._clock = clock

    def note(self, found: Listing, now: float) -> None:
        """Note which files came, changed and are gone."""
        for key, (path, status) in found.items():
            file = self._bindings.file_at(key)
            if file is None:
                self._bindings.add(key, path, status, now)
                continue
            file.path = path
            file.gone_since = None
            if file.codec is None:
                file.failed = None
            self._note_status(file, status, now)
        for file in self._bindings.files():
            if file.key not in found:
                self._note_missing(file, now)

    def look_at_growing(self, now: float) -> None:
        """Look, without a listing, at the files that grew a short time ago."""
        for file in self._bindings.files():
            if not file.ours or file.gone_since is not None or not file.is_growing(now):
                continue
            try:
                status = file.tree.status(file.path)
            except OSError:
                self._schedule.hurry()
                continue
            if key_of(status) == file.key:
                self._note_status(file, status, now)
            else:
                self._schedule.hurry()

    def check_changed(self) -> None:
        """Check the content of files that changed and are not read on.

        A read finds that a file has another content. A file that is not read is checked here: it may become ours with
        its new content. If a file came or was truncated, all are checked: one may have the inode of a file whose
        content another receiver reads on.
        """
        changed = [
            file
            for file in self._bindings.files()
            if not file.is_checked and file.reading is not None and file.codec is None and file.is_present
        ]
        read_on: list[FollowedFile] = []
        idle: list[FollowedFile] = []
        for file in changed:
            file.is_checked = True
            has_more = file.ours and file.reading is not None and file.size > file.reading.position
            (read_on if has_more else idle).append(file)
        for file in idle:
            self._check(file)
        if any(file.reading is None for file in self._bindings.files()):
            for file in read_on:
                self._check(file)

    def still_holds(self, file: FollowedFile) -> bool:
        """Return whether a file has the content that it had; one that was truncated is replaced on return."""
        if file.codec is not None:
            return True
        assert file.reading is not None
        try:
            content = open_plain(file)
        except FileNotFoundError:
            file.gone_since = file.gone_since or self._clock.monotonic()
            return False
        except OSError:
            return True
        with contextlib.closing(content):
            if key_of(content.stat) != file.key:
                # The file was renamed just now: the next look finds it.
                return True
            if is_unchanged(file, content, file.reading.position):
                return True
        self._bindings.replace(file)
        return False

    def _check(self, file: FollowedFile) -> None:
        if self.still_holds(file):
            return
        with contextlib.suppress(OSError):
            status = file.tree.status(file.path)
            if file.key is None and key_of(status) == file.last_key:
                new = self._bindings.file_at(file.last_key)
                assert new is not None
                self._note_status(new, status, self._clock.monotonic())

    def _note_status(self, file: FollowedFile, status: os.stat_result, now: float) -> None:
        if status.st_size == file.size and status.st_mtime_ns == file.mtime_ns:
            return
        reading = file.reading
        if reading is not None and (file.codec is not None or status.st_size < reading.position):
            # A compressed file does not grow: this one is still being written, or is another.
            self._bindings.replace(file)
            return
        file.size, file.mtime_ns, file.grown_at = status.st_size, status.st_mtime_ns, now
        file.is_checked = False
        file.refused = None
        file.waits_at = -1

    def _note_missing(self, file: FollowedFile, now: float) -> None:
        # A directory that was moved away may come back.
        if file.gone_since is None and has_parent(file.path):
            file.gone_since = now
        content = None if file.reading is None else self._open.plain(file.reading.name)
        if content is not None:
            # A process may still write to it.
            file.size = max(file.size, content.stat.st_size)
