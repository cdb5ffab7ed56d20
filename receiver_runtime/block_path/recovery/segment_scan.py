"""Read the unsealed segments of a receiver's earlier epochs, and say what they contain.

Reads the store and the driver log, and changes neither. A segment whose content can't be known here and now raises
``OutOfReachError``: then nothing of its epoch may be settled.
"""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING

from receiver_runtime.block_path.channel_moves import ChannelNote, decode_note
from receiver_runtime.block_path.recovery.found_frames import FoundFrames
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.frame import FrameKind
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail
from tracker_store.blocks.segments import count_blocks_of_segment, end_of_epoch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from receiver_runtime.block_store.stores.interface import BlockStore
    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.watching.clock import Clock
    from receiver_runtime.watching.progress import Progress
    from tracker_store.blocks.segments import OpenSegment

# How often to try to read from the store; what can't be read then waits for the next start.
_READ_ATTEMPTS = 3
_READ_DELAY = 0.2
#: receiver-ID/EPOCH-NUMBER.segment, and EPOCH-dNUMBER of dead letters
SEGMENT_NAME = re.compile(r"receiver-(?P<receiver>\d+)/(?P<epoch>\d+)-(?P<letters>d?)(?P<number>\d+)\.segment")


class OutOfReachError(Exception):
    """Nothing can be known here and now about a segment's content."""


class SegmentScan:
    """Read one receiver's segments.

    Args:
        location: of the store, as ``store_location`` gives it.
        progress: counts each frame and segment that was read, or could not be.
    """

    def __init__(
        self,
        driver_log: DriverLog,
        store: BlockStore,
        receiver_id: int,
        *,
        location: str,
        clock: Clock,
        progress: Progress,
    ) -> None:
        self._driver_log = driver_log
        self._store = store
        self._receiver_id = receiver_id
        self._location = location
        self._clock = clock
        self._progress = progress

    def read(self, epoch: int, segments: Sequence[OpenSegment]) -> FoundFrames:
        """Return what the segments of an epoch contain. Raises OutOfReachError if that can't be known."""
        end = self._driver_log.until_answered(
            "read where an epoch ended", lambda c: end_of_epoch(c, receiver_id=self._receiver_id, epoch=epoch)
        )
        found = FoundFrames(epoch, end.sequence, known=end.known, newest=end.sequence)
        for segment in segments:
            try:
                self._read_with_retries(segment, found)
            except FileNotFoundError:
                self._add_missing(segment, found)
        return found

    def _read_with_retries(self, segment: OpenSegment, found: FoundFrames) -> None:
        for attempt in range(1, _READ_ATTEMPTS + 1):
            try:
                items = [(item, self._moves(segment, item, found)) for item in self._wanted(segment, found)]
            except FileNotFoundError:
                raise
            except (OSError, BlockStoreError) as error:
                self._progress.failed(f"{segment.path} can't be read: {error}")
                if attempt == _READ_ATTEMPTS:
                    raise OutOfReachError(f"{segment.path} can't be read: {error}") from error
                self._wait(_READ_DELAY * attempt)
            else:
                self._progress.made()
                for item, note in items:
                    if note is not None and isinstance(item, IntactFrame):
                        found.add_moves(segment, item, note)
                    found.add(segment, item)
                return

    def _wanted(self, segment: OpenSegment, found: FoundFrames) -> Iterator[IntactFrame | DamagedFrame]:
        """Yield the frames of a segment that matter: all except intact blocks that are registered."""
        length = 0
        name = SEGMENT_NAME.fullmatch(segment.path)
        # No block is ever stored there: one that is found came from a sender.
        of_letters = name is not None and bool(name["letters"])
        for item in self._store.scan(segment.path):
            if isinstance(item, TornTail):
                break
            # A large segment in a slow store takes long to read; that is not hanging.
            self._progress.made()
            length = item.offset + item.length
            header = item.header
            if (
                isinstance(item, IntactFrame)
                and header is not None
                and self._is_ours(segment, item)
                and header.kind is FrameKind.BLOCK
                and header.sequence <= found.registered
            ):
                continue
            if isinstance(item, IntactFrame) and (
                not self._is_ours(segment, item) or (of_letters and item.header.kind is FrameKind.BLOCK)
            ):
                yield _unreadable(item)
            else:
                yield item
        found.lengths[segment.segment_id] = length

    def _moves(self, segment: OpenSegment, item: IntactFrame | DamagedFrame, found: FoundFrames) -> ChannelNote | None:
        """Return the note with moves of channels that a frame is, for a block that may be registered."""
        header = item.header
        if not isinstance(item, IntactFrame) or header is None or header.kind is not FrameKind.NOTE:
            return None
        if header.payload_length <= 1 or header.sequence <= found.registered:
            return None
        frame = self._store.read_frame(segment.path, item.offset, item.length, item.crc32c)
        try:
            return decode_note(frame.payload.to_pybytes())
        except ValueError:
            found.damaged_moves += 1
            return None

    def _is_ours(self, segment: OpenSegment, frame: IntactFrame) -> bool:
        return frame.header.receiver_id == self._receiver_id and frame.header.epoch == segment.epoch

    def _add_missing(self, segment: OpenSegment, found: FoundFrames) -> None:
        if segment.store != self._location:
            raise OutOfReachError(
                f"{segment.path} was made in {segment.store or 'a store that is not known'}, "
                f"and is not in {self._location}"
            )
        blocks, records = self._driver_log.until_answered(
            "count what a missing segment held",
            lambda c: count_blocks_of_segment(c, receiver_id=self._receiver_id, segment_id=segment.segment_id),
        )
        if blocks and segment.durability != "ephemeral":
            raise OutOfReachError(
                f"{segment.path} is missing in {self._location}, though {blocks} registered blocks lie in it"
            )
        found.lengths[segment.segment_id] = 0
        found.missing.append(segment.path)
        found.gone_blocks += blocks
        found.gone_records += records

    def _wait(self, seconds: float) -> None:
        condition = threading.Condition()
        deadline = self._clock.monotonic() + seconds
        with condition:
            while (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(condition, left)


def _unreadable(frame: IntactFrame) -> DamagedFrame:
    return DamagedFrame(frame.offset, frame.length, None, "a frame of another receiver or epoch, or a block of no one")
