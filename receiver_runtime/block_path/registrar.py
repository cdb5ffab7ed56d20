"""Register stored blocks in the driver log: one thread per process, for any number of receivers.

Blocks that wait go together into one ``add_blocks`` call. A heartbeat goes out each second, so that an idle receiver is
steered too. It has a thread and a connection of its own: additions that wait for a lock, or that a full disk refuses,
must not make this process look dead. What the driver log decides, and what may be trusted:

- ADDED and ALREADY_ADDED hold for ever: the block's future has its result.
- FENCED, CONFLICT and GAP are final for this epoch: every block of that receiver that is not registered fails with the
  named error, and so does every later one. The other receivers are not affected.
- A driver log may lose its last commits, when a standby is promoted without them. Three things find that: a GAP (the
  block's predecessor or its segment's row is missing), the newest sequence in a heartbeat's answer, and on every new
  connection a look for the segments of the blocks to be added. A heartbeat's answer also names the server; another one
  than the claim's ends the receiver, whatever is found (``ReceiverSupervisor``). A loss is final too: what the process
  knows goes into its files' notes, and its successor salvages the files.
- OFFSET_CONFLICT says that another receiver has moved a source's position, DUPLICATE_KEYS that the log already has some
  of the records. They fail the same blocks, and later ones only until the receiver calls ``Registration.go_on``.
- AGAIN, an unknown outcome, and an unavailable driver log decide nothing. The registrar must then send the *identical*
  blocks of that receiver again: a group that was sent once is never extended, cut or reordered until it is answered.

Order is kept per receiver. Memory is bounded: a receiver may have at most ``limit`` unregistered blocks here, each a
handle of a few dozen bytes; a caller with more waits in ``reserve``.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog

from receiver_runtime.reporting.driver_log import FIRST_DELAY, LONGEST_DELAY, TELL_AFTER
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.blocks import AddOutcome, AddResult, NewBlock, Steering, add_blocks, raise_for_outcome
from tracker_store.blocks.segments import receivers_of_lost_segments
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import (
    TRANSIENT,
    DriverLogError,
    DuplicateKeysError,
    LostCommitsError,
    OffsetConflictError,
)
from tracker_store.receivers.processes import ProcessExpiredError, heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sqlalchemy as sa

    from receiver_runtime.block_path.registered_through import RegisteredThrough
    from receiver_runtime.reporting.driver_log import OutageListener

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_SETTLED = (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED)
# The errors after which a receiver can go on.
_PASSING = (OffsetConflictError, DuplicateKeysError)
# How often a call for one receiver alone may fail with a database error before that receiver fails.
_ERRORS_ALONE = 3
# How a hindrance in registering is named to operators.
_REGISTER = "register blocks"
# Seconds. At the end a heartbeat that hangs is not waited for any longer, because its process is about to sign off.
_LAST_HEARTBEAT_SECONDS = 2.0
# With at least _GATHERING_FROM receivers, two calls begin at least _GATHERING_PER_RECEIVER seconds per receiver apart,
# but at most _LONGEST_GATHERING seconds. A group of many small blocks costs the driver log, and this process, far fewer
# calls. With fewer receivers no block waits for others.
_GATHERING_FROM = 10
_GATHERING_PER_RECEIVER = 0.0005
_LONGEST_GATHERING = 0.05
# Seconds after which a thread that waits for the registrar's thread checks again that it is alive.
_LOOK_AGAIN_SECONDS = 1.0


class RegistrarStoppedError(Exception):
    """This block is stored and was not registered: the process is ending. The receiver's successor deals with it."""


class RegistrarFailedError(Exception):
    """Report this bug, please: the registrar ended by an error of its own. What is stored is salvaged."""


class BlockLog(Protocol):
    """Call the driver log for the registrar's two threads: each has a method of its own."""

    def add_blocks(self, blocks: Sequence[NewBlock]) -> list[AddResult]:
        """Make one call for the blocks of any number of receivers.

        Raises LostCommitsError, and adds nothing, if segments of some receivers are not known any more.
        """
        ...

    def heartbeat(self, receiver_ids: Sequence[int]) -> list[Steering]:
        """Raise the process's counter; return what its receivers are to do."""
        ...


