"""Count the bytes of messages whose ends have not come, in all and by peer, so that no peer takes all the room.

It knows neither a connection nor what it holds, and waits for nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable


class HeldBytes:
    """Count bytes within two limits. Only one thread may use it.

    Args:
        most: of all peers; half of it of one peer.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # By peer and holder. A peer's holders are in the order in which their messages began.
        self._by_peer: dict[str, dict[Hashable, int]] = {}
        self.total = 0

    def note(self, peer: str, holder: Hashable, nbytes: int) -> bool:
        """Note how much a holder holds now; return whether this is less than before."""
        holders = self._by_peer.setdefault(peer, {})
        before = holders.get(holder, 0)
        if nbytes < before:
            # Its message is whole: another one begins behind those of the peer's other holders.
            del holders[holder]
        if nbytes:
            holders[holder] = nbytes
        elif not holders:
            del self._by_peer[peer]
        self.total += nbytes - before
        return nbytes < before

    def has_room_for(self, peer: str, holder: Hashable) -> bool:
        """Return whether a holder may take more of its message.

        A peer that holds its half gets on with the message that began first.
        """
        holders = self._by_peer.get(peer, {})
        if holder not in holders:
            return True
        if self.total > self._most:
            return False
        return next(iter(holders)) == holder or sum(holders.values()) <= self._most // 2
