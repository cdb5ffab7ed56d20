"""Hold what one epoch's unsealed segments contain, and what follows from it for each block. Reads nothing itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.frame import FrameKind, SourceRule
from receiver_runtime.block_store.frames.letter_group import bytes_of_letters
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame
from tracker_store.blocks.blocks import BlockHandle
from tracker_store.blocks.dead_letters import StoredDeadLetter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.block_path.channel_moves import ChannelNote
    from tracker_store.blocks.blocks import ChannelMove
    from tracker_store.blocks.segments import OpenSegment


@dataclass(frozen=True, slots=True)
class SalvagedBlock:
    """Hold a block that is stored and not registered."""

    sequence: int
    records: int
    source_rule: SourceRule
    handle: BlockHandle
    #: The moves of channels that go with it.
    moves: Sequence[ChannelMove] = ()


@dataclass(slots=True)
class FoundFrames:
    """Hold what one epoch's unsealed segments contain."""

    epoch: int
    #: The newest number that the epoch registered.
    registered: int
    #: Whether its claim is in the driver log. If the claim was lost, so was the number at which the epoch began.
    known: bool = True
    lengths: dict[int, int] = field(default_factory=dict)
    #: By sequence, in the order of the files: intact blocks that are not registered and were not salvaged before.
    blocks: dict[int, SalvagedBlock] = field(default_factory=dict)
    #: Numbers behind ``registered`` that have an intact frame.
    intact: set[int] = field(default_factory=set)
    #: Damaged frames behind ``registered``: the number of records by their header, and their rule.
    damaged: dict[int, tuple[int, SourceRule]] = field(default_factory=dict)
    #: The newest number in any header behind ``registered``.
    newest: int = 0
    #: The newest number that a later frame says was registered.
    acknowledged: int = 0
    damaged_registered: int = 0
    damaged_letters: int = 0
    damaged_moves: int = 0
    #: The moves of channels of the block at this place, which a note right before it has: by segment and offset.
    moves: dict[tuple[int, int], Sequence[ChannelMove]] = field(default_factory=dict)
    #: Moves of channels without a block, each with the number of the next block, in the order of the files.
    moves_alone: list[tuple[int, Sequence[ChannelMove]]] = field(default_factory=list)
    unreadable_bytes: int = 0
    letters: list[StoredDeadLetter] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    #: Registered blocks and records whose ephemeral file is gone.
    gone_blocks: int = 0
    gone_records: int = 0

    @property
    def first(self) -> int:
        """Return the first number that the epoch may have stored and not registered."""
        if self.known:
            return self.registered + 1
        return min(self.intact | self.damaged.keys(), default=self.newest + 1)

    def count_unread(self, rule: SourceRule) -> int:
        """Return how many numbers have no frame that can be read, and are not delivered again by this rule.

        It counts the numbers in between, and does not go through them: a header may say any number up to 2^63.
        """
        last = self.newest
        if rule is SourceRule.OFFSETS:
            return 0
        if rule is SourceRule.SENT_AGAIN:
            last = min(last, self.acknowledged)
        seen = sum(self.first <= sequence <= last for sequence in self.intact | self.damaged.keys())
        return max(0, last - self.first + 1 - seen)

    def was_acknowledged(self, block: SalvagedBlock) -> bool:
        """Return whether the driver log had this block once, although it lacks it now."""
        return block.sequence <= self.acknowledged

    def comes_again(self, rule: SourceRule, sequence: int) -> bool:
        """Return whether the source will deliver this unregistered block's records again."""
        if rule is SourceRule.SENT_AGAIN:
            return sequence > self.acknowledged
        return rule is SourceRule.OFFSETS

    def add_moves(self, segment: OpenSegment, item: IntactFrame, note: ChannelNote) -> None:
        """Hold the moves in a note, for the block right behind it. A number may be another block's by then."""
        if note.alone:
            self.moves_alone.append((item.header.sequence, note.channel_moves))
        else:
            self.moves[segment.segment_id, item.offset + item.length] = note.channel_moves

    def add(self, segment: OpenSegment, item: IntactFrame | DamagedFrame) -> None:
        """Count one frame, and hold it if it is to be settled."""
        header = item.header
        if header is None:
            self.unreadable_bytes += item.length
            return
        self.acknowledged = max(self.acknowledged, header.registered_through)
        if header.kind is FrameKind.NOTE:
            self.damaged_moves += isinstance(item, DamagedFrame) and header.payload_length > 1
            return
        if header.kind in (FrameKind.DEAD_LETTER, FrameKind.LETTER_GROUP):
            is_group = header.kind is FrameKind.LETTER_GROUP
            if isinstance(item, DamagedFrame):
                self.damaged_letters += header.letters if is_group else 1
            else:
                reason = header.reason.label if header.reason is not None else ""
                handle = BlockHandle(segment.segment_id, item.offset, item.length, item.crc32c)
                letters, nbytes = 1, header.content_length
                if is_group:
                    letters, nbytes = header.letters, bytes_of_letters(nbytes, header.letters)
                self.letters.append(StoredDeadLetter(reason, header.part, nbytes, handle, letters=letters))
            return
        sequence = header.sequence
        if sequence <= self.registered:
            self.damaged_registered += isinstance(item, DamagedFrame)
            return
        self.newest = max(self.newest, sequence)
        if isinstance(item, DamagedFrame):
            self.damaged[sequence] = (header.records, header.source_rule)
            return
        # A failed write was repeated: the later frame counts, even if it was salvaged before.
        self.blocks.pop(sequence, None)
        self.intact.add(sequence)
        if item.offset >= segment.salvaged_to:
            handle = BlockHandle(segment.segment_id, item.offset, item.length, item.crc32c)
            moves = self.moves.get((segment.segment_id, item.offset), ())
            self.blocks[sequence] = SalvagedBlock(sequence, header.records, header.source_rule, handle, moves)