class PostgresBlockLog:
    """Call the real driver log. Additions have a connection of their own, which is opened again after any failure.

    A new connection may lead to another server, so the first blocks' segments are looked for on it: `add_block` refuses
    a block whose segment's row is missing, and this finds all receivers whose rows are at once. It also finds the row
    of another epoch's segment under the same id, which a salvage may use and a block's own process may not.
    """

    def __init__(self, engine: sa.Engine, *, process_id: int, queued: Callable[[], Mapping[int, int]] = dict) -> None:
        """Prepare. Each heartbeat calls `queued` for the blocks in the receivers' queues, by id; it must not wait."""
        self._engine = engine
        self._process_id = process_id
        self._queued = queued
        self._held: tuple[sa.Connection, Callable[[], object]] | None = None

    def add_blocks(self, blocks: Sequence[NewBlock]) -> list[AddResult]:
        """See ``tracker_store.blocks.blocks.add_blocks``."""
        if self._held is None:
            self._call(lambda connection: _look_for_segments(connection, blocks))
        return self._call(lambda connection: add_blocks(connection, blocks))

    def heartbeat(self, receiver_ids: Sequence[int]) -> list[Steering]:
        """See ``tracker_store.receivers.processes.heartbeat``."""
        with connect(self._engine) as connection:
            return heartbeat(connection, process_id=self._process_id, receiver_ids=receiver_ids, queued=self._queued())

    def close(self) -> None:
        """Give the connection back."""
        held, self._held = self._held, None
        if held is not None:
            held[1]()

    def _call(self, statement: Callable[[sa.Connection], T]) -> T:
        if self._held is None:
            lease = ExitStack()
            self._held = (lease.enter_context(connect(self._engine)), lease.close)
        try:
            return statement(self._held[0])
        except Exception:
            # After a refusal the connection is still good, but that is not worth a special case.
            self._held[0].invalidate()
            self.close()
            raise


def _look_for_segments(connection: sa.Connection, blocks: Sequence[NewBlock]) -> None:
    lost = receivers_of_lost_segments(
        connection, {(block.handle.segment_id, block.receiver_id, block.epoch) for block in blocks}
    )
    if lost:
        raise LostCommitsError("the driver log has no row of a segment that it had given one", lost)


@dataclass(slots=True)
class _WaitingBlock:
    block: NewBlock
    future: Future[NewBlock]


@dataclass(slots=True)
class _Lane:
    """Hold one receiver's blocks. The registrar's lock guards all fields except ``sent``, which its thread changes."""

    receiver_id: int
    limit: int
    on_steering: Callable[[Steering], None]
    listener: OutageListener | None
    registered_through: RegisteredThrough
    progress: Progress
    waiting: deque[_WaitingBlock] = field(default_factory=deque)
    sent: list[_WaitingBlock] = field(default_factory=list)
    reserved: int = 0
    errors_alone: int = 0
    waits_since: float | None = None
    told_to_wait: bool = False
    # The newest steering that the receiver got, and the server that the newest heartbeat found.
    steered: Steering | None = None
    server: str | None = None
    steering: threading.Lock = field(default_factory=threading.Lock)
    refused: Exception | None = None
    # Found by a heartbeat; the registrar's thread refuses the receiver with it.
    lost: LostCommitsError | None = None
    on_lost: Callable[[LostCommitsError], None] = lambda _: None
    leaving: bool = False
    # On the registrar's lock: there is room, or all is settled, or the receiver is detached. There is one condition for
    # each receiver; with a single one, each registered block would wake the threads that wait for other receivers.
    moved: threading.Condition = field(default_factory=threading.Condition)

    @property
    def unsettled(self) -> int:
        return len(self.waiting) + len(self.sent)


