"""Find blocks in the store that no row of the driver log knows; read every file, change nothing.

There are no such blocks unless the driver log lost commits (a standby was promoted without them, or a backup was
restored), or a process has stored a block and not registered it yet. A missing row alone proves nothing, because
clean-up deletes rows. So other frames are decided as salvage decides them: an epoch registered exactly its numbers up
to its successor's marker, and the salvaged frames of an older segment lie before an offset in its row.

Memory use: the frames of one file that have no row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.frame import FrameKind, SourceRule
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.stores import replicas_of
from tracker_store.blocks.segments import end_of_epoch
from tracker_store.blocks.stored_blocks import find_segment, offsets_of_rows
from tracker_store.schema.states import SegmentState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import sqlalchemy as sa

    from receiver_runtime.block_store.stores.interface import BlockStore
    from tracker_store.blocks.segments import EpochEnd
    from tracker_store.blocks.stored_blocks import FoundSegment

_NAME = re.compile(r"receiver-(?P<receiver>\d+)/(?P<epoch>\d+)-\d+\.segment")


class Fate(StrEnum):
    """Say what will happen to a block that no row names."""

    WAITS = "waits"  # its process registers it, or the receiver's next one salvages it
    COMES_AGAIN = "comes again"  # its sender sends it again, or it is read again from its position
    UNKNOWN = "unknown"  # nothing registers it: the driver log lost it


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """Describe a stored block that no row knows. `acknowledged`: a later frame says that it was registered."""

    receiver_id: int
    epoch: int
    sequence: int
    records: int
    path: str
    offset: int
    length: int
    acknowledged: bool
    fate: Fate
    why: str


@dataclass(slots=True)
class StoreComparison:
    """Compare files with rows. The counts are complete when `frames` is exhausted."""

    connection: sa.Connection
    store: BlockStore
    files: int = 0
    blocks: int = 0
    frames_by_fate: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    records_by_fate: dict[Fate, int] = field(default_factory=lambda: dict.fromkeys(Fate, 0))
    #: (path, reason) of each file that could not be read.
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Return whether the driver log knows each block, or will, and all files could be read."""
        return not (self.frames_by_fate[Fate.UNKNOWN] or self.unreadable)

    def paths(self) -> list[str]:
        """Return every segment file, by receiver and age. Raises the store's error if it can't be reached."""
        found = {path for replica in replicas_of(self.store) for path in replica.segment_paths()}
        return sorted(path for path in found if _NAME.fullmatch(path))

    def frames(self, paths: Sequence[str], *, on_file: Callable[[], None] = lambda: None) -> Iterator[UnknownFrame]:
        """Yield the blocks that no row names, file by file; call `on_file` after each, for a progress bar."""
        for path in paths:
            try:
                found = self._of_file(path)
            except FileNotFoundError:
                # Clean-up has deleted it since it was listed.
                found = []
            except (OSError, BlockStoreError) as error:
                self.unreadable.append((path, str(error)))
                found = []
            self.files += 1
            for frame in found:
                self.frames_by_fate[frame.fate] += 1
                self.records_by_fate[frame.fate] += frame.records
                yield frame
            on_file()

    def _of_file(self, path: str) -> list[UnknownFrame]:
        name = _NAME.fullmatch(path)
        if name is None:
            return []
        receiver_id, epoch = int(name["receiver"]), int(name["epoch"])
        end = end_of_epoch(self.connection, receiver_id=receiver_id, epoch=epoch)
        acknowledged = 0
        # If several frames have one number, the last counts: the earlier ones are failed writes.
        frames: dict[int, IntactFrame] = {}
        first, last = 0, 0
        for item in self.store.scan(path):
            if not isinstance(item, IntactFrame) or item.header.epoch != epoch:
                continue
            header = item.header
            acknowledged = max(acknowledged, header.registered_through)
            if header.kind is not FrameKind.BLOCK:
                continue
            self.blocks += 1
            first, last = first or header.sequence, header.sequence
            if not end.known or header.sequence > end.sequence:
                frames[header.sequence] = item
        if not frames:
            return []
        # Read the rows last: a block that is registered while the file is read has its row by then.
        end = end_of_epoch(self.connection, receiver_id=receiver_id, epoch=epoch)
        segment = find_segment(self.connection, path)
        known = (
            set()
            if segment is None
            else offsets_of_rows(self.connection, segment, first_sequence=first, last_sequence=last)
        )
        return [
            UnknownFrame(
                receiver_id,
                epoch,
                sequence,
                frame.header.records,
                path,
                frame.offset,
                frame.length,
                sequence <= acknowledged,
                *_fate(frame, segment, acknowledged),
            )
            for sequence, frame in frames.items()
            if not (
                frame.offset in known
                or _is_in_epoch(sequence, end)
                or (segment is not None and _was_salvaged(frame, segment, acknowledged))
            )
        ]


def _is_in_epoch(sequence: int, end: EpochEnd) -> bool:
    return end.known and sequence <= end.sequence


def _comes_again(frame: IntactFrame, acknowledged: int) -> bool:
    rule = frame.header.source_rule
    return rule is SourceRule.OFFSETS or (rule is SourceRule.SENT_AGAIN and frame.header.sequence > acknowledged)


def _was_salvaged(frame: IntactFrame, segment: FoundSegment, acknowledged: int) -> bool:
    return frame.offset < segment.salvaged_to and not _comes_again(frame, acknowledged)


def _fate(frame: IntactFrame, segment: FoundSegment | None, acknowledged: int) -> tuple[Fate, str]:
    if segment is not None and segment.state is SegmentState.OPEN:
        return Fate.WAITS, "its process registers it, or the receiver's next one salvages it"
    if _comes_again(frame, acknowledged):
        if frame.header.source_rule is SourceRule.OFFSETS:
            return Fate.COMES_AGAIN, "it is read again from its position"
        return Fate.COMES_AGAIN, "its sender has no acknowledgement and brings it again"
    if segment is None:
        return Fate.UNKNOWN, "its segment has no row: start the receiver, whose next process looks for such files"
    return Fate.UNKNOWN, "its segment is done with, and no row names it"
