"""Write the log of one epoch of one receiver: frames in, durable handles out (L01 to L07).

Owns the epoch's segments: a row in the driver log before the file, the epoch in the file's name, a new segment by age
and size, one sync per write, the final length when a segment is closed. A failed write or sync ends the segment, and
the frame is written again to a new one. Nothing is ever appended after a failure, and no segment of another epoch is
touched.

Dead letters have segments of their own, in a second log of the same epoch (``for_dead_letters``): clean-up of blocks
never waits for them. Their files are named ``EPOCH-dNUMBER.segment``.

A segment is sealed only once every block in it is registered and every dead letter recorded. The next epoch salvages
the segments that are not sealed (``salvage``), so this process may be killed or fenced at any point.

What may be trusted: a handle that ``write`` returned points at bytes that survive a loss of power (unless the log is
ephemeral). A write that raised may have left bytes behind, but no handle points at them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_store.frames.errors import BlockStoreError, StoreUnavailableError
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.descriptors import explain
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.blocks import BlockHandle
from tracker_store.blocks.segments import CodecSum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
    from receiver_runtime.block_store.frames.frame import EncodedFrame, SourceRule
    from receiver_runtime.block_store.frames.payload import Compression
    from receiver_runtime.block_store.stores.interface import BlockStore, Segment
    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
    from receiver_runtime.sources.receiver_settings import ReceiverSettings

_log = structlog.get_logger(__name__)

# Seconds: letters are few and stay for days, and each segment has a row, so their segments are not cut each minute.
_LETTERS_INTERVAL = 3600.0


class WriteAheadLogError(Exception):
    """Writes to the block store failed, in new segments too: check the disk's space and health. They are retried."""


class WriteAheadLogClosedError(Exception):
    """Nothing is stored after the end of an epoch: the write-ahead log is closed."""


@dataclass(frozen=True, slots=True)
class _Closed:
    """Hold a segment that is closed and not sealed yet; ``sequence`` is its newest block's, or 0."""

    segment_id: int
    length: int
    sequence: int
    codecs: Sequence[CodecSum]


