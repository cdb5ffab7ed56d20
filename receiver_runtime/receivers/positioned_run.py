"""Hand over what a ``PositionedReceiver`` reads, from one ``on_start`` to its ``on_stop``, on two threads.

- The *reading* thread asks the driver log for the position, and calls the receiver's ``read`` with it.
- The *hand-over* thread cuts what was added into blocks, at each ``block_interval`` or when the buffer is full. It
  hands each block over with the step of the position that it brings (``linked_hand_over``), and calls
  ``on_registered`` when the driver log has it.

Owns the buffer, and the chain of positions since the driver log's. Only the driver log decides where reading begins: a
failure to hand over, and a conflict with another receiver, drop what is not registered and restart the receiver. After
a failure to read, what was read before it is still handed over. A run never goes on after a failure, and never accepts
a position that does not continue the one before.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from receiver_runtime.reporting.driver_log import GivenUpError
from tracker_store.blocks.blocks import OffsetLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Position

#: The name under which the driver log has the positions of all positioned receivers of a stream.
SOURCE = "custom"

_LARGEST = 2**63 - 1  # positions are bigint in the driver log


class PositionError(ValueError):
    """Give the whole number from which to read on, more than the one before: this position can't be stored."""

    def __init__(self, problem: str) -> None:
        """Take the problem, which names the value; the class's docstring says how to fix it."""
        super().__init__(f"{problem}. {type(self).__doc__}")


class SharedPartitionError(RuntimeError):
    """Let one receiver read it (receivers=1), or give each receiver of the stream a `partition` of its own."""

    def __init__(self, partition: str) -> None:
        """Take the partition's name."""
        super().__init__(f"another receiver of the stream reads the partition {partition!r} too. {type(self).__doc__}")


class ReadReturnedError(RuntimeError):
    """`read` returned and the receiver was not stopped: let it run until `wait` returns True."""


class _Phase(StrEnum):
    """Name what a run does. It goes from each to the next one; a failure goes to the last."""

    LOADING = "loading"  # the position is asked for
    READING = "reading"
    DRAINING = "draining"  # nothing is added any more, what is in the buffer is handed over
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class _CutBlock:
    """Hold a block's records and the position behind them; no batches: a block was answered meanwhile."""

    batches: Sequence[pa.RecordBatch] = ()
    position: int = 0


