"""Hold what a positioned run has read and not handed over yet, and the chain of positions since the driver log's.

This module owns what the run's threads and the receiver's own share, under one lock: the buffer, how far it is
registered, and what the run does. It must never hand a record over, or accept a position that does not continue the one
before.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from receiver_runtime.block_path.generator_state import GeneratorStateError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Position

_LARGEST = 2**63 - 1  # positions are bigint in the driver log


class PositionError(ValueError):
    """Give the whole number from which to read on, more than the one before: this position can't be stored."""

    def __init__(self, problem: str) -> None:
        """Take the problem, which names the value; the class's docstring says how to fix it."""
        super().__init__(f"{problem}. {type(self).__doc__}")


class _Phase(StrEnum):
    """Name what a run does. It goes from each to the next one; a failure goes to the last."""

    LOADING = "loading"  # the position is asked for
    READING = "reading"
    DRAINING = "draining"  # nothing is added any more, what is in the buffer is handed over
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CutBlock:
    """Hold a block's records and the position behind them; no batches: a block was answered meanwhile."""

    batches: Sequence[pa.RecordBatch] = ()
    position: int = 0


class PositionBuffer:
    """Hold one run's records. Any thread may call its methods."""

    def __init__(self, receiver: Receiver, partition: str) -> None:
        self._path = receiver.supervisor.block_path
        self._interval = receiver.supervisor.settings.block_interval
        self._most_bytes = receiver.supervisor.settings.max_block_bytes
        self._partition = partition
        # Guards everything below.
        self._changed = threading.Condition()
        self._phase = _Phase.LOADING
        self._stopping = False
        #: Why the run has failed, or None.
        self.failure: BaseException | None = None
        #: The generation of all positions.
        self.generation = 0
        #: The end of what was added.
        self.position = 0
        # The end of what is registered, or of a block's records that all became dead letters: such a position is
        # registered with the next block.
        self._settled = 0
        # The buffer, when its first record came, and whether to cut it without waiting for the interval.
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._nbytes = 0
        self._since = 0.0
        self._cut_now = False
        # Whether what is in the buffer is a block of the receiver's own.
        self._is_whole = False
        self._answered = False

    # -- the receiver's side -----------------------------------------------------------------------------------------

    def add(self, batches: Sequence[pa.RecordBatch], position: int) -> None:
        """Add records, and the position behind them, to the buffer; wait while it is full.

        Without records only the position moves; it is registered with the next records.

        Raises:
            PositionError: the position does not continue the one before.
            GeneratorStateError: the run has ended. If it has failed, the error with which it did.
        """
        rows, nbytes = _size_of(batches)
        with self._changed:
            while (
                rows
                and self._rows
                # Under a rate limit the buffer holds what may pass at once, so that reading from the source stops too.
                and not (
                    not self._is_whole
                    and self._nbytes + nbytes <= self._most_bytes
                    and self._path.piece(self._rows + rows, self._nbytes + nbytes) >= self._rows + rows
                )
            ):
                self._wait_for_cut()
            self._append(batches, position)

    def add_block(self, batches: Sequence[pa.RecordBatch], position: int) -> None:
        """Add records as one block of their own; return when it is registered.

        If all its records became dead letters, return when everything before it is registered.

        Raises: as ``add``, and what refused the block.
        """
        # The driver log may be away for long: that is no hang of the receiver's.
        with self._path.in_flight, self._changed:
            while self._rows:
                self._wait_for_cut()
            self._append(batches, position)
            self._is_whole = self._cut_now = True
            self._changed.notify_all()
            while self._settled < position:
                if self._phase is _Phase.ENDED:
                    self._require_reading()
                self._changed.wait()

    def wait(self, seconds: float) -> bool:
        """Wait; return True, at once, when reading is to end."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not (self._stopping or self._phase is _Phase.ENDED):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._changed.wait(left)
            return True

    def _wait_for_cut(self) -> None:
        self._cut_now = True
        self._changed.notify_all()
        if self._phase is _Phase.READING:
            self._changed.wait()
        self._require_reading()

    def _require_reading(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._phase is not _Phase.READING:
            raise GeneratorStateError(
                "the receiver takes no records before `read` is called, and after it has returned"
            )

    def _append(self, batches: Sequence[pa.RecordBatch], position: int) -> None:
        self._require_reading()
        rows, nbytes = _size_of(batches)
        if position < self.position:
            raise PositionError(
                f"position {position} of partition {self._partition!r} goes back, it was at {self.position}"
            )
        if rows and position == self.position:
            raise PositionError(
                f"{rows} records of partition {self._partition!r} came with position {position}, where they begin"
            )
        self.position = position
        if rows:
            if not self._rows:
                self._since = time.monotonic()
            self._batches += batches
            self._rows += rows
            self._nbytes += nbytes
            self._changed.notify_all()

    # -- the run's threads -------------------------------------------------------------------------------------------

    def begin(self, position: Position) -> bool:
        """Note the position; return whether to read from it."""
        with self._changed:
            if self._stopping:
                return False
            self.generation = position.generation
            self.position = self._settled = position.offset
            self._phase = _Phase.READING
            self._changed.notify_all()
            return True

    def request_stop(self) -> bool:
        """Have reading end; return whether it has begun."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            return self._phase is not _Phase.LOADING

    def is_stopping(self) -> bool:
        """Return whether reading is to end."""
        with self._changed:
            return self._stopping

    def drain(self) -> None:
        """Take no more records: reading has ended."""
        with self._changed:
            if self._phase is not _Phase.ENDED:
                self._phase = _Phase.DRAINING
                self._changed.notify_all()

    def next_cut(self) -> CutBlock | None:
        """Wait for the next block to hand over, or for an answer; return None at the end."""
        with self._changed:
            while True:
                if self._answered:
                    self._answered = False
                    return CutBlock()
                left = self._since + self._interval - time.monotonic()
                if self._rows and (left <= 0 or self._cut_now or self._phase is _Phase.DRAINING):
                    cut = CutBlock(self._batches, self.position)
                    self._batches, self._rows, self._nbytes = [], 0, 0
                    self._cut_now = self._is_whole = False
                    self._changed.notify_all()
                    return cut
                if self._phase is _Phase.DRAINING:
                    return None
                self._changed.wait(left if self._rows else None)

    def note_answer(self) -> None:
        """Note that a block is registered or refused."""
        with self._changed:
            self._answered = True
            self._changed.notify_all()

    def note_settled(self, position: int) -> None:
        """Note that everything up to this position is registered, or became dead letters."""
        with self._changed:
            self._settled = max(self._settled, position)
            self._changed.notify_all()

    def end(self, failure: BaseException | None) -> None:
        """End the run."""
        with self._changed:
            self._phase = _Phase.ENDED
            self.failure = failure
            self._changed.notify_all()


def checked_position(position: object) -> int:
    """Return a position as the driver log takes it. Raises PositionError."""
    if isinstance(position, bool) or not hasattr(position, "__index__"):
        raise PositionError(f"{position!r:.100} is no position, which is a whole number from 0 to {_LARGEST}")
    number = position.__index__()
    if not 0 <= number <= _LARGEST:
        raise PositionError(f"{number} is no position, which is from 0 to {_LARGEST}")
    return int(number)


def _size_of(batches: Sequence[pa.RecordBatch]) -> tuple[int, int]:
    return sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches)
