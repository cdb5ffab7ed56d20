"""Register what is found out of a content with its next block, and so at no cost of a statement of its own.

This module must never register anything itself: a link counts once its block is in the driver log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.content_names import number_of, second_name
from tracker_store.blocks.blocks import ORIGIN, OffsetLink
from tracker_store.schema.states import LinkKind

if TYPE_CHECKING:
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.receivers.files.followed.contents.known_contents import KnownContents
    from receiver_runtime.receivers.files.records import Reading


class BlockLinks:
    """Add links to the next block of a content, for names that the driver log lacks."""

    def __init__(self, known: KnownContents) -> None:
        self._known = known

    def second(self, reading: Reading, second: Fingerprint) -> None:
        """Register a second fingerprint, or a mark."""
        self._link(reading, second_name((reading.name, reading.generation), second), 0)

    def continuation(self, reading: Reading, line: Fingerprint) -> None:
        """Register that a content continues with this line behind its fingerprint."""
        text = f"{line[0]}-{line[1]}"
        number = self._known.continuations.get(text, 0)
        self._known.continuations[text] = number + 1
        self._link(reading, self._known.names.continuation(number, text), number_of(reading.name))

    def is_continued(self, line: Fingerprint) -> bool:
        """Return whether a content continues with this line behind its fingerprint."""
        return f"{line[0]}-{line[1]}" in self._known.continuations

    def end(self, name: str, beyond: int, other: Reading) -> None:
        """End, with the next block of ``other``, a name that the same content had beside that one."""
        at = self._known.registered(name)
        generation = 0 if at is None else at.generation + 1
        other.before.append(OffsetLink(self._known.source, name, generation, ORIGIN, beyond, LinkKind.ORIGIN))

    def _link(self, reading: Reading, name: str, value: int) -> None:
        if not self._known.is_registered(name):
            reading.before.append(OffsetLink(self._known.source, name, 0, ORIGIN, value, LinkKind.ORIGIN))
