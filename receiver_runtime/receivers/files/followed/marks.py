"""Mark contents in the driver log, so that they are found again after a start.

This module owns when a content gets its second fingerprint, its marks, and, if it is compressed, its name as done. A
receiver that starts knows nothing else of what was read. It must never move a position, except past what a source with
``start="latest"`` skips.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.block_links import BlockLinks
from receiver_runtime.receivers.files.followed.contents.comparisons import find_last_line_end, is_unchanged, open_plain
from receiver_runtime.receivers.files.followed.contents.content_names import second_name
from receiver_runtime.receivers.files.followed.contents.fingerprints import FINGERPRINT_BYTES, digest, fingerprint_of
from receiver_runtime.receivers.files.followed.contents.followed_file import key_of

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.followed.bindings import Bindings
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.receivers.files.followed.contents.followed_file import FollowedFile
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.followed.continuations import Continuations
    from receiver_runtime.receivers.files.followed.reading import ReadBytes
    from receiver_runtime.receivers.files.followed.reports import Reports
    from receiver_runtime.receivers.files.records import Reading

_MARK_FACTOR = 4  # write a new mark each time a content has grown by this factor: few marks, whatever its length
_MOST_MARKED = 20  # idle files that are marked with each look: each costs a read and a statement of the driver log


class Marks:
    """Register fingerprints and marks of what is read."""

    def __init__(
        self, known: KnownContents, bindings: Bindings, continuations: Continuations, reports: Reports
    ) -> None:
        self._known = known
        self._links = BlockLinks(known)
        self._bindings = bindings
        self._continuations = continuations
        self._reports = reports

    def extend(self, file: FollowedFile, reading: Reading, reread: ReadBytes) -> bool:
        """Register with the next block what was read: the second fingerprint at first, and marks later.

        False: the content has another name, and is to be looked at again. Raises OSError.
        """
        at, length = reading.position, file.fingerprint[0]
        if at > length and file.second is None and length < FINGERPRINT_BYTES:
            head = reread(0, FINGERPRINT_BYTES)
            if not self._continuations.claim(file, reading, head):
                return False
            file.second = fingerprint_of(head, min(at, FINGERPRINT_BYTES))
            self._links.second(reading, file.second)
            file.marked = at if at <= FINGERPRINT_BYTES else 0
        if at > length and at >= _MARK_FACTOR * file.marked:
            self._links.second(reading, _mark(file, reading, reread))
        return True

    def mark_idle(self, now: float) -> None:
        """Mark files that stand still at their ends, so that all that was read of them is compared after a start."""
        idle = [
            (file, reading)
            for file in self._bindings.files()
            if file.ours
            and file.codec is None
            and file.second is not None
            and file.tail
            and file.is_present
            and not file.is_growing(now)
            and (reading := file.reading) is not None
            and file.marked < reading.position == file.registered
        ]
        for file, reading in idle[:_MOST_MARKED]:
            with contextlib.suppress(OSError):
                with contextlib.closing(open_plain(file)) as content:
                    if key_of(content.stat) != file.key or not is_unchanged(file, content, reading.position):
                        continue
                    mark = _mark(file, reading, content.read)
                self._known.register(second_name((reading.name, reading.generation), mark))

    def mark_done(self) -> None:
        """Register compressed files that are read to their ends: they are not decompressed again after a start."""
        for file in self._bindings.files():
            reading = file.reading
            if (
                not file.done
                or not file.ours
                or file.done_name is None
                or reading is None
                or self._known.is_registered(file.done_name)
            ):
                continue
            if reading.position == reading.start or file.registered >= reading.position:
                self._known.register(file.done_name)

    def skip(self, file: FollowedFile, name: str, head: bytes) -> None:
        """Register that a content is read from the end that it has now. Raises OSError."""
        if file.codec is not None:
            if file.done_name is not None:
                self._known.register(file.done_name)
                file.done = True
            return
        at = self._known.register_at(name, find_last_line_end(file))
        length = min(at.offset, len(head))
        if length <= file.fingerprint[0] < FINGERPRINT_BYTES:
            return
        here = (name, at.generation)
        if file.fingerprint[0] < FINGERPRINT_BYTES:
            second = fingerprint_of(head, length)
            self._known.seconds.add(here, second, self._known.refreshes)
            self._known.register(second_name(here, second))
        if at.offset > FINGERPRINT_BYTES:
            with contextlib.closing(open_plain(file)) as content:
                tail = content.read(at.offset - FINGERPRINT_BYTES, FINGERPRINT_BYTES)
            mark = (at.offset, digest(tail))
            self._known.seconds.add_mark(here, mark)
            self._known.register(second_name(here, mark))

    def report_uncompared(self, file: FollowedFile, reading: Reading) -> None:
        """Report a compressed file that is taken for what was read before, and has no mark of most of that."""
        length = max(file.marked, file.fingerprint[0])
        if file.codec is not None and reading.position > _MARK_FACTOR * length:
            self._reports.report_uncompared(file, reading.name, length, reading.position)


def _mark(file: FollowedFile, reading: Reading, reread: ReadBytes) -> Fingerprint:
    """Return the mark at a content's position, and note it; a short content's mark is its second fingerprint."""
    begin = max(0, reading.position - FINGERPRINT_BYTES)
    file.marked = reading.position
    mark = (reading.position, digest(reread(begin, reading.position - begin)))
    if begin == 0:
        file.second = mark
    return mark
