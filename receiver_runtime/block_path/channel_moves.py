"""Encode the moves of channels that go with a block, as the payload of a note in its segment, and read them again.

The note stands right before its block, in the same write. Only a salvage reads it, after the driver log lost commits.
A note is never encrypted, so that salvage needs no key: names of channels are in the driver log too.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tracker_store.blocks.blocks import ChannelMove

if TYPE_CHECKING:
    from collections.abc import Sequence

_NAME = "channel_moves"


def encode_moves(moves: Sequence[ChannelMove]) -> bytes:
    """Return the payload of a note."""
    rows = [[move.sender, move.channel, move.from_offset, move.to_offset] for move in moves]
    return json.dumps({_NAME: rows}, separators=(",", ":")).encode()


def decode_moves(payload: bytes) -> Sequence[ChannelMove]:
    """Return the moves in the payload of a note; none if it is another note.

    Raises ValueError if it is damaged: its checksum was right, so a process has written something else.
    """
    if not payload.startswith(b"{"):
        return ()
    try:
        return [
            ChannelMove(str(sender), str(channel), int(begin), int(end))
            for sender, channel, begin, end in json.loads(payload)[_NAME]
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"the note has no moves of channels: {error!r}") from error