class PositionedRun:
    """See the module. Call ``start`` and ``stop`` once each; the other methods are for the receiver's own threads.

    Args:
        partition: under which the driver log has the position, within the stream.
        start_position: returns where to begin a partition that was never read.
        read: reads from a position until ``wait`` returns True, and adds what it finds.
        on_registered: called with the position up to which everything is registered: on the hand-over thread after each
            block, and once on the reading thread, before ``read``.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        partition: str,
        start_position: Callable[[], int],
        read: Callable[[int], None],
        on_registered: Callable[[int], None],
    ) -> None:
        self._receiver = receiver
        self._path = receiver.supervisor.block_path
        self._interval = receiver.supervisor.settings.block_interval
        self._most_bytes = receiver.supervisor.settings.max_block_bytes
        self._partition = partition
        self._start_position = start_position
        self._read = read
        self._on_registered = on_registered
        name = f"{type(receiver).__name__} {partition}"
        self._reading = threading.Thread(target=self._run_reading, name=f"{name} reading", daemon=True)
        self._handing_over = threading.Thread(target=self._run_hand_over, name=f"{name} hand-over", daemon=True)
        # Only the hand-over thread uses these: its blocks, and the end of the newest one.
        self._hand_over = LinkedHandOver(receiver, self._note_registered, on_answer=self._note_answer)
        self._handed_over = 0

        # Guards everything below.
        self._changed = threading.Condition()
        self._phase = _Phase.LOADING
        self._loaded = False
        self._stopping = False
        self._failure: BaseException | None = None
        self._generation = 0
        # The end of what was added, of what is registered, and of a block's records that all became dead letters: the
        # position is registered with the next block.
        self._position = 0
        self._registered = 0
        self._aside = 0
        # The buffer, when its first record came, and whether to cut it without waiting for the interval.
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._nbytes = 0
        self._since = 0.0
        self._cut_now = False
        # Whether what is in the buffer is a block of the receiver's own.
        self._is_whole = False
        self._answered = False

    # -- the supervisor's side (Run) ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; returns at once."""
        self._handing_over.start()
        self._reading.start()

    def stop(self) -> None:
        """Stop reading; return when everything that was added is registered, or refused."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            if self._phase is _Phase.LOADING:
                # The driver log, or the source, may take long to say where to begin, and nothing will be read.
                return
        self._reading.join()
        self._handing_over.join()

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
            while rows and not self._has_room(rows, nbytes):
                self._ask_for_cut()
                self._wait()
            self._append(batches, position)

    def add_block(self, batches: Sequence[pa.RecordBatch], position: int) -> None:
        """Add records as one block of their own; return when it is registered.

        If all its records became dead letters, return when everything before it is registered.

        Raises: as ``add``, and what refused the block.
        """
        # The driver log may be away for long: that is no hang of the receiver's.
        with self._path.in_flight, self._changed:
            while self._rows:
                self._ask_for_cut()
                self._wait()
            self._append(batches, position)
            self._is_whole = True
            self._ask_for_cut()
            while max(self._registered, self._aside) < position:
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

    def _wait(self) -> None:
        if self._phase is _Phase.READING:
            self._changed.wait()
        self._require_reading()

    def _require_reading(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._phase is not _Phase.READING:
            raise GeneratorStateError(
                "the receiver takes no records before `read` is called, and after it has returned"
            )

    def _has_room(self, rows: int, nbytes: int) -> bool:
        if not self._rows:
            return True
        rows, nbytes = self._rows + rows, self._nbytes + nbytes
        # Under a rate limit the buffer holds what may pass at once, so that reading from the source stops too.
        return not self._is_whole and nbytes <= self._most_bytes and self._path.piece(rows, nbytes) >= rows

    def _append(self, batches: Sequence[pa.RecordBatch], position: int) -> None:
        self._require_reading()
        rows, nbytes = _size_of(batches)
        if position < self._position:
            raise PositionError(
                f"position {position} of partition {self._partition!r} goes back, it was at {self._position}"
            )
        if rows and position == self._position:
            raise PositionError(
                f"{rows} records of partition {self._partition!r} came with position {position}, where they begin"
            )
        self._position = position
        if rows:
            if not self._rows:
                self._since = time.monotonic()
            self._batches += batches
            self._rows += rows
            self._nbytes += nbytes
            self._changed.notify_all()

    def _ask_for_cut(self) -> None:
        self._cut_now = True
        self._changed.notify_all()

    # -- the reading thread ------------------------------------------------------------------------------------------

    def _run_reading(self) -> None:
        try:
            self._read_until_stopped()
        except (GeneratorStateError, GivenUpError):
            # The supervisor ends without draining, and takes no more records.
            pass
        except BaseException as error:  # noqa: BLE001  reported, and the receiver starts again
            if error is not self._failure and not self._is_stopping():
                self._receiver.restart("reading failed", error)
        finally:
            with self._changed:
                if self._phase is not _Phase.ENDED:
                    self._phase = _Phase.DRAINING
                    self._changed.notify_all()

    def _read_until_stopped(self) -> None:
        position = self._load()
        if position is not None and self._begin(position):
            # A process before this one may have been killed after a block was registered, and before it said so.
            self._tell(position.offset)
            self._read(position.offset)
            if not self.wait(0):
                raise ReadReturnedError(ReadReturnedError.__doc__)

    def _load(self) -> Position | None:
        """Return where to read from; None: the run is to stop."""
        positions = self._path.positions
        found = positions.all_of(SOURCE).get(self._partition)
        if found is None and not self._is_stopping():
            found = positions.open_partition(SOURCE, self._partition, checked_position(self._start_position()))
        return found

    def _begin(self, position: Position) -> bool:
        """Note the position; return whether to read from it."""
        with self._changed:
            if self._stopping:
                return False
            self._generation = position.generation
            self._position = self._registered = self._handed_over = position.offset
            self._phase = _Phase.READING
            self._loaded = True
            self._changed.notify_all()
            return True

    def _is_stopping(self) -> bool:
        with self._changed:
            return self._stopping

    # -- the hand-over thread ----------------------------------------------------------------------------------------

    def _run_hand_over(self) -> None:
        try:
            self._hand_over_all()
        except BaseException as error:  # noqa: BLE001  reported, and the receiver starts again
            self._end(error)
            # The next run begins where the driver log is once these are answered.
            with self._path.in_flight:
                self._hand_over.wait()
            if not isinstance(error, GeneratorStateError | GivenUpError):
                # Else the supervisor ends without draining, and takes no more records.
                self._receiver.restart("handing over failed", error)
        else:
            self._end(None)

    def _hand_over_all(self) -> None:
        if not self._wait_until_loaded():
            return
        while (cut := self._next_cut()) is not None:
            self._hand_over.collect()
            if cut.batches:
                self._push(cut)
            self._raise_conflict()
        with self._path.in_flight:
            self._hand_over.settle()
        self._raise_conflict()

    def _wait_until_loaded(self) -> bool:
        with self._changed:
            while self._phase is _Phase.LOADING:
                self._changed.wait()
            return self._loaded

    def _next_cut(self) -> _CutBlock | None:
        """Wait for the next block to hand over, or for an answer; return None at the end."""
        with self._changed:
            while True:
                if self._answered:
                    self._answered = False
                    return _CutBlock()
                left = self._since + self._interval - time.monotonic()
                if self._rows and (left <= 0 or self._cut_now or self._phase is _Phase.DRAINING):
                    cut = _CutBlock(self._batches, self._position)
                    self._batches, self._rows, self._nbytes = [], 0, 0
                    self._cut_now = self._is_whole = False
                    self._changed.notify_all()
                    return cut
                if self._phase is _Phase.DRAINING:
                    return None
                self._changed.wait(left if self._rows else None)

    def _push(self, cut: _CutBlock) -> None:
        link = OffsetLink(SOURCE, self._partition, self._generation, self._handed_over, cut.position)
        if self._hand_over.push(pa.concat_batches(cut.batches), [link]):
            self._handed_over = cut.position
            if self._hand_over.has_waiting_links:
                self._settle_aside(cut.position)

    def _settle_aside(self, position: int) -> None:
        with self._path.in_flight:
            self._hand_over.settle()
        if not self._hand_over.has_conflict:
            with self._changed:
                self._aside = position
                self._changed.notify_all()

    def _raise_conflict(self) -> None:
        if self._hand_over.has_conflict:
            self._hand_over.recover()
            raise SharedPartitionError(self._partition)

    def _note_answer(self) -> None:
        with self._changed:
            self._answered = True
            self._changed.notify_all()

    def _note_registered(self, links: Sequence[OffsetLink]) -> None:
        position = links[-1].to_offset
        with self._changed:
            self._registered = position
            self._changed.notify_all()
        self._tell(position)

    def _tell(self, position: int) -> None:
        try:
            self._on_registered(position)
        except Exception as error:  # noqa: BLE001  the user's code; the records are registered all the same
            self._receiver.report_error("on_registered failed, receiving goes on", error)

    def _end(self, failure: BaseException | None) -> None:
        with self._changed:
            self._phase = _Phase.ENDED
            self._failure = failure
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
