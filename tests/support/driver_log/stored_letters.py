"""Store dead letters and record them, as a receiver process would, for tests that read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.frame import DeadLetterReason, FrameFields, FrameKind, SourceRule, encode_frame
from receiver_runtime.block_store.frames.letter_group import encode_letters
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.support.driver_log.log import claim_anew, new_segment
from tracker_store.blocks.blocks import BlockHandle
from tracker_store.blocks.dead_letters import StoredDeadLetter, add_dead_letters, newest_dead_letters

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa


class Letters:
    """Store dead letters as a receiver would, each call a row."""

    def __init__(self, connection: sa.Connection, block_store: str, receiver_id: int) -> None:
        """Claim `receiver_id` and begin a segment."""
        self._connection = connection
        self._claimed = claim_anew(connection, receiver_id)
        self._path = f"{receiver_id}/{self._claimed.epoch}-d1.segment"
        self._segment_id = new_segment(connection, self._claimed, self._path)
        self._writer = open_block_store(block_store).create_segment(self._path)
        self._offset = 0

    def add(self, reason: DeadLetterReason, letters: Sequence[bytes], *, dropped: int = 0, left_out: int = 0) -> int:
        """Store `letters` as one row; return its id. `left_out`: bytes of them that are not kept."""
        frame = encode_frame(
            encode_letters(letters),
            FrameFields(
                kind=FrameKind.LETTER_GROUP,
                source_rule=SourceRule.NOT_SENT_AGAIN,
                receiver_id=self._claimed.receiver_id,
                epoch=self._claimed.epoch,
                sequence=1,
                registered_through=0,
                records=1,
                mark=1,
                reason=reason,
                letters=len(letters),
            ),
        )
        self._writer.append(frame)
        self._writer.sync()
        handle = BlockHandle(self._segment_id, self._offset, frame.length, frame.crc32c)
        self._offset += frame.length
        dropped_bytes = 10 * dropped + left_out
        row = StoredDeadLetter(reason.label, 0, sum(map(len, letters)), handle, len(letters), dropped, dropped_bytes)
        add_dead_letters(self._connection, [row], receiver_id=self._claimed.receiver_id, epoch=self._claimed.epoch)
        return newest_dead_letters(self._connection, limit=1)[0].id

    def close(self) -> None:
        """Close the segment's file."""
        self._writer.close()
