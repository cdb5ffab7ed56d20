"""Read and move the positions of channels, where that is not done with a block (``blocks.add_blocks``)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from tracker_store.blocks.blocks import ChannelMove


class ChannelKey(NamedTuple):
    """Identify a channel within a stream: its sender (empty: the source has no tokens) and its name."""

    sender: str
    name: str


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """Hold what a person sees of a channel."""

    sender: str
    channel: str
    position: int
    moved_at: datetime
    receiver: int | None


def channel_positions(connection: sa.Connection, *, receiver_id: int, channels: Sequence[ChannelKey]) -> list[int]:
    """Return the position of each channel of the receiver's stream, in order; 0 for one that is not known. No locks.

    What is behind a position is stored, so it may be acknowledged; whether a channel is still there, only `add_blocks`
    decides.
    """
    with named_failures():
        return list(
            connection.execute(
                sa.text(
                    "SELECT forebay.channel_positions(:receiver, CAST(:senders AS text[]), CAST(:names AS text[]))"
                ),
                {
                    "receiver": receiver_id,
                    "senders": [channel.sender for channel in channels],
                    "names": [channel.name for channel in channels],
                },
            ).scalars()
        )


def move_channels(connection: sa.Connection, *, receiver_id: int, moves: Sequence[ChannelMove]) -> bool:
    """Move channels on without a block; all of them, or none if one is elsewhere: returns whether they were moved.

    One move per channel. Locks: the channels' rows. After an unknown outcome read the positions: what is behind them is
    stored.
    """
    with named_failures():
        moved: bool = connection.execute(
            sa.text("""
                SELECT forebay.move_channels(
                    :receiver, CAST(:senders AS text[]), CAST(:names AS text[]), CAST(:froms AS bigint[]),
                    CAST(:tos AS bigint[])
                )
            """),
            {
                "receiver": receiver_id,
                "senders": [move.sender for move in moves],
                "names": [move.channel for move in moves],
                "froms": [move.from_offset for move in moves],
                "tos": [move.to_offset for move in moves],
            },
        ).scalar_one()
    return moved


def channel_gaps(
    connection: sa.Connection, *, receiver_id: int, channels: Sequence[ChannelKey]
) -> dict[ChannelKey, list[tuple[int, int]]]:
    """Return the ranges of offsets before channels' positions that no block has, of channels with any. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT place, from_offset, to_offset
                FROM forebay.channel_gaps(:receiver, CAST(:senders AS text[]), CAST(:names AS text[]))
            """),
            {
                "receiver": receiver_id,
                "senders": [channel.sender for channel in channels],
                "names": [channel.name for channel in channels],
            },
        ).all()
    gaps: dict[ChannelKey, list[tuple[int, int]]] = {}
    for row in rows:
        gaps.setdefault(channels[row.place - 1], []).append((row.from_offset, row.to_offset))
    return gaps


def jump_channel(connection: sa.Connection, *, receiver_id: int, move: ChannelMove) -> bool:
    """Move a channel over a range that no block has, and record it as a gap; False: the channel is elsewhere.

    Locks: the channel's row. After an unknown outcome read the position.
    """
    return bool(_of_one(connection, "jump_channel", receiver_id, move))


def close_channel_gap(connection: sa.Connection, *, receiver_id: int, move: ChannelMove) -> None:
    """Note that a range of a channel is no gap any more; its block is registered. Locks: the channel's row."""
    _of_one(connection, "close_channel_gap", receiver_id, move)


def _of_one(connection: sa.Connection, function: str, receiver_id: int, move: ChannelMove) -> object:
    with named_failures():
        return connection.execute(
            sa.text(f"SELECT forebay.{function}(:receiver, :sender, :channel, :from_offset, :to_offset)"),
            {"receiver": receiver_id, **asdict(move)},
        ).scalar_one()


def list_channels(connection: sa.Connection, stream: str) -> list[ChannelRow]:
    """Return the channels of a stream, by sender and name. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT sender, channel, position, moved_at, receiver
                FROM forebay.channel_progress
                WHERE stream = :stream
                ORDER BY sender, channel
            """),
            {"stream": stream},
        ).all()
    return [ChannelRow(*row) for row in rows]
