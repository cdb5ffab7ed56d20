"""Encode the moves of channels that go with a block, as the payload of a note in its segment, and read them again.

The note stands right before its block, in the same write. Moves of dead letters alone have a note without a block,
which is written after the letters and before the move. Only a salvage reads it, after the driver log lost commits.
A note is never encrypted, so that salvage needs no key: names of channels are in the driver log too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tracker_store.blocks.blocks import ChannelMove  # noqa: TC001  msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Sequence


class ChannelNote(msgspec.Struct, omit_defaults=True):
    """Hold the moves of the block behind the note; ``alone``: of no block, because all of their records are letters."""

    channel_moves: list[ChannelMove]
    alone: bool = False

    def __post_init__(self) -> None:
        if any(not 0 <= move.from_offset < move.to_offset < _END for move in self.channel_moves):
            raise ValueError("a move that goes nowhere")


# Offsets are below this: the driver log's bigint.
_END = 2**63
_NOTE = msgspec.json.Decoder(ChannelNote)


def encode_moves(moves: Sequence[ChannelMove], *, alone: bool = False) -> bytes:
    """Return the payload of a note; ``alone``: it is of no block."""
    return msgspec.json.encode(ChannelNote(list(moves), alone))


def decode_note(payload: bytes) -> ChannelNote:
    """Return the moves in the payload of a note; none if it is another note.

    Raises ValueError if it is damaged: its checksum was right, so a process has written something else.
    """
    if not payload.startswith(b"{"):
        return ChannelNote([])
    try:
        return _NOTE.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"the note has no moves of channels: {error}") from error
