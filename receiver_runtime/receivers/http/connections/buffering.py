"""Queue the records that were answered 202, bounded: a thread hands them to the block generator in order.

An offer is taken or refused at once: no request waits for its answer, however full the block generator's own buffer is.
Records that were taken have been answered, so all of them are handed on: ``close`` waits for that. Only if the block
generator ends first (the receiver was fenced, or its time to stop is over) are they dropped, which is reported. Knows
neither requests nor a server.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from receiver_runtime.block_path.generator_state import GeneratorStateError

if TYPE_CHECKING:
    import pyarrow as pa

    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor


class BufferedHandOver:
    """See the module. One thread offers. Another one hands over; it starts with work, and exits when there is none.

    Args:
        supervisor: the receiver's.
        most_bytes: the queue's limit; a batch that is larger is taken when the queue is empty.
    """

    def __init__(self, supervisor: AttachedSupervisor, *, most_bytes: int) -> None:
        self._supervisor = supervisor
        self._most_bytes = most_bytes
        # Guards the batches in order (the first is being handed on), their bytes, the thread, and the error at the end.
        self._changed = threading.Condition()
        self._queue: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._ended: GeneratorStateError | None = None

    @property
    def waiting_bytes(self) -> int:
        """Return the size of the batches in the queue, in bytes."""
        return self._bytes

    def has_room(self, nbytes: int) -> bool:
        """Return whether an offer of ``nbytes`` would be taken now."""
        return not self._bytes or self._bytes + nbytes <= self._most_bytes

    def offer(self, batch: pa.RecordBatch) -> bool:
        """Take a batch and return True, or return False where there is no room for it.

        Raises:
            GeneratorStateError: the receiver is stopping.
        """
        # Directly only while none waits, or it would overtake the others.
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
        """Wait until everything that was taken is handed on or dropped. No offer may come after this call."""
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
        """Return the first batch. None: there is none, and the thread must exit."""
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
