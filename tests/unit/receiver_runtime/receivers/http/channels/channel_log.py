"""Keep channels in memory as `add_block` does, for one receiver under test and another one that a test plays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tracker_store.blocks.blocks import AddOutcome, AddResult
from tracker_store.blocks.channels import ChannelKey

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracker_store.blocks.blocks import ChannelMove, NewBlock


class ChannelBlockLog(KeyedBlockLog):
    """A block log with `add_block`'s rules for channels: each moves from where it is, or no block of the call is in."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[ChannelKey, int] = {}
        #: What another receiver has registered: channel, and the offsets from and to.
        self.elsewhere: list[tuple[ChannelKey, int, int]] = []
        self.conflicts = 0
        self.questions = 0

    def channel_positions(self, channels: Sequence[ChannelKey], *, wait: bool = True) -> list[int]:
        del wait
        with self._lock:
            self.questions += 1
            return [self.positions.get(channel, 0) for channel in channels]

    def move_channels(self, moves: Sequence[ChannelMove]) -> bool:
        with self._lock:
            return self._move(moves)

    def register_elsewhere(self, channel: ChannelKey, records: int) -> None:
        """Register the next records of a channel as another receiver's."""
        with self._lock:
            begin = self.positions.get(channel, 0)
            self.positions[channel] = begin + records
            self.elsewhere.append((channel, begin, begin + records))

    def _move(self, moves: Sequence[ChannelMove]) -> bool:
        at = dict(self.positions)
        for move in moves:
            key = ChannelKey(move.sender, move.channel)
            if at.get(key, 0) != move.from_offset:
                return False
            at[key] = move.to_offset
        self.positions = at
        return True

    def _add(self, receiver_id: int, group: list[NewBlock]) -> AddResult:
        chain = self.chains.get(receiver_id, [])
        if all(block in chain for block in group) or receiver_id in self.fence or self.say_again:
            return super()._add(receiver_id, group)
        if not self._move([move for block in group for move in block.moves]):
            self.conflicts += 1
            return AddResult(receiver_id, AddOutcome.CHANNEL_CONFLICT, "some", self.response(receiver_id))
        result = super()._add(receiver_id, group)
        assert result.outcome is AddOutcome.ADDED
        return result
