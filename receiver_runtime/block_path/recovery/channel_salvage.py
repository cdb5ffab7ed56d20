"""Fit blocks of channels that salvage registers to where their channels are by now.

Senders and other receivers go on during a salvage, so a channel may be elsewhere than a block's move begins:

- **Before it**: the records in between are in another receiver's files, whose salvage brings them. That is waited for,
  with a limit. Then the channel jumps, with the gap recorded in the driver log and an ERROR: the other receiver's
  salvage, whenever it comes, registers what is in the gap.
- **Behind all of the block's moves**: the senders have sent the records again, and the block is left out.
- **Behind some of it**: the block is registered, because its other records are nowhere else. Those that were sent again
  are in the stream twice then, and an ERROR names them: salvage has no keys to read blocks with, so it can't cut one.

Owns these decisions and the channels' positions while one epoch is salvaged. It registers no block.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from receiver_runtime.block_path.recovery.salvage_report import FAILOVER_RUNBOOK
from tracker_store.blocks.channels import (
    ChannelKey,
    channel_gaps,
    channel_positions,
    close_channel_gap,
    jump_channel,
    move_channels,
)
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from receiver_runtime.block_path.recovery.found_frames import SalvagedBlock
    from receiver_runtime.block_path.recovery.salvage_report import SalvageReport
    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.watching.clock import Clock
    from tracker_store.blocks.blocks import ChannelMove

#: How long one salvage waits for those of other receivers, in seconds: they begin when they meet the lost commits too.
GAP_SECONDS = 10.0
_ASK_SECONDS = 0.2  # between two questions where a channel is


@dataclass
class FittedBlocks:
    """Hold blocks to register, each with its moves from where the channels are; and those that are left out."""

    kept: list[SalvagedBlock] = field(default_factory=list)
    moves: list[tuple[ChannelMove, ...]] = field(default_factory=list)
    left_out: list[SalvagedBlock] = field(default_factory=list)
    #: Ranges in gaps that these blocks fill.
    fills: list[ChannelMove] = field(default_factory=list)
    #: Ranges of these blocks that were sent again.
    twice: list[ChannelMove] = field(default_factory=list)
    #: How many of the blocks were looked at: behind them is one whose channel is before its move.
    count: int = 0


class ChannelSalvage:
    """Fit blocks; see the module.

    Args:
        gap_seconds: how long to wait for other receivers, in all.
    """

    def __init__(
        self, driver_log: DriverLog, receiver_id: int, report: SalvageReport, *, clock: Clock, gap_seconds: float
    ) -> None:
        self._driver_log = driver_log
        self._receiver_id = receiver_id
        self._report = report
        self._clock = clock
        self._gap_seconds = gap_seconds
        self._deadline: float | None = None
        self._reported: set[ChannelMove] = set()

    def fitted(self, group: Sequence[SalvagedBlock]) -> FittedBlocks:
        """Return the first blocks of a group as they fit; at least one. May wait, and may move a channel over a gap."""
        while True:
            channels = _channels(move for block in group for move in block.moves)
            positions = self._positions(channels)
            fitted, gap = _fit(group, positions, self._gaps(channels))
            if fitted.count or gap is None:
                break
            if not self._wait():
                self._jump(gap)
        if twice := [move for move in fitted.twice if move not in self._reported]:
            self._reported.update(twice)
            self._report.report(
                ReceiverEventKind.ERROR,
                "records of channels are in the stream twice",
                f"{_ranges(twice)}: these were sent again before the blocks that have them were registered again, and "
                f"other records of the same blocks were not; see {FAILOVER_RUNBOOK}",
            )
        return fitted

    def registered(self, fitted: FittedBlocks) -> None:
        """Close the gaps that blocks have filled, after their registration."""
        for fill in fitted.fills:
            self._driver_log.until_answered(
                "close a gap of a channel",
                lambda c, fill=fill: close_channel_gap(c, receiver_id=self._receiver_id, move=fill),  # type: ignore[misc]
            )

    def move_alone(self, moves: Sequence[ChannelMove]) -> None:
        """Move channels over dead letters that were stored; those that are behind them stay."""
        while True:
            positions = self._positions(_channels(moves))
            gaps = [
                replace(move, from_offset=positions[_key(move)], to_offset=move.from_offset)
                for move in moves
                if positions[_key(move)] < move.from_offset
            ]
            if gaps:
                if not self._wait():
                    self._jump(gaps[0])
                continue
            fitting = [
                replace(move, from_offset=positions[_key(move)])
                for move in moves
                if move.from_offset <= positions[_key(move)] < move.to_offset
            ]
            if not fitting or self._driver_log.until_answered(
                "move channels over dead letters",
                lambda c, fitting=fitting: move_channels(c, receiver_id=self._receiver_id, moves=fitting),  # type: ignore[misc]
            ):
                return

    def _positions(self, channels: Sequence[ChannelKey]) -> dict[ChannelKey, int]:
        if not channels:
            return {}
        found = self._driver_log.until_answered(
            "read positions of channels",
            lambda c: channel_positions(c, receiver_id=self._receiver_id, channels=channels),
        )
        return dict(zip(channels, found, strict=True))

    def _gaps(self, channels: Sequence[ChannelKey]) -> dict[ChannelKey, list[tuple[int, int]]]:
        if not channels:
            return {}
        return self._driver_log.until_answered(
            "read gaps of channels", lambda c: channel_gaps(c, receiver_id=self._receiver_id, channels=channels)
        )

    def _wait(self) -> bool:
        """Wait a moment for another receiver's salvage; return False if that has taken long enough."""
        now = self._clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self._gap_seconds
        if now >= self._deadline:
            return False
        condition = threading.Condition()
        with condition:
            self._clock.wait_on(condition, min(_ASK_SECONDS, self._deadline - now))
        return True

    def _jump(self, gap: ChannelMove) -> None:
        # Reported first: a channel that has jumped is not met again.
        self._report.report(
            ReceiverEventKind.ERROR,
            "a channel lacks records that were acknowledged",
            f"{_ranges([gap])}: a later block of this receiver was acknowledged too, so these are in the files of "
            f"another one, which has not registered them within {self._gap_seconds:g} s; the channel goes on behind "
            f"them, and that receiver's next start registers them; see {FAILOVER_RUNBOOK}",
        )
        self._driver_log.until_answered(
            "move a channel over a gap", lambda c: jump_channel(c, receiver_id=self._receiver_id, move=gap)
        )


