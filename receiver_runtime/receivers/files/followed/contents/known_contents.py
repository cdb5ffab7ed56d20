"""Keep what the driver log knows of followed files: the names of contents, and how far each is read.

This module owns all that is remembered beyond the process; nothing is remembered anywhere else. ``content_names`` has
the format of the names. This module must never look at a file, or at the state of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.receivers.files.followed.contents.content_index import ContentIndex
from receiver_runtime.receivers.files.followed.contents.content_names import (
    ContentNames,
    second_in,
)
from receiver_runtime.receivers.files.followed.contents.name_expiry import NameExpiry
from receiver_runtime.receivers.files.followed.contents.second_fingerprints import SecondFingerprints
from tracker_store.blocks.blocks import ORIGIN, Position

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from receiver_runtime.receivers.files.followed.contents.content_names import At
    from receiver_runtime.receivers.files.followed.contents.fingerprints import Fingerprint
    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog


class KnownContents:
    """Hold what the driver log has, as of the last refresh, and what this receiver has added since.

    Args:
        source: the name of the source in the driver log.
        prefix: stands before each name.
        driver_log: the positions of the stream.
    """

    def __init__(self, source: str, prefix: str, driver_log: ReceiverDriverLog) -> None:
        #: The name of the source in the driver log.
        self.source = source
        self._prefix = prefix
        #: The names, with the prefix.
        self.names = ContentNames(prefix)
        self._driver_log = driver_log
        self._positions: dict[str, Position] = {}
        # The names of contents that a receiver reads or is about to read; also before anything of them is registered.
        self._claimed: set[str] = set()
        #: The contents by fingerprint and inode.
        self.index = ContentIndex()
        #: The second fingerprints and marks.
        self.seconds = SecondFingerprints()
        #: The next number of each continuation; a line is named by its length and digest.
        self.continuations: dict[str, int] = {}
        self._expiry = NameExpiry(self.names)
        #: How often this was refreshed.
        self.refreshes = 0

    def learn(self, positions: Mapping[str, Position]) -> None:
        """Replace what is known by what the driver log has."""
        self._positions = {name: at for name, at in positions.items() if name.startswith(self._prefix)}
        self.index = ContentIndex()
        self.continuations = {}
        self._claimed = {
            name for claim, at in self._positions.items() if (name := self.names.claimed_by(claim, at)) is not None
        }
        seconds: list[tuple[At, Fingerprint]] = []
        for name in self._claimed | self._positions.keys():
            if (continuation := self.names.continuation_in(name)) is not None:
                line, number = continuation
                self.continuations[line] = max(self.continuations.get(line, 0), number + 1)
            elif (second := second_in(name)) is not None:
                seconds.append(second)
            elif (content := self.names.content_in(name)) is not None:
                inode, fingerprint = content
                self.index.add(name, fingerprint, inode)
        self.refreshes += 1
        self.seconds.learn(seconds, self.refreshes)

    def refresh(self) -> None:
        """Ask the driver log what it has."""
        self.learn(self._driver_log.all_of(self.source))

    # -- one content -------------------------------------------------------------------------------------------------

    def registered(self, name: str) -> Position | None:
        """Return the position that is registered by this name, or None."""
        return self._positions.get(name)

    def is_registered(self, name: str | None) -> bool:
        """Return whether the driver log has this name."""
        return name in self._positions

    def is_claimed(self, name: str) -> bool:
        """Return whether a receiver reads this content, or is about to."""
        return name in self._claimed or name in self._positions

    def at(self, name: str) -> Position | None:
        """Return how far a content is read: its beginning while it is only claimed, None where it is unknown."""
        return self._positions.get(name) or (Position(0, 0) if name in self._claimed else None)

    def offset(self, name: str) -> int:
        """Return the offset up to which a content is read, or -1 where it is unknown."""
        at = self.at(name)
        return -1 if at is None else at.offset

    def is_certain(self, name: str) -> bool:
        """Return whether more is known of a content than its fingerprint."""
        at = self.at(name)
        return at is not None and self.seconds.has_any(name, at.generation)

    # -- what this receiver adds -------------------------------------------------------------------------------------

    def advance(self, name: str, generation: int, offset: int) -> None:
        """Note that a content is read up to here, unless another receiver has read it further."""
        at = self._positions.get(name, Position(0, ORIGIN))
        if (at.generation, at.offset) < (generation, offset):
            self._positions[name] = Position(generation, offset)

    def claim(self, name: str, inode: str, fingerprint: Fingerprint) -> bool:
        """Be the first to begin a content by this name; False: another receiver has begun it, or one that begins alike.

        After a claim the other receivers find the content by this name before anything of it is read, even if it has
        another inode by then, or this receiver is taken for dead.
        """
        claim = self.names.claim(name, fingerprint)
        number = int(inode, 16)
        if self._driver_log.open_partition(self.source, claim, number).offset != number:
            return False
        self._claimed.add(name)
        return True

    def register(self, name: str) -> None:
        """Register a name that needs no position, without a block."""
        self._positions[name] = self._driver_log.open_partition(self.source, name, 0)

    def register_at(self, name: str, offset: int) -> Position:
        """Register, without a block, that a content is read from ``offset``; return where it is read from."""
        at = self._positions[name] = self._driver_log.open_partition(self.source, name, offset)
        return at

    # -- what is forgotten -------------------------------------------------------------------------------------------

    def expired(
        self, present: Iterable[str | None], now: float, *, after: float, is_ours: Callable[[str], bool]
    ) -> list[str]:
        """Return the names that can be forgotten.

        They belong to nothing that was present in the last ``after`` seconds, or to another name that is forgotten.

        Args:
            is_ours: is asked of a fingerprint's digest; a name is forgotten by the receiver that reads its content.
        """
        return self._expiry.find(self._positions, self._claimed, {*present, self.names.start}, now, after, is_ours)

    def forget(self, names: list[str]) -> None:
        """Have the driver log forget these names."""
        self._driver_log.forget(self.source, names)
        self.refresh()
