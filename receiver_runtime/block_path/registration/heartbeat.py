"""Send the process's heartbeats, on a thread of their own, and hand each receiver what the answer says for it.

An answer also names the newest sequence of each receiver: if that is lower than what was registered, the driver log has
lost commits, and the registrar's thread refuses the receiver. This thread never refuses one.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.reporting.driver_log import FIRST_DELAY, LONGEST_DELAY
from receiver_runtime.watching.backoff import Backoff
from tracker_store.connection.errors import LostCommitsError
from tracker_store.receivers.processes import ProcessExpiredError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.block_path.registration.block_log import BlockLog
    from receiver_runtime.block_path.registration.receiver_queue import ReceiverQueue
    from receiver_runtime.watching.clock import Clock

_log = structlog.get_logger(__name__)

# Seconds. At the end a heartbeat that hangs is not waited for any longer, because its process is about to sign off.
_LAST_HEARTBEAT_SECONDS = 2.0


class Heartbeat:
    """Send heartbeats at an interval; ``start`` once, ``stop`` once.

    It shares the registrar's lock, which guards the queues and the fields below.

    Args:
        log: the driver log.
        queues: of the receivers, by id.
        lock: the registrar's.
        on_expired: called when the tracker has declared this process dead.
        wake: wakes the registrar, with the lock held, after commits of a receiver were found lost.
        interval: in seconds.
    """

    def __init__(
        self,
        log: BlockLog,
        queues: Mapping[int, ReceiverQueue],
        lock: threading.RLock,
        *,
        on_expired: Callable[[ProcessExpiredError], None],
        wake: Callable[[], None],
        interval: float,
        clock: Clock,
    ) -> None:
        self._log = log
        self._queues = queues
        self._on_expired = on_expired
        self._wake = wake
        self._interval = interval
        self._clock = clock
        self._changed = threading.Condition(lock)
        self._stopping = False
        self._next_at = 0.0
        self._backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def send_now(self) -> None:
        """Send the next heartbeat at once."""
        with self._changed:
            self._next_at = 0.0
            self._changed.notify_all()

    def stop(self) -> None:
        """Ask the thread to end; return at once."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait a little for the thread's end."""
        self._thread.join(_LAST_HEARTBEAT_SECONDS)

    def _run(self) -> None:
        while (receiver_ids := self._await_next()) is not None:
            try:
                self._beat(receiver_ids)
            except BaseException:  # noqa: BLE001  without heartbeats the whole process is taken for dead
                with contextlib.suppress(Exception):
                    _log.exception("a heartbeat failed")

    def _await_next(self) -> list[int] | None:
        """Wait until a heartbeat is due; return the receivers that it asks for, or None at the end."""
        with self._changed:
            while not self._stopping:
                left = self._next_at - self._clock.monotonic()
                if left <= 0:
                    self._next_at = self._clock.monotonic() + self._interval
                    return list(self._queues)
                self._clock.wait_on(self._changed, left)
            return None

    def _beat(self, receiver_ids: Sequence[int]) -> None:
        with self._changed:
            # Read it before asking: what is registered meanwhile is no loss. A receiver that is attached again
            # meanwhile may rightly know less than before.
            asked = [(queue, queue.registered_through.sequence) for queue in self._queues.values()]
        try:
            responses = self._log.heartbeat(receiver_ids)
        except ProcessExpiredError as error:
            self._on_expired(error)
        except Exception as error:  # noqa: BLE001  whatever it is, it is tried again
            with self._changed:
                self._next_at = self._clock.monotonic() + self._backoff.next_delay()
            if self._backoff.failures == 1:
                _log.warning("the driver log took no heartbeat, trying again", error=str(error))
        else:
            if self._backoff.failures:
                _log.info("the driver log takes heartbeats again", attempts=self._backoff.failures + 1)
                self._backoff.reset()
            newest = {response.receiver_id: response.newest_sequence for response in responses}
            # First, because lost blocks say more than another server does, and end the receiver without a drain.
            for queue, registered in asked:
                self._compare(queue, newest.get(queue.receiver_id), registered)
            for response in responses:
                if (attached := self._queues.get(response.receiver_id)) is not None:
                    attached.deliver(response)

    def _compare(self, queue: ReceiverQueue, newest: int | None, registered: int) -> None:
        if newest is None or newest >= registered:
            return
        with self._changed:
            if queue.is_refused_for_good:
                return
            queue.lost = LostCommitsError(
                f"the newest of receiver {queue.receiver_id} is sequence {newest}, and {registered} was registered",
                (queue.receiver_id,),
            )
            self._wake()