class WriteAheadLog:
    """Append frames durably. Safe from any thread: one writes at a time.

    Args:
        store: keeps the segment files.
        driver_log: keeps the segments' rows. Its claim's epoch is in the files' names, so that no two epochs ever share
            a file.
        source_rule: written into each segment's row.
        registered_through: how far blocks are registered: a segment is sealed once all of its blocks are.
        settings: when a segment is closed, how often a write is attempted, and whether it is synced.
        progress: counts each attempt that failed.
        letters: whether its segments hold dead letters, see ``for_dead_letters``.
    """

    def __init__(
        self,
        store: BlockStore,
        driver_log: ReceiverDriverLog,
        *,
        source_rule: SourceRule,
        registered_through: RegisteredThrough,
        settings: ReceiverSettings,
        clock: Clock | None = None,
        progress: Progress | None = None,
        letters: bool = False,
    ) -> None:
        self._letters = letters
        self._progress = progress or Progress()
        self._store = store
        self._driver_log = driver_log
        self.claim = driver_log.claim
        self.source_rule = source_rule
        self.registered_through = registered_through
        self._settings = settings
        self._interval = max(settings.segment_interval, _LETTERS_INTERVAL) if letters else settings.segment_interval
        self._durable = settings.durability == "durable"
        self._clock = clock or Clock()

        self._lock = threading.Lock()
        self._number = 0
        self._segment: Segment | None = None
        self._segment_id = 0
        self._segment_since = 0.0
        # The newest block in the open segment, and its blocks by codec.
        self._segment_sequence = 0
        self._segment_codecs: dict[Compression, CodecSum] = {}
        # How many dead letters have no row yet, by segment.
        self._unrecorded: dict[int, int] = {}
        # Segments that are closed but not sealed in the driver log; a few at most.
        self._to_seal: list[_Closed] = []
        self._closed = False

    def for_dead_letters(self) -> WriteAheadLog:
        """Return a log for this epoch's dead letters, with segments of its own. The caller closes both."""
        return WriteAheadLog(
            self._store,
            self._driver_log,
            source_rule=self.source_rule,
            registered_through=self.registered_through,
            settings=self._settings,
            clock=self._clock,
            progress=self._progress,
            letters=True,
        )

    def write(
        self,
        frames: Sequence[EncodedFrame],
        *,
        sequence: int = 0,
        codec: Compression | None = None,
        until_recorded: bool = False,
    ) -> list[BlockHandle]:
        """Store frames, next to each other, by one sync; return their handles, in order.

        Args:
            frames: a block, after a note that belongs to it, or dead letters.
            sequence: the newest block among them.
            codec: how the block is compressed that is the last frame, to be counted; None: there is no block.
            until_recorded: do not seal the segment before ``recorded`` is called for each of the frames.

        Raises:
            WriteAheadLogError: ``write_ahead_log_max_failures`` attempts failed, or the store is unavailable; offer the
                frames again.
            WriteAheadLogClosedError: after ``close``.
        """
        with self._lock:
            if self._to_seal and self._to_seal[0].sequence <= self.registered_through.sequence:
                self._seal_waiting()
            failures: list[str] = []
            while len(failures) < self._settings.write_ahead_log_max_failures:
                if self._closed:
                    raise WriteAheadLogClosedError(WriteAheadLogClosedError.__doc__)
                try:
                    segment = self._segment_for(sum(frame.length for frame in frames))
                    offsets = [segment.append(frame) for frame in frames]
                    if self._durable:
                        segment.sync()
                    else:
                        segment.skip_sync()
                except (OSError, BlockStoreError) as error:
                    failures.append(explain(error))
                    self._progress.failed(f"a block could not be stored: {error}")
                    self._end_segment()
                    self._seal_waiting()
                    _log.warning("a write to the block store failed, using a new segment", error=str(error))
                    if isinstance(error, StoreUnavailableError):
                        # A new segment would be in the same unavailable store.
                        break
                else:
                    segment_id = self._segment_id
                    self._segment_sequence = max(self._segment_sequence, sequence)
                    if codec is not None:
                        self._count(codec, frames[-1])
                    if until_recorded:
                        self._unrecorded[segment_id] = self._unrecorded.get(segment_id, 0) + len(frames)
                    return [
                        BlockHandle(segment_id, offset, frame.length, frame.crc32c)
                        for offset, frame in zip(offsets, frames, strict=True)
                    ]
            raise WriteAheadLogError(f"{'; '.join(failures)}. {WriteAheadLogError.__doc__}")

    def note(self, frame: EncodedFrame) -> bool:
        """Append a frame that no caller waits for. Return False if no segment is open, or the write fails."""
        with self._lock:
            segment = self._segment
            if segment is None:
                return False
            try:
                segment.append(frame)
                if self._durable:
                    segment.sync()
                else:
                    segment.skip_sync()
            except (OSError, BlockStoreError) as error:
                _log.warning("a note could not be written, the next block goes to a new segment", error=str(error))
                self._end_segment()
                return False
            return True

    def recorded(self, handles: Sequence[BlockHandle]) -> None:
        """Note that these dead letters have their rows."""
        with self._lock:
            for handle in handles:
                self._unrecorded[handle.segment_id] -= 1
                if not self._unrecorded[handle.segment_id]:
                    del self._unrecorded[handle.segment_id]

    @property
    def is_due(self) -> bool:
        """Return whether there is an open segment that has reached its age."""
        with self._lock:
            return self._segment is not None and self._is_old()

    def roll_if_due(self, *, unless_after: int | None = None) -> None:
        """Close a segment that has reached its age, even if nothing is written; seal the segments that wait for it.

        A segment with a block newer than ``unless_after`` stays open.
        """
        with self._lock:
            wanted = unless_after is not None and self._segment_sequence > unless_after
            if self._segment is not None and self._is_old() and not wanted:
                self._end_segment()
            self._seal_waiting()

    def close(self) -> None:
        """Close and seal the open segment; safe to call twice.

        The receiver's next process seals it if that fails, or if the segment holds blocks that are not registered.
        """
        with self._lock:
            self._closed = True
            self._end_segment()
            self._seal_waiting()

    def _count(self, codec: Compression, block: EncodedFrame) -> None:
        before = self._segment_codecs.get(codec, CodecSum(codec, 0, 0))
        self._segment_codecs[codec] = CodecSum(codec, before.blocks + 1, before.bytes + block.length)

    def _is_old(self) -> bool:
        return self._clock.monotonic() - self._segment_since >= self._interval

    def _segment_for(self, nbytes: int) -> Segment:
        """Return the segment that the next ``nbytes`` go to. The lock is held."""
        segment = self._segment
        if segment is not None and (
            self._is_old()
            or (segment.synced_length and segment.synced_length + nbytes > self._settings.max_segment_bytes)
        ):
            self._end_segment()
            self._seal_waiting()
            segment = None
        if segment is None:
            # Before the row is made: a store that is unavailable for hours leaves no rows behind.
            self._store.check()
            self._number += 1
            number = f"{'d' if self._letters else ''}{self._number:06d}"
            path = f"receiver-{self.claim.receiver_id}/{self.claim.epoch}-{number}.segment"
            segment_id = self._driver_log.open_segment(path, self.source_rule.label)
            try:
                segment = self._store.create_segment(path)
            except (OSError, BlockStoreError):
                # The row has no file: treat it as a segment of length 0.
                self._to_seal.append(_Closed(segment_id, 0, 0, ()))
                raise
            self._segment, self._segment_id = segment, segment_id
            self._segment_sequence = 0
            self._segment_codecs = {}
            self._segment_since = self._clock.monotonic()
        return segment

    def _end_segment(self) -> None:
        """End the open segment, so that nothing more is appended to it. The lock is held."""
        segment, self._segment = self._segment, None
        if segment is None:
            return
        codecs = tuple(self._segment_codecs.values())
        self._to_seal.append(_Closed(self._segment_id, segment.synced_length, self._segment_sequence, codecs))
        _quietly("close a segment", segment.close)

    def _seal_waiting(self) -> None:
        while self._to_seal:
            closed = self._to_seal[0]
            if closed.sequence > self.registered_through.sequence or closed.segment_id in self._unrecorded:
                return
            seal = partial(
                self._driver_log.seal_segment, closed.segment_id, closed.length, closed.sequence, codecs=closed.codecs
            )
            if not _quietly("seal a segment", seal):
                return
            del self._to_seal[0]


def _quietly(what: str, action: Callable[[], None]) -> bool:
    """Do an action that may fail without harm; a failure is logged, and the action is done again later."""
    try:
        action()
    except Exception as error:  # noqa: BLE001  logged, and done again later
        _log.warning(f"could not {what}", error=str(error))
        return False
    return True
