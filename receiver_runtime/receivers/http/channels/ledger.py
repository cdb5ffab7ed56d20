"""Hold the positions of channels as one receiver knows them: what is registered, and what it has taken behind that.

Pure: it asks no process. What the driver log says is registered is told by ``know``; a position that another receiver
has moved meanwhile shows as a request ahead of its turn, or as a refused block. Memory is bounded: of channels of which
nothing is in flight, the least recently used are forgotten, and asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracker_store.blocks.channels import ChannelKey

#: How many channels are held of which nothing is in flight; one takes about 300 bytes.
MOST_IDLE = 10_000


class Turn(Enum):
    """Name what a range of a channel's offsets is to the receiver that gets it."""

    #: All of it is registered.
    STORED = auto()
    #: All of it is taken, and will be registered.
    TAKEN = auto()
    #: It goes on where the channel is; its begin may be taken already.
    NEXT = auto()
    #: It begins behind the place where the channel is.
    AHEAD = auto()


@dataclass(slots=True)
class _Position:
    registered: int
    taken: int
    in_flight: int = 0


class ChannelLedger:
    """Hold positions; see the module. One thread uses it."""

    def __init__(self, most_idle: int = MOST_IDLE) -> None:
        self._most_idle = most_idle
        # In the order of their last use.
        self._positions: dict[ChannelKey, _Position] = {}

    def unknown(self, channels: Iterable[ChannelKey]) -> list[ChannelKey]:
        """Return those channels whose positions are to be asked for, each once."""
        return [channel for channel in dict.fromkeys(channels) if channel not in self._positions]

    def know(self, channel: ChannelKey, position: int) -> None:
        """Take a position that the driver log has. Of what was taken behind it, nothing is in flight any more."""
        self._positions[channel] = _Position(position, position)

    def is_idle(self, channel: ChannelKey) -> bool:
        """Return whether nothing of a channel is in flight, so that its position may be asked for again."""
        return not self._positions[channel].in_flight

    def registered(self, channel: ChannelKey) -> int:
        """Return up to which offset a channel is known to be registered."""
        return self._positions[channel].registered

    def taken(self, channel: ChannelKey) -> int:
        """Return up to which offset everything of a channel is registered or taken."""
        return self._positions[channel].taken

    def turn(self, channel: ChannelKey, begin: int, end: int) -> Turn:
        """Return what a range of offsets is; a range without any is never NEXT."""
        position = self._positions[channel]
        if end <= position.registered:
            return Turn.STORED
        if end <= position.taken:
            return Turn.TAKEN
        return Turn.NEXT if begin <= position.taken else Turn.AHEAD

    def take(self, channel: ChannelKey, end: int) -> None:
        """Take a range that is NEXT, or wait for one that is TAKEN; ``settle`` counts it no more."""
        position = self._positions.pop(channel)
        position.taken = max(position.taken, end)
        position.in_flight += 1
        self._positions[channel] = position

    def divide(self, channel: ChannelKey) -> None:
        """Count a range that was taken as two, because each part of it is settled by itself."""
        self._positions[channel].in_flight += 1

    def settle(self, channel: ChannelKey, end: int) -> None:
        """Note that a range that was taken is registered."""
        position = self._positions[channel]
        position.registered = max(position.registered, end)
        position.in_flight -= 1

    def forget_idle(self) -> None:
        """Forget the least recently used channels of which nothing is in flight, beyond the bound."""
        too_many = len(self._positions) - self._most_idle
        if too_many <= 0:
            return
        # More than that, so that this search is rare.
        too_many += self._most_idle // 10
        for channel in [one for one, position in self._positions.items() if not position.in_flight][:too_many]:
            del self._positions[channel]
