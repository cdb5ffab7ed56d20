"""Encode the moves of channels that go with a block, as the payload of a note in its segment, and read them again.

The note stands right before its block, in the same write. Only a salvage reads it, after the driver log lost commits.
A note is never encrypted, so that salvage needs no key: names of channels are in the driver log too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tracker_store.blocks.blocks import ChannelMove  # noqa: TC001  msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Note(msgspec.Struct):
    channel_moves: list[ChannelMove]

    def __post_init__(self) -> None:
        if any(not 0 <= move.from_offset < move.to_offset < _END for move in self.channel_moves):
            raise ValueError("a move that goes nowhere")


# Offsets are below this: the driver log's bigint.
_END = 2**63
_MOVES = msgspec.json.Decoder(_Note)


def encode_moves(moves: Sequence[ChannelMove]) -> bytes:
    """Return the payload of a note."""
    return msgspec.json.encode(_Note(list(moves)))


def decode_moves(payload: bytes) -> Sequence[ChannelMove]:
    """Return the moves in the payload of a note; none if it is another note.

    Raises ValueError if it is damaged: its checksum was right, so a process has written something else.
    """
    if not payload.startswith(b"{"):
        return ()
    try:
        return _MOVES.decode(payload).channel_moves
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the note has no moves of channels: {error}") from error
