"""Hand over what a ``PositionedReceiver`` reads, from one ``on_start`` to its ``on_stop``, on two threads.

- The *reading* thread asks the driver log for the position, and calls the receiver's ``read`` with it.
- The *hand-over* thread cuts what was added into blocks, at each ``block_interval`` or when the buffer is full. It
  hands each block over with the step of the position that it brings (``linked_hand_over``), and calls
  ``on_registered`` when the driver log has it.

``position_buffer`` has what the threads share. Only the driver log decides where reading begins: a failure to hand
over, and a conflict with another receiver, drop what is not registered and restart the receiver. After a failure to
read, what was read before it is still handed over. A run must never go on after a failure.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.receivers.linked_hand_over import LinkedHandOver
from receiver_runtime.receivers.position_buffer import CutBlock, PositionBuffer, checked_position
from receiver_runtime.reporting.driver_log import GivenUpError
from tracker_store.blocks.blocks import OffsetLink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.blocks.blocks import Position

#: The name under which the driver log has the positions of all positioned receivers of a stream.
SOURCE = "custom"


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
        self._partition = partition
        self._start_position = start_position
        self._read = read
        self._on_registered = on_registered
        name = f"{type(receiver).__name__} {partition}"
        self._reading = threading.Thread(target=self._run_reading, name=f"{name} reading", daemon=True)
        self._handing_over = threading.Thread(target=self._run_hand_over, name=f"{name} hand-over", daemon=True)
        #: What was added and is not handed over yet.
        self.buffer = PositionBuffer(receiver, partition)
        # Only the hand-over thread uses these: its blocks, and the end of the newest one.
        self._hand_over = LinkedHandOver(receiver, self._note_registered, on_answer=self.buffer.note_answer)
        self._handed_over = 0

    # -- the supervisor's side (Run) ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads; returns at once."""
        self._handing_over.start()
        self._reading.start()

    def stop(self) -> None:
        """Stop reading; return when everything that was added is registered, or refused."""
        if not self.buffer.request_stop():
            # The driver log, or the source, may take long to say where to begin, and nothing will be read.
            return
        self._reading.join()
        self._handing_over.join()

    # -- the reading thread ------------------------------------------------------------------------------------------

    def _run_reading(self) -> None:
        try:
            self._read_until_stopped()
        except (GeneratorStateError, GivenUpError):
            # The supervisor ends without draining, and takes no more records.
            pass
        except BaseException as error:  # noqa: BLE001  reported, and the receiver starts again
            if error is not self.buffer.failure and not self.buffer.is_stopping():
                self._receiver.restart("reading failed", error)
        finally:
            self.buffer.drain()

    def _read_until_stopped(self) -> None:
        position = self._load()
        if position is not None:
            self._handed_over = position.offset
        if position is not None and self.buffer.begin(position):
            # A process before this one may have been killed after a block was registered, and before it said so.
            self._tell(position.offset)
            self._read(position.offset)
            if not self.buffer.wait(0):
                raise RuntimeError(
                    "`read` returned and the receiver was not stopped: let it run until `wait` returns True."
                )

    def _load(self) -> Position | None:
        """Return where to read from; None: the run is to stop."""
        positions = self._path.positions
        found = positions.all_of(SOURCE).get(self._partition)
        if found is None and not self.buffer.is_stopping():
            found = positions.open_partition(SOURCE, self._partition, checked_position(self._start_position()))
        return found

    # -- the hand-over thread ----------------------------------------------------------------------------------------

    def _run_hand_over(self) -> None:
        try:
            self._hand_over_all()
        except BaseException as error:  # noqa: BLE001  reported, and the receiver starts again
            self.buffer.end(error)
            # The next run begins where the driver log is once these are answered.
            with self._path.in_flight:
                self._hand_over.wait()
            if not isinstance(error, GeneratorStateError | GivenUpError):
                # Else the supervisor ends without draining, and takes no more records.
                self._receiver.restart("handing over failed", error)
        else:
            self.buffer.end(None)

    def _hand_over_all(self) -> None:
        while (cut := self.buffer.next_cut()) is not None:
            self._hand_over.collect()
            if cut.batches:
                self._push(cut)
            self._raise_conflict()
        with self._path.in_flight:
            self._hand_over.settle()
        self._raise_conflict()

    def _push(self, cut: CutBlock) -> None:
        link = OffsetLink(SOURCE, self._partition, self.buffer.generation, self._handed_over, cut.position)
        if self._hand_over.push(pa.concat_batches(cut.batches), [link]):
            self._handed_over = cut.position
            if self._hand_over.has_waiting_links:
                self._settle_aside(cut.position)

    def _settle_aside(self, position: int) -> None:
        with self._path.in_flight:
            self._hand_over.settle()
        if not self._hand_over.has_conflict:
            self.buffer.note_settled(position)

    def _raise_conflict(self) -> None:
        if self._hand_over.has_conflict:
            self._hand_over.recover()
            raise RuntimeError(
                f"another receiver of the stream reads the partition {self._partition!r} too. Let one receiver read it "
                "(receivers=1), or give each receiver of the stream a `partition` of its own."
            )

    def _note_registered(self, links: Sequence[OffsetLink]) -> None:
        position = links[-1].to_offset
        self.buffer.note_settled(position)
        self._tell(position)

    def _tell(self, position: int) -> None:
        try:
            self._on_registered(position)
        except Exception as error:  # noqa: BLE001  the user's code; the records are registered all the same
            self._receiver.report_error("on_registered failed, receiving goes on", error)
