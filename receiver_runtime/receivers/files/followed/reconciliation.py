"""Compare what this receiver believes of contents with what the driver log knows by now.

This module owns when the driver log is asked, and which bindings an answer ends: other receivers may have read on by a
name, or begun another content by it. It must never bind a file to a content that it did not have (``naming``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.comparisons import read_head
from receiver_runtime.receivers.files.followed.contents.fingerprints import matches
from receiver_runtime.receivers.files.records import Reading

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.directory import LookSchedule
    from receiver_runtime.receivers.files.sharing import Sharing
    from tracker_store.blocks.blocks import Position


class Reconciliation:
    """Refresh what is known, and end the bindings that no longer agree with it."""

    def __init__(self, known: KnownContents, bindings: Bindings, sharing: Sharing, schedule: LookSchedule) -> None:
        self._known = known
        self._bindings = bindings
        self._sharing = sharing
        self._schedule = schedule
        self._is_fresh = False

    def begin_look(self) -> None:
        """Begin a look: with other receivers, what is known is old."""
        self._is_fresh = self._sharing.is_alone

    def ensure_fresh(self) -> None:
        """Refresh what is known, once in a look, before a file is identified: others may have read it meanwhile."""
        if not self._is_fresh:
            self.refresh()
            self._is_fresh = True

    def learn(self, positions: Mapping[str, Position]) -> None:
        """Take over what the driver log has, and identify again what is not claimed."""
        self._known.learn(positions)
        self._compare_all()
        self.reidentify_unclaimed()

    def refresh(self) -> None:
        """Ask the driver log what it has."""
        self._known.refresh()
        self._compare_all()

    def forget(self, names: list[str]) -> None:
        """Have the driver log forget names."""
        self._known.forget(names)
        self._compare_all()

    def reidentify_unclaimed(self) -> None:
        """Have files identified again whose names no receiver has claimed: another may have named them otherwise."""
        for name, file in self._bindings.named_contents():
            if file.is_present and not file.done and not self._known.is_claimed(name):
                self._bindings.unbind(file)
        self._schedule.hurry()

    def _compare_all(self) -> None:
        contents = self._bindings.named_contents()
        for name, file in contents:
            if not file.done:
                self._known.index.add(name, file.fingerprint)
        for name, file in contents:
            reading, at = file.reading, self._known.registered(name)
            if at is not None and reading is not None and at.generation >= reading.generation:
                self._compare(name, file, reading, at)

    def _compare(self, name: str, file: FollowedFile, reading: Reading, at: Position) -> None:
        """Compare one content with a position that is not older than its own."""
        second = self._known.seconds.of(name, at.generation)
        if file.done:
            if (
                at.generation > reading.generation
                and file.done_name is not None
                and self._known.is_registered(file.done_name)
                and name != file.done_name
            ):
                # Another content has the name by now.
                self._bindings.unbind(file)
                self._bindings.bind(file, Reading(file.done_name))
        elif at.generation == reading.generation and (
            second == file.second
            if second is not None
            else not self._known.seconds.has_ended(name, at, file.fingerprint[0])
        ):
            return
        elif file.is_present:
            self._compare_present(file, reading, at, second)
        elif _is_refused(file, reading, at, second):
            self._bindings.drop(file)

    def _compare_present(self, file: FollowedFile, reading: Reading, at: Position, second: Fingerprint | None) -> None:
        try:
            is_same = at.generation == reading.generation and matches(read_head(file).data, second)
        except OSError:
            is_same = False
        if second is None or not is_same:
            self._bindings.unbind(file)
            self._schedule.hurry()
        elif file.second is None or file.second[0] < second[0]:
            self._bindings.take_fingerprints(file, reading)


def _is_refused(file: FollowedFile, reading: Reading, at: Position, second: Fingerprint | None) -> bool:
    """Return whether the driver log refuses what was read here of a content, because another receiver has read on."""
    ours = file.second
    return (at.generation, at.offset) > (reading.generation, reading.logged) or (
        second is not None and (ours is None or (ours[0] == second[0] and ours != second))
    )