def _fit(
    group: Sequence[SalvagedBlock],
    positions: dict[ChannelKey, int],
    gaps: dict[ChannelKey, list[tuple[int, int]]],
) -> tuple[FittedBlocks, ChannelMove | None]:
    """Fit the blocks before the first one with a channel that is before its move; return that gap too."""
    fitted = FittedBlocks()
    at = dict(positions)
    for block in group:
        for move in block.moves:
            if move.from_offset > at[_key(move)]:
                return fitted, replace(move, from_offset=at[_key(move)], to_offset=move.from_offset)
        fitted.count += 1
        _fit_block(block, at, gaps, fitted)
    return fitted, None


def _fit_block(
    block: SalvagedBlock,
    at: dict[ChannelKey, int],
    gaps: dict[ChannelKey, list[tuple[int, int]]],
    fitted: FittedBlocks,
) -> None:
    moves, fills, known = [], [], []
    for move in block.moves:
        key = _key(move)
        position = at[key]
        begin = move.from_offset
        for gap_from, gap_to in gaps.get(key, ()):
            first, last = max(begin, gap_from), min(move.to_offset, gap_to)
            if first < last:
                fills.append(replace(move, from_offset=first, to_offset=last))
                if begin < first:
                    known.append(replace(move, from_offset=begin, to_offset=first))
                begin = last
        if begin < (end := min(position, move.to_offset)):
            known.append(replace(move, from_offset=begin, to_offset=end))
        if position < move.to_offset:
            moves.append(replace(move, from_offset=position))
            at[key] = move.to_offset
    if block.moves and not moves and not fills:
        fitted.left_out.append(block)
        return
    fitted.kept.append(block)
    fitted.moves.append(tuple(moves))
    fitted.fills += fills
    fitted.twice += known


def _key(move: ChannelMove) -> ChannelKey:
    return ChannelKey(move.sender, move.channel)


def _channels(moves: Iterable[ChannelMove]) -> list[ChannelKey]:
    return list(dict.fromkeys(map(_key, moves)))


def _ranges(moves: Sequence[ChannelMove]) -> str:
    most = 5
    said = [
        f"channel {move.channel}{f' of {move.sender}' if move.sender else ''}, offsets {move.from_offset}.."
        f"{move.to_offset - 1}"
        for move in moves[:most]
    ]
    return "; ".join(said) + (f"; and {len(moves) - most} more" if len(moves) > most else "")