class Registration:
    """Hand one receiver's blocks to the registrar. Any thread."""

    def __init__(self, lane: _Lane, changed: threading.Condition, lock: threading.RLock) -> None:
        self._lane = lane
        self._changed = changed
        # The condition's own lock; entering it takes a third of the time.
        self._lock = lock

    @property
    def registered_through(self) -> int:
        """Return the newest sequence that is known to be registered."""
        return self._lane.registered_through.sequence

    @property
    def has_unsettled(self) -> bool:
        """Return whether blocks wait for an answer. Takes no lock."""
        return self._lane.unsettled > 0

    def reserve(self) -> None:
        """Wait for room for one more block, and keep it for the next `submit`.

        Raises: the error with which the receiver was refused.
        """
        lane = self._lane
        with self._lock:
            while lane.refused is None and lane.unsettled + lane.reserved >= lane.limit:
                lane.moved.wait()
            if lane.refused is not None:
                raise lane.refused
            lane.reserved += 1

    def release(self) -> None:
        """Give reserved room back."""
        with self._changed:
            self._lane.reserved -= 1
            self._lane.moved.notify_all()

    def submit(self, block: NewBlock) -> Future[NewBlock]:
        """Hand in the next block, in the room reserved for it; its future resolves when the driver log has it."""
        future: Future[NewBlock] = Future()
        with self._lock:
            self._lane.reserved -= 1
            refused = self._lane.refused
            if refused is None:
                self._lane.waiting.append(_WaitingBlock(block, future))
                self._changed.notify_all()
        if refused is not None:
            future.set_exception(refused)
        return future

    def go_on(self) -> int:
        """Accept blocks again after a refusal for a position or a key; return the sequence that the next one follows.

        Raises: the error with which the receiver was refused for good.
        """
        lane = self._lane
        with self._changed:
            while lane.unsettled:
                lane.moved.wait()
            if lane.refused is not None and not isinstance(lane.refused, _PASSING):
                raise lane.refused
            lane.refused = None
            lane.moved.notify_all()
            return lane.registered_through.sequence

    def wait_until_it_goes_on(self) -> None:
        """Return when blocks are accepted again after a refusal for a key, or never will be."""
        with self._changed:
            while isinstance(self._lane.refused, DuplicateKeysError):
                self._lane.moved.wait()

    def lift_limit(self) -> None:
        """Make room for any number of blocks: nothing more is read, and what is stored now can be salvaged."""
        with self._changed:
            self._lane.limit = sys.maxsize
            self._lane.moved.notify_all()

    def wait_until_settled(self) -> None:
        """Return when no block of this receiver waits for an answer any more, registered or refused."""
        with self._changed:
            while self._lane.unsettled:
                self._lane.moved.wait()


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
        self._on_expired = on_expired
        self._interval = heartbeat_interval
        self._clock = clock or Clock()
        lock = threading.RLock()
        # One lock, and a condition to wake each of the two threads.
        self._changed = threading.Condition(lock)
        self._heart_changed = threading.Condition(lock)
        self._interrupt = threading.Condition(lock)
        self._lock = lock
        self._lanes: dict[int, _Lane] = {}
        self._stopping = False
        self._backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        self._not_before = 0.0
        self._gathers_until = 0.0
        self._heartbeat_backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        self._next_heartbeat = 0.0
        # After a call that failed with a database error, receivers go one by one until all have been sent.
        self._one_by_one: deque[int] = deque()
        self._thread = threading.Thread(target=self._run, name="registrar", daemon=True)
        self._heart = threading.Thread(target=self._run_heartbeats, name="heartbeat", daemon=True)

    def attach(
        self,
        receiver_id: int,
        *,
        registered_through: RegisteredThrough,
        limit: int,
        on_steering: Callable[[Steering], None] = lambda _: None,
        listener: OutageListener | None = None,
        progress: Progress | None = None,
        on_lost: Callable[[LostCommitsError], None] = lambda _: None,
    ) -> Registration:
        """Attach a receiver, after its claim.

        Args:
            registered_through: the claim's sequence; raised here.
            limit: how many unregistered blocks may be here.
            on_steering: called with what the receiver is to do, when an answer or a heartbeat brings something new.
            listener: called when its blocks have waited long, and again when they are answered.
            progress: counts each call for its blocks, whether it was answered or failed.
            on_lost: called when a heartbeat found that the driver log lost registered blocks of the receiver.
        """
        if limit < 1:
            raise ValueError(f"a limit of {limit} blocks: give 1 or more")
        lane = _Lane(
            receiver_id, limit, on_steering, listener, registered_through, progress or Progress(), on_lost=on_lost
        )
        lane.moved = threading.Condition(self._lock)
        with self._changed:
            if receiver_id in self._lanes:
                raise ValueError(f"receiver {receiver_id} is attached already")
            self._lanes[receiver_id] = lane
            self._next_heartbeat = 0.0
            self._heart_changed.notify_all()
        return Registration(lane, self._changed, self._lock)

    def detach(self, receiver_id: int) -> None:
        """Detach a receiver; on return nothing of it is here, and it may be attached again.

        Its blocks that are not registered fail with RegistrarStoppedError: let them settle before. The other receivers
        are not affected. Detaching a receiver that is not attached does nothing.
        """
        with self._changed:
            lane = self._lanes.get(receiver_id)
            if lane is None:
                return
            lane.leaving = True
            if self._thread.ident is None:
                # No thread has sent anything yet.
                del self._lanes[receiver_id]
            self._changed.notify_all()
            self._interrupt.notify_all()
            # The receiver leaves between two calls: blocks in a call may still be answered.
            while self._lanes.get(receiver_id) is lane and self._thread.is_alive():
                lane.moved.wait(_LOOK_AGAIN_SECONDS)
            if self._lanes.get(receiver_id) is lane:
                del self._lanes[receiver_id]
        self._refuse(lane, RegistrarStoppedError(RegistrarStoppedError.__doc__))

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()
        self._heart.start()

    def stop(self) -> None:
        """End the threads after their current calls; what is not registered fails with RegistrarStoppedError.

        Let the receivers settle before: this drains nothing.
        """
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._interrupt.notify_all()
            self._heart_changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
            self._heart.join(_LAST_HEARTBEAT_SECONDS)
        with self._changed:
            lanes = list(self._lanes.values())
        for lane in lanes:
            self._refuse(lane, RegistrarStoppedError(RegistrarStoppedError.__doc__))

    # -- the registrar's thread --------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (lanes := self._next_work()) is not None:
                self._refuse_lost()
                if with_blocks := [lane for lane in lanes if lane.sent]:
                    self._send(with_blocks)
        except BaseException as error:  # noqa: BLE001  handed to every receiver
            # If the thread died silently, every receiver would wait for ever.
            failed = error if isinstance(error, Exception) else RegistrarFailedError(f"{type(error).__name__}: {error}")
            for lane in list(self._lanes.values()):
                try:
                    self._refuse(lane, failed)
                except BaseException:  # noqa: BLE001  the next receiver has to be told too
                    with contextlib.suppress(Exception):
                        _log.exception("a receiver could not be told that the registrar failed")
            _log.error("the registrar failed", exc_info=error)

    def _next_work(self) -> list[_Lane] | None:
        """Wait for something to do; return the receivers to send blocks for, or None at the end."""
        with self._changed:
            while not self._stopping:
                self._let_go()
                if any(lane.lost is not None for lane in self._lanes.values()):
                    return []
                now = self._clock.monotonic()
                left = self._not_before - now
                if left <= 0 and self._gathers_until > now and not self._one_by_one:
                    left = self._gathers_until - now
                if left <= 0 and (lanes := self._take()):
                    # Blocks that come during this call, and shortly after it began, go with the next call.
                    if len(self._lanes) >= _GATHERING_FROM:
                        self._gathers_until = now + min(_LONGEST_GATHERING, len(self._lanes) * _GATHERING_PER_RECEIVER)
                    return lanes
                if left > 0:
                    self._pause(left)
                else:
                    self._clock.wait_on(self._changed, None)
            return None

    def _pause(self, seconds: float) -> None:
        """Wait for these seconds; only an end or a receiver that leaves ends the wait. The lock is held."""
        self._clock.wait_on(self._interrupt, seconds)

    def _let_go(self) -> None:
        """Forget the receivers that leave. The lock is held, and no call is in progress."""
        for lane in [lane for lane in self._lanes.values() if lane.leaving]:
            del self._lanes[lane.receiver_id]
            lane.moved.notify_all()

    def _take(self) -> list[_Lane]:
        """Freeze what waits into groups; return the receivers that have one. The lock is held."""
        ready = []
        for lane in self._lanes.values():
            if not lane.sent and lane.waiting:
                lane.sent = list(lane.waiting)
                lane.waiting.clear()
            if lane.sent:
                ready.append(lane)
        while self._one_by_one:
            alone = [lane for lane in ready if lane.receiver_id == self._one_by_one[0]]
            if alone:
                return alone
            self._one_by_one.popleft()
        return ready

    def _send(self, lanes: Sequence[_Lane]) -> None:
        began = self._clock.monotonic()
        try:
            results = self._log.add_blocks([waiting.block for lane in lanes for waiting in lane.sent])
        except TRANSIENT as error:
            self._back_off(error)
            for lane in lanes:
                self._wait(lane, began, error)
            return
        except LostCommitsError as error:
            for lane in lanes:
                if lane.receiver_id in error.receiver_ids:
                    self._refuse(lane, error)
            return
        except Exception as error:  # noqa: BLE001  handed to the receiver that it is about
            self._isolate(lanes, error)
            return
        self._answered()
        self._take_answers(lanes, results)

    def _take_answers(self, lanes: Sequence[_Lane], results: Sequence[AddResult]) -> None:
        by_receiver = {lane.receiver_id: lane for lane in lanes}
        again = False
        for result in results:
            lane = by_receiver[result.receiver_id]
            lane.errors_alone = 0
            self._end_wait(lane)
            if result.outcome in _SETTLED:
                lane.progress.made()
                self._settle(lane)
            elif result.outcome is AddOutcome.AGAIN:
                again = True
            else:
                lane.progress.made()
                try:
                    raise_for_outcome(result)
                except DriverLogError as error:
                    self._refuse(lane, error)
            self._steer(lane, result.steering)
        if self._one_by_one:
            self._one_by_one.popleft()
        if again:
            # The block before it is committed and visible by now, so the short pause is not required; it spares the
            # log.
            self._not_before = self._clock.monotonic() + FIRST_DELAY / 10

    def _wait(self, lane: _Lane, began: float, error: Exception) -> None:
        lane.progress.failed(f"the driver log does not {_REGISTER}: {error}")
        if lane.waits_since is None:
            lane.waits_since = began
        if (
            lane.listener is not None
            and not lane.told_to_wait
            and self._clock.monotonic() - lane.waits_since >= TELL_AFTER
        ):
            lane.told_to_wait = True
            self._tell(lane, lambda listener: listener.on_driver_log_away(_REGISTER, error))

    def _end_wait(self, lane: _Lane) -> None:
        since, told = lane.waits_since, lane.told_to_wait
        lane.waits_since, lane.told_to_wait = None, False
        if told and since is not None:
            self._tell(lane, lambda listener: listener.on_driver_log_back(_REGISTER, self._clock.monotonic() - since))

    @staticmethod
    def _tell(lane: _Lane, word: Callable[[OutageListener], None]) -> None:
        """Tell a receiver's listener; an error of the listener must not reach the other receivers."""
        if lane.listener is None:
            return
        try:
            word(lane.listener)
        except Exception:  # noqa: BLE001  logged
            with contextlib.suppress(Exception):
                _log.exception("a receiver could not be told of the driver log", receiver_id=lane.receiver_id)

    def _steer(self, lane: _Lane, steering: Steering) -> None:
        # Two threads call this: the lock makes sure that the value remembered is the one told last.
        with lane.steering:
            # Only a heartbeat's answer names the server.
            server = steering.server or lane.server
            if steering == lane.steered and server == lane.server:
                # Nearly always so.
                return
            lane.steered, lane.server = steering, server
            try:
                lane.on_steering(steering)
            except Exception:  # noqa: BLE001  one receiver's fault must not reach the others
                lane.steered, lane.server = None, None
                _log.exception("a receiver could not be steered", receiver_id=lane.receiver_id)

    def _settle(self, lane: _Lane) -> None:
        # Futures first: a thread that waits until all is settled may rely on their callbacks having run.
        lane.registered_through.sequence = lane.sent[-1].block.sequence
        for waiting in lane.sent:
            waiting.future.set_result(waiting.block)
        with self._lock:
            lane.sent = []
            lane.moved.notify_all()

    def _refuse(self, lane: _Lane, error: Exception) -> None:
        """Fail the receiver's blocks here, and all that it hands in from now on."""
        with self._changed:
            if lane.refused is None or isinstance(lane.refused, _PASSING):
                lane.refused = error
            # Nothing is handed in from here on, so the order of the two steps below is safe.
            failed = [*lane.sent, *lane.waiting]
        for waiting in failed:
            waiting.future.set_exception(error)
        with self._changed:
            lane.sent = []
            lane.waiting.clear()
            lane.moved.notify_all()

    def _refuse_lost(self) -> None:
        with self._changed:
            found = [(lane, lane.lost) for lane in self._lanes.values() if lane.lost is not None]
            for lane, _ in found:
                lane.lost = None
        for lane, error in found:
            if error is None or isinstance(lane.refused, LostCommitsError):
                continue
            self._refuse(lane, error)
            try:
                lane.on_lost(error)
            except Exception:  # noqa: BLE001  one receiver's fault must not reach the others
                _log.exception("a receiver could not be told of lost commits", receiver_id=lane.receiver_id)

    def _isolate(self, lanes: Sequence[_Lane], error: Exception) -> None:
        """Find the receiver whose blocks made the database refuse a whole call with an error."""
        if len(lanes) > 1:
            _log.warning("the driver log refused a group of blocks, sending them by receiver", error=str(error))
            self._one_by_one = deque(lane.receiver_id for lane in lanes)
            return
        lane = lanes[0]
        lane.progress.failed(f"the driver log does not {_REGISTER}: {error}")
        lane.errors_alone += 1
        if lane.errors_alone < _ERRORS_ALONE:
            if self._one_by_one:
                self._one_by_one.rotate(-1)
            self._back_off(error)
        else:
            _log.error("the driver log refuses a receiver's blocks", receiver_id=lane.receiver_id, error=str(error))
            self._refuse(lane, error)

    def _back_off(self, error: Exception) -> None:
        delay = self._backoff.next_delay()
        self._not_before = self._clock.monotonic() + delay
        if self._backoff.failures == 1:
            _log.warning("the driver log does not take blocks, sending the same again", error=str(error))

    def _answered(self) -> None:
        if self._backoff.failures:
            _log.info("the driver log takes blocks again", attempts=self._backoff.failures + 1)
            self._backoff.reset()

    # -- the heartbeat's thread --------------------------------------------------------------------------------------

    def _run_heartbeats(self) -> None:
        while (receiver_ids := self._next_heartbeat_of()) is not None:
            try:
                self._beat(receiver_ids)
            except BaseException:  # noqa: BLE001  without heartbeats the whole process is taken for dead
                with contextlib.suppress(Exception):
                    _log.exception("a heartbeat failed")

    def _next_heartbeat_of(self) -> list[int] | None:
        """Wait until a heartbeat is due; return the receivers that it asks for, or None at the end."""
        with self._changed:
            while not self._stopping:
                left = self._next_heartbeat - self._clock.monotonic()
                if left <= 0:
                    self._next_heartbeat = self._clock.monotonic() + self._interval
                    return list(self._lanes)
                self._clock.wait_on(self._heart_changed, left)
            return None

    def _beat(self, receiver_ids: Sequence[int]) -> None:
        with self._changed:
            # Read it before asking: what is registered meanwhile is no loss. A receiver that is attached again
            # meanwhile may rightly know less than before.
            asked = [(lane, lane.registered_through.sequence) for lane in self._lanes.values()]
        try:
            steerings = self._log.heartbeat(receiver_ids)
        except ProcessExpiredError as error:
            self._on_expired(error)
        except Exception as error:  # noqa: BLE001  whatever it is, it is tried again
            with self._changed:
                self._next_heartbeat = self._clock.monotonic() + self._heartbeat_backoff.next_delay()
            if self._heartbeat_backoff.failures == 1:
                _log.warning("the driver log took no heartbeat, trying again", error=str(error))
        else:
            if self._heartbeat_backoff.failures:
                _log.info("the driver log takes heartbeats again", attempts=self._heartbeat_backoff.failures + 1)
                self._heartbeat_backoff.reset()
            newest = {steering.receiver_id: steering.newest_sequence for steering in steerings}
            # First, because lost blocks say more than another server does, and end the receiver without a drain.
            for lane, registered in asked:
                self._compare(lane, newest.get(lane.receiver_id), registered)
            for steering in steerings:
                if (steered := self._lanes.get(steering.receiver_id)) is not None:
                    self._steer(steered, steering)

    def _compare(self, lane: _Lane, newest: int | None, registered: int) -> None:
        if newest is None or newest >= registered:
            return
        with self._changed:
            if lane.refused is not None and not isinstance(lane.refused, _PASSING):
                return
            lane.lost = LostCommitsError(
                f"the newest of receiver {lane.receiver_id} is sequence {newest}, and {registered} was registered",
                (lane.receiver_id,),
            )
            self._changed.notify_all()
            self._interrupt.notify_all()
