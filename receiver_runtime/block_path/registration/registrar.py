"""Register stored blocks in the driver log: one thread per process, for any number of receivers.

Blocks that wait go together into one ``add_blocks`` call. A heartbeat (``heartbeat``) goes out each second, so that an
idle receiver gets its control response too. It has a thread and a connection of its own: additions that wait for a
lock, or that a full disk refuses, must not make this process look dead. What the driver log decides, and what may be
trusted:

- ADDED and ALREADY_ADDED hold for ever: the block's future has its result.
- FENCED, CONFLICT and GAP are final for this epoch: every block of that receiver that is not registered fails with the
  named error, and so does every later one. The other receivers are not affected.
- A driver log may lose its last commits, when a standby is promoted without them. Three things find that: a GAP (the
  block's predecessor or its segment's row is missing), the newest sequence in a heartbeat's answer, and on every new
  connection a query for the segments of the blocks to be added. A heartbeat's answer also names the server; another one
  than the claim's ends the receiver, whatever is found (``ReceiverSupervisor``). A loss is final too: what the process
  knows goes into its files' notes, and its successor salvages the files.
- OFFSET_CONFLICT says that another receiver has moved a source's position, DUPLICATE_KEYS that the log already has some
  of the records, CHANNEL_CONFLICT that another receiver has moved a sender's channel. They fail the same blocks, and
  later ones only until the receiver calls ``Registration.resume``.
- AGAIN, an unknown outcome, and an unavailable driver log decide nothing. The registrar must then send the *identical*
  blocks of that receiver again: a group that was sent once is never extended, cut or reordered until it is answered.

Order is kept per receiver. Memory is bounded: a receiver may have at most ``limit`` unregistered blocks here, each a
handle of a few dozen bytes; a caller with more waits in ``reserve``.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.registration.heartbeat import Heartbeat
from receiver_runtime.block_path.registration.receiver_queue import REGISTER, ReceiverQueue, Registration
from receiver_runtime.reporting.driver_log import FIRST_DELAY, LONGEST_DELAY
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.blocks import AddOutcome, AddResult, ControlResponse, raise_for_outcome
from tracker_store.connection.errors import TRANSIENT, DriverLogError, LostCommitsError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.block_path.registration.block_log import BlockLog
    from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
    from receiver_runtime.reporting.receiver_status import ReceiverStatus
    from tracker_store.receivers.processes import ProcessExpiredError

_log = structlog.get_logger(__name__)

_SETTLED = (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED)
# How often a call for one receiver alone may fail with a database error before that receiver fails.
_ERRORS_ALONE = 3
# With at least _GATHERING_FROM receivers, two calls begin at least _GATHERING_PER_RECEIVER seconds per receiver apart,
# but at most _LONGEST_GATHERING seconds. A group of many small blocks costs the driver log, and this process, far fewer
# calls. With fewer receivers no block waits for others.
_GATHERING_FROM = 10
_GATHERING_PER_RECEIVER = 0.0005
_LONGEST_GATHERING = 0.05
# Seconds after which a thread that waits for the registrar's thread checks again that it is alive.
_CHECK_SECONDS = 1.0


# The error of a block when the process ends.
_STOPPED = "This block is stored and was not registered: the process is ending. The receiver's successor deals with it."


class Registrar:
    """Register blocks; see the module. Call ``start`` and ``stop`` once each.

    Callbacks run on its thread and must return at once.

    Args:
        log: the driver log.
        on_expired: called when the tracker has declared this process dead.
        heartbeat_interval: in seconds.
    """

    def __init__(
        self,
        log: BlockLog,
        *,
        on_expired: Callable[[ProcessExpiredError], None] = lambda _: None,
        heartbeat_interval: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self._log = log
        self._clock = clock or Clock()
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # Notified for what ends a pause too.
        self._interrupt = threading.Condition(lock)
        self._lock = lock
        self._queues: dict[int, ReceiverQueue] = {}
        self._stopping = False
        self._backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        self._not_before = 0.0
        self._gathers_until = 0.0
        # After a call that failed with a database error, receivers go one by one until all have been sent.
        self._one_by_one: deque[int] = deque()
        self._thread = threading.Thread(target=self._run, name="registrar", daemon=True)
        self._heartbeat = Heartbeat(
            log,
            self._queues,
            lock,
            on_expired=on_expired,
            wake=self._wake,
            interval=heartbeat_interval,
            clock=self._clock,
        )

    def attach(
        self,
        receiver_id: int,
        *,
        registered_through: RegisteredThrough,
        limit: int,
        on_response: Callable[[ControlResponse], None] = lambda _: None,
        status: ReceiverStatus | None = None,
        progress: Progress | None = None,
        on_lost: Callable[[LostCommitsError], None] = lambda _: None,
    ) -> Registration:
        """Attach a receiver, after its claim.

        Args:
            registered_through: the claim's sequence; raised here.
            limit: how many unregistered blocks may be here.
            on_response: called with what the receiver is to do, when an answer or a heartbeat brings something new.
            status: shows it when its blocks have waited long, and again when they are answered.
            progress: counts each call for its blocks, whether it was answered or failed.
            on_lost: called when a heartbeat found that the driver log lost registered blocks of the receiver.
        """
        if limit < 1:
            raise ValueError(f"a limit of {limit} blocks: give 1 or more")
        queue = ReceiverQueue(
            receiver_id,
            limit,
            on_response,
            status,
            registered_through,
            progress or Progress(),
            on_lost,
            threading.Condition(self._lock),
        )
        with self._changed:
            if receiver_id in self._queues:
                raise ValueError(f"receiver {receiver_id} is attached already")
            self._queues[receiver_id] = queue
            self._heartbeat.send_now()
        return Registration(queue, self._changed, self._lock)

    def detach(self, receiver_id: int) -> None:
        """Detach a receiver; on return nothing of it is here, and it may be attached again.

        Its blocks that are not registered fail with RuntimeError: let them settle before. The other receivers
        are not affected. Detaching a receiver that is not attached does nothing.
        """
        with self._changed:
            queue = self._queues.get(receiver_id)
            if queue is None:
                return
            queue.leaving = True
            if self._thread.ident is None:
                # No thread has sent anything yet.
                del self._queues[receiver_id]
            self._wake()
            # The receiver leaves between two calls: blocks in a call may still be answered.
            while self._queues.get(receiver_id) is queue and self._thread.is_alive():
                queue.moved.wait(_CHECK_SECONDS)
            if self._queues.get(receiver_id) is queue:
                del self._queues[receiver_id]
        queue.refuse(RuntimeError(_STOPPED))

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._heartbeat.start()

    def stop(self) -> None:
        """End the threads after their current calls; what is not registered fails with RuntimeError.

        Let the receivers settle before: this drains nothing.
        """
        with self._changed:
            self._stopping = True
            self._wake()
            self._heartbeat.stop()
        if self._thread.ident is not None:
            self._thread.join()
            self._heartbeat.join()
        with self._changed:
            queues = list(self._queues.values())
        for queue in queues:
            queue.refuse(RuntimeError(_STOPPED))

    def _wake(self) -> None:
        """Wake the registrar's thread, whatever it waits for. The lock is held."""
        self._changed.notify_all()
        self._interrupt.notify_all()

    # -- the registrar's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (queues := self._next_work()) is not None:
                self._refuse_lost()
                if with_blocks := [queue for queue in queues if queue.sent]:
                    self._send(with_blocks)
        except BaseException as error:  # noqa: BLE001  handed to every receiver
            # If the thread died silently, every receiver would wait for ever.
            failed = error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
            for queue in list(self._queues.values()):
                try:
                    queue.refuse(failed)
                except BaseException:  # noqa: BLE001  the others must be refused too
                    with contextlib.suppress(Exception):
                        _log.exception("a receiver could not be refused after the registrar failed")
            _log.error("the registrar failed", exc_info=error)

    def _next_work(self) -> list[ReceiverQueue] | None:
        """Wait for something to do; return the receivers to send blocks for, or None at the end."""
        with self._changed:
            while not self._stopping:
                self._remove_leaving()
                if any(queue.lost is not None for queue in self._queues.values()):
                    return []
                now = self._clock.monotonic()
                left = self._not_before - now
                if left <= 0 and self._gathers_until > now and not self._one_by_one:
                    left = self._gathers_until - now
                if left <= 0 and (queues := self._take()):
                    # Blocks that come during this call, and shortly after it began, go with the next call.
                    if len(self._queues) >= _GATHERING_FROM:
                        self._gathers_until = now + min(_LONGEST_GATHERING, len(self._queues) * _GATHERING_PER_RECEIVER)
                    return queues
                if left > 0:
                    # Only an end, lost commits or a receiver that leaves ends this wait.
                    self._clock.wait_on(self._interrupt, left)
                else:
                    self._clock.wait_on(self._changed, None)
            return None

    def _remove_leaving(self) -> None:
        """Forget the receivers that leave. The lock is held, and no call is in progress."""
        for queue in [queue for queue in self._queues.values() if queue.leaving]:
            del self._queues[queue.receiver_id]
            queue.moved.notify_all()

    def _take(self) -> list[ReceiverQueue]:
        """Freeze what waits into groups; return the receivers that have one. The lock is held."""
        ready = [queue for queue in self._queues.values() if queue.freeze()]
        while self._one_by_one:
            alone = [queue for queue in ready if queue.receiver_id == self._one_by_one[0]]
            if alone:
                return alone
            self._one_by_one.popleft()
        return ready

    def _send(self, queues: Sequence[ReceiverQueue]) -> None:
        began = self._clock.monotonic()
        try:
            results = self._log.add_blocks([waiting.block for queue in queues for waiting in queue.sent])
        except TRANSIENT as error:
            self._back_off(error)
            for queue in queues:
                queue.wait(began, self._clock.monotonic(), error)
            return
        except LostCommitsError as error:
            for queue in queues:
                if queue.receiver_id in error.receiver_ids:
                    queue.refuse(error)
            return
        except Exception as error:  # noqa: BLE001  handed to the receiver that it is about
            self._isolate(queues, error)
            return
        if self._backoff.failures:
            _log.info("the driver log takes blocks again", attempts=self._backoff.failures + 1)
            self._backoff.reset()
        self._take_answers(queues, results)

    def _take_answers(self, queues: Sequence[ReceiverQueue], results: Sequence[AddResult]) -> None:
        by_receiver = {queue.receiver_id: queue for queue in queues}
        again = False
        for result in results:
            queue = by_receiver[result.receiver_id]
            queue.errors_alone = 0
            queue.end_wait(self._clock.monotonic())
            if result.outcome in _SETTLED:
                queue.progress.made()
                queue.settle()
            elif result.outcome is AddOutcome.AGAIN:
                again = True
            else:
                queue.progress.made()
                try:
                    raise_for_outcome(result)
                except DriverLogError as error:
                    queue.refuse(error)
            queue.deliver(result.response)
        if self._one_by_one:
            self._one_by_one.popleft()
        if again:
            # The block before it is committed and visible by now, so the short pause is not required; it spares the
            # log.
            self._not_before = self._clock.monotonic() + FIRST_DELAY / 10

    def _refuse_lost(self) -> None:
        with self._changed:
            found = [(queue, queue.lost) for queue in self._queues.values() if queue.lost is not None]
            for queue, _ in found:
                queue.lost = None
        for queue, error in found:
            if error is None or isinstance(queue.refused, LostCommitsError):
                continue
            queue.refuse(error)
            try:
                queue.on_lost(error)
            except Exception:  # noqa: BLE001  one receiver's fault must not reach the others
                _log.exception("a receiver could not be ended after lost commits", receiver_id=queue.receiver_id)

    def _isolate(self, queues: Sequence[ReceiverQueue], error: Exception) -> None:
        """Find the receiver whose blocks made the database refuse a whole call with an error."""
        if len(queues) > 1:
            _log.warning("the driver log refused a group of blocks, sending them by receiver", error=str(error))
            self._one_by_one = deque(queue.receiver_id for queue in queues)
            return
        queue = queues[0]
        queue.progress.failed(f"the driver log does not {REGISTER}: {error}")
        queue.errors_alone += 1
        if queue.errors_alone < _ERRORS_ALONE:
            if self._one_by_one:
                self._one_by_one.rotate(-1)
            self._back_off(error)
        else:
            _log.error("the driver log refuses a receiver's blocks", receiver_id=queue.receiver_id, error=str(error))
            queue.refuse(error)

    def _back_off(self, error: Exception) -> None:
        delay = self._backoff.next_delay()
        self._not_before = self._clock.monotonic() + delay
        if self._backoff.failures == 1:
            _log.warning("the driver log does not take blocks, sending the same again", error=str(error))
