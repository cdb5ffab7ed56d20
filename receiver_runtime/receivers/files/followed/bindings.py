"""Bind names, files and contents to each other.

``Bindings`` owns the three maps: the file of each inode, the contents that are in no file, and the content of each
name (a partition of the driver log). It keeps open files, and the names that are known, in step with them. Each change
of a map is one of its methods, so that no content is ever in two of them. It must never read a file, and never decide
which content a file has: ``naming`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile

if TYPE_CHECKING:
    import os
    from collections.abc import KeysView

    from receiver_runtime.receivers.files.followed.contents.followed_file import Key
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.directory import LookSchedule
    from receiver_runtime.receivers.files.followed.reading import OpenFiles
    from receiver_runtime.receivers.files.followed.reports import Reports
    from receiver_runtime.receivers.files.local_tree import LocalTree
    from receiver_runtime.receivers.files.records import Reading
    from receiver_runtime.receivers.files.sharing import Sharing
    from receiver_runtime.watching.clock import Clock


class Bindings:
    """Hold the files, the contents that are in no file, and the content of each name."""

    def __init__(
        self,
        known: KnownContents,
        sharing: Sharing,
        open_files: OpenFiles,
        schedule: LookSchedule,
        reports: Reports,
        clock: Clock,
        *,
        tree: LocalTree,
    ) -> None:
        self._known = known
        self._sharing = sharing
        self._open = open_files
        self._schedule = schedule
        self._reports = reports
        self._clock = clock
        self._tree = tree
        self._by_key: dict[Key, FollowedFile] = {}
        self._in_no_file: list[FollowedFile] = []
        self._by_name: dict[str, FollowedFile] = {}
        #: How often a file was found to have another content.
        self.replacements = 0

    # -- look-ups ----------------------------------------------------------------------------------------------------

    def files(self) -> list[FollowedFile]:
        """Return the files."""
        return list(self._by_key.values())

    def contents(self) -> list[FollowedFile]:
        """Return the files, and the contents that are in no file."""
        return [*self._by_key.values(), *self._in_no_file]

    def file_at(self, key: Key | None) -> FollowedFile | None:
        """Return the file with this device and inode, or None."""
        return None if key is None else self._by_key.get(key)

    def names(self) -> KeysView[str]:
        """Return the names that have a content."""
        return self._by_name.keys()

    def named(self, name: str) -> FollowedFile | None:
        """Return the content with this name, or None."""
        return self._by_name.get(name)

    def named_contents(self) -> list[tuple[str, FollowedFile]]:
        """Return the contents with their names."""
        return list(self._by_name.items())

    # -- whose files they are ----------------------------------------------------------------------------------------

    def is_ours(self, file: FollowedFile) -> bool:
        """Return whether this receiver is to read a file."""
        return self._sharing.is_ours(file.fingerprint[1])

    def release_others(self) -> None:
        """Stop reading files that other receivers are to read."""
        for file in self.contents():
            file.ours = file.ours and self.is_ours(file)

    def rewind(self) -> None:
        """Set each content back to where the driver log is, and learn which are ours."""
        for file in self.contents():
            reading = file.reading
            if reading is None:
                continue
            file.ours = self.is_ours(file)
            reading.go_to(self._known.registered(reading.name))
            self.take_fingerprints(file, reading)
            file.tail = b""
            file.waits_at = -1
            file.registered = reading.logged
            file.done = self._known.is_registered(file.done_name)

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, key: Key, path: str, status: os.stat_result, now: float) -> None:
        """Add a file whose content is not identified."""
        self._by_key[key] = FollowedFile(key, path, self._tree, status.st_size, status.st_mtime_ns, now)

    def bind(self, file: FollowedFile, reading: Reading) -> None:
        """Give a file the content of this name."""
        file.reading = reading
        file.registered = reading.logged
        file.bound_at = self._known.refreshes
        self.take_fingerprints(file, reading)
        self._by_name[reading.name] = file
        if not file.done:
            self._known.index.add(reading.name, file.fingerprint, file.inode)
        file.ours = self.is_ours(file)

    def take_fingerprints(self, file: FollowedFile, reading: Reading) -> None:
        """Take over the second fingerprint and the last mark that are known of a content."""
        file.second = self._known.seconds.of(reading.name, reading.generation)
        mark = self._known.seconds.mark_of(reading.name, reading.generation)
        file.marked = max((mark or (0, ""))[0], (file.second or (0, ""))[0])

    def unbind(self, file: FollowedFile) -> None:
        """Have a file identified again."""
        reading = file.reading
        assert reading is not None
        self._open.close(reading.name)
        self._by_name.pop(reading.name, None)
        if not self._known.is_claimed(reading.name):
            self._known.index.discard(reading.name, file.fingerprint)
        file.clear_identity()

    def move(self, content: FollowedFile, file: FollowedFile) -> None:
        """Move a content into another file: a copy, or a compressed one."""
        assert content.reading is not None
        assert file.key is not None
        self._open.close(content.reading.name)
        self._remove(content)
        content.move_to(file)
        self._by_key[file.key] = content

    def replace(self, file: FollowedFile) -> None:
        """Note that a file has another content now; its former one is in no file, until a copy is found."""
        assert file.key is not None
        now = self._clock.monotonic()
        self.replacements += 1
        old = self._by_key.pop(file.key)
        self._by_key[file.key] = FollowedFile(file.key, file.path, self._tree, 0, 0, now)
        self._schedule.hurry()
        if old.reading is None:
            return
        self._open.close(old.reading.name)
        old.leave_file(now)
        self._in_no_file.append(old)
        if old.ours and old.codec is None:
            self._reports.report_truncated(old, old.reading.position)

    def drop(self, file: FollowedFile, *, is_refused: bool = False) -> None:
        """Let a file or a content go; its position stays known.

        ``is_refused``: another receiver has read on by its name, so what was read here is refused.
        """
        self._remove(file)
        reading = file.reading
        if reading is None:
            return
        self._open.close(reading.name)
        self._by_name.pop(reading.name, None)
        if is_refused:
            return
        if reading.logged >= 0:
            self._known.advance(reading.name, reading.generation, reading.logged)
        elif not self._known.is_claimed(reading.name):
            self._known.index.discard(reading.name, file.fingerprint)

    def _remove(self, file: FollowedFile) -> None:
        if file.key is not None:
            self._by_key.pop(file.key, None)
        elif file in self._in_no_file:
            self._in_no_file.remove(file)
