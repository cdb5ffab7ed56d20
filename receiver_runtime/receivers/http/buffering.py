"""What was answered 202, on its way to the block generator: a bounded queue, emptied in order by a thread.

An offer is taken or refused at once: nobody who is to be answered waits, however full the block generator's own buffer
is. What was taken has been answered, so that all of it is handed on: ``close`` waits for that. Only where the block
generator ends before (the receiver was fenced, or its time at a stop is over) is it dropped, and reported. Knows
neither requests nor a server.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from receiver_runtime.block_generator import GeneratorStateError

if TYPE_CHECKING:
    import pyarrow as pa

    from receiver_runtime.attached_supervisor import AttachedSupervisor


class BufferedHandOver:
    """See the module. One thread offers; it works on another, which ends with the work.

    Args:
        supervisor: the receiver's.
        most_bytes: on the queue; a batch that alone is larger has it for itself.
    """

    def __init__(self, supervisor: AttachedSupervisor, *, most_bytes: int) -> None:
        self._supervisor = supervisor
        self._most_bytes = most_bytes
        # Under this lock: batches in order, the first one being handed on, their bytes, whether it goes on.
        self._changed = threading.Condition()
        self._queue: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._ended: GeneratorStateError | None = None

    @property
    def waiting_bytes(self) -> int:
        """Of batches on the queue."""
        return self._bytes

    def has_room(self, nbytes: int) -> bool:
        """Whether an offer of so much would be taken now."""
        return not self._bytes or self._bytes + nbytes <= self._most_bytes

    def offer(self, batch: pa.RecordBatch) -> bool:
        """Take a batch, or say that there is no room for it.

        Raises:
            GeneratorStateError: the receiver is stopping.
        """
        # Past those that wait it would come before them.
        if not self._bytes and self._supervisor.block_path.push_if_free(batch):
            return True
        nbytes = batch.nbytes
        with self._changed:
            if self._ended is not None:
                raise self._ended
            if not self.has_room(nbytes):
                return False
            self._queue.append(batch)
            self._bytes += nbytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="http buffer", daemon=True)
                self._thread.start()
        return True

    def close(self) -> None:
        """Return when all that was taken is handed on, or dropped. Nobody may offer any more."""
        with self._changed:
            while self._thread is not None:
                self._changed.wait()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (batch := self._first()) is not None:
                self._supervisor.block_path.push_buffered(batch)
                self._done(batch)
        except GeneratorStateError as error:
            self._drop(error)
        except BaseException as error:
            self._drop(GeneratorStateError(f"the buffer failed: {error}"))
            raise

    def _first(self) -> pa.RecordBatch | None:
        """None when there is none, and the thread is given up."""
        with self._changed:
            if self._queue:
                return self._queue[0]
            self._thread = None
            self._changed.notify_all()
            return None

    def _done(self, batch: pa.RecordBatch) -> None:
        with self._changed:
            self._queue.popleft()
            self._bytes -= batch.nbytes

    def _drop(self, error: GeneratorStateError) -> None:
        with self._changed:
            records = sum(batch.num_rows for batch in self._queue)
            self._ended = error
            self._queue.clear()
            self._bytes = 0
        self._supervisor.report_error(
            "records that were answered 202 are lost: the receiver ended before they were stored",
            GeneratorStateError(f"up to {records} records: {error}"),
        )
        with self._changed:
            self._thread = None
            self._changed.notify_all()
