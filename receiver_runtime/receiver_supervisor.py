"""Runs one receiver under one claim: starts, restarts, pauses, stops it, and brings its records into registered blocks.

Authority: the claim was answered before this is made, so the epoch is ours until the driver log says FENCED. From then
on nothing that is held here would be accepted: everything stops, nothing is drained.

One control thread decides and acts; everybody else (the receiver's threads, the registrar's, signals) only leaves a
wish and returns. So the states move on one thread, and no order of restart, pause and stop can surprise it:

    Initialized -> Started <-> Stopped        (S01; a restart and a pause go through Stopped)

At a graceful end (S04, done in the order that loses nothing): the rate limit is lifted, the receiver stops and hands on
what it has read, the block generator drains, every stored block is registered, the write-ahead log is closed and
sealed, and only then is the receiver said to have ended.

The receiver's own code runs on threads of its own. An ``on_start`` that blocks is reported and left to run; an
``on_stop`` that hangs is reported, and the end goes on without it: what was handed over is drained, and what is handed
over from then on is refused. Where there was to be another start, the process ends instead: nobody can say what such
a receiver still does.
"""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import structlog

from receiver_runtime.acknowledged_blocks import AcknowledgedBlocks
from receiver_runtime.backoff import Backoff
from receiver_runtime.block_generator import Block, BlockGenerator
from receiver_runtime.block_store.frame import SourceRule
from receiver_runtime.clock import Clock, SystemClock
from receiver_runtime.exit_codes import ExitCode
from receiver_runtime.progress import LONGEST_PAUSE_SECONDS, Progress
from receiver_runtime.rate_limiter import RateLimiter
from receiver_runtime.receiver_calls import HandOvers, WatchedCall, wait_for_calls
from receiver_runtime.records import conform, to_batch
from receiver_runtime.write_ahead_log import WriteAheadLogError
from tracker_store.dead_letters import StoredDeadLetter
from tracker_store.errors import (
    DriverLogError,
    DuplicateKeysError,
    OffsetConflictError,
    ReceiverFencedError,
    SequenceGapError,
)
from tracker_store.receivers import HINDERED
from tracker_store.schema import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from receiver_runtime.block_handler import BlockHandler, DeadLetter, EncodedBlock
    from receiver_runtime.block_threads import BlockThreads
    from receiver_runtime.driver_log import DeadLetterRows, KnownKeys, SourcePositions
    from receiver_runtime.reading_loop import ReadingLoop
    from receiver_runtime.receiver import Receiver
    from receiver_runtime.registrar import Registrar
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.status_reporter import Reporter
    from tracker_store.blocks import BlockHandle, Claim, NewBlock, OffsetLink, Position, Steering

_log = structlog.get_logger(__name__)


_STORE_FIRST_DELAY = 0.1
# Everything is acknowledged within a minute of the disk's return, however long it was full.
_STORE_LONGEST_DELAY = LONGEST_PAUSE_SECONDS
# In a second; what is slower than that is not told from a disk that hangs.
_SLOWEST_DISK_BYTES = 2**20
# Dead letters in one write and one statement.
_LETTERS_AT_ONCE = 1000
# The hindrance of a disk that takes no blocks.
_STORE = "store blocks"
# And that of whatever it is that has lasted for long.
_PROGRESS = "make progress"


class SupervisorState(StrEnum):
    """The original's three states (S01)."""

    INITIALIZED = "Initialized"
    STARTED = "Started"
    STOPPED = "Stopped"


TRANSITIONS: Mapping[SupervisorState, frozenset[SupervisorState]] = {
    SupervisorState.INITIALIZED: frozenset({SupervisorState.STARTED}),
    SupervisorState.STARTED: frozenset({SupervisorState.STOPPED}),
    SupervisorState.STOPPED: frozenset({SupervisorState.STARTED}),
}


class SupervisorStateError(RuntimeError):
    """A supervisor moved between two states that no transition joins: this is a bug, please report it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How and why a receiver ended.

    ``drained`` says whether what was handed over is in registered blocks; ``again`` that FAILED is no state to stay in:
    the agent starts another process.
    """

    exit_code: ExitCode
    reason: str
    drained: bool
    again: bool = False


@dataclass(frozen=True, slots=True)
class _Restart:
    message: str
    error: BaseException | None
    delay: float | None


class ReceiverSupervisor:
    """See the module. ``start`` or ``run`` once; ``stop`` any number of times; ``await_termination`` for the end.

    Args:
        receiver: not attached yet.
        stream_id: for ``Receiver.stream_id``.
        stream_name: for receivers whose senders name it.
        claim: answered; the first block takes the sequence after its marker.
        assignment: under which it was claimed.
        handler: of this epoch's write-ahead log.
        registrar: started by its owner.
        driver_log: for the rows of dead letters.
        positions: of its source's partitions, for a source that has such.
        keys: of the stream's records, for a source that has such.
        reporter: of this receiver and epoch.
        threads: for its block generator, where it shares them with other receivers.
        reading_loop: for its quiet connections, likewise.
        progress: of this receiver, where others count in it too.
    """

    def __init__(
        self,
        receiver: Receiver,
        *,
        stream_id: int,
        claim: Claim,
        assignment: int,
        settings: ReceiverSettings,
        handler: BlockHandler,
        registrar: Registrar,
        driver_log: DeadLetterRows,
        reporter: Reporter,
        positions: SourcePositions | None = None,
        keys: KnownKeys | None = None,
        desired_state: DesiredState = DesiredState.RUNNING,
        rate_limit: float | None = None,
        threads: BlockThreads | None = None,
        reading_loop: ReadingLoop | None = None,
        clock: Clock | None = None,
        stream_name: str = "",
        progress: Progress | None = None,
    ) -> None:
        self._receiver = receiver
        self.progress = Progress() if progress is None else progress
        self._stream_id = stream_id
        self._stream_name = stream_name
        self._claim = claim
        self._assignment = assignment
        self._settings = settings
        self._handler = handler
        self._driver_log = driver_log
        self._positions = positions
        self._keys = keys
        self._reporter: Reporter = _UnfailingReporter(reporter)
        self._reading_loop = reading_loop
        self._clock = clock or SystemClock()
        self._schema = receiver.record_schema
        self._limiter = RateLimiter(
            rate_limit,
            initial_rate=settings.backpressure_initial_rate,
            max_rate=settings.receiver_max_rate,
            max_bytes_rate=settings.receiver_max_bytes_rate,
            clock=self._clock,
        )
        self._hand_overs = HandOvers(self._clock)
        # Which threads are storing something, or wait for their turn to.
        self._storing = HandOvers(self._clock)
        self._generator = BlockGenerator(
            self,
            self._schema,
            limiter=self._limiter,
            block_interval=settings.block_interval,
            queue_size=settings.block_queue_size,
            max_block_bytes=settings.max_block_bytes,
            name=f"receiver {claim.receiver_id}",
            clock=self._clock,
            encode=handler.encode,
            threads=threads,
        )
        self._backoff = Backoff(
            settings.receiver_restart_delay,
            max(settings.receiver_restart_delay, settings.receiver_max_restart_delay),
        )

        # For people, where the driver log turns out to lack some.
        self.acknowledged = AcknowledgedBlocks()

        # Sequences are given out, stored and handed to the registrar one by one.
        self._push_lock = threading.Lock()
        self._next_sequence = claim.sequence + 1
        # Whether what is under way, if anything is, are blocks with keys.
        self._keyed = False

        # The control thread's alone: the newest on_start, and whether an on_stop was given up.
        self._on_start: WatchedCall | None = None
        self._stop_hung = False

        # Everything below is under this lock; only the control thread moves the state.
        self._changed = threading.Condition()
        self._state = SupervisorState.INITIALIZED
        self._desired = desired_state
        self._paused = False
        self._start_at = 0.0
        self._started_at = 0.0
        self._accepted = False
        self._wanted_restart: _Restart | None = None
        self._wanted_end: Ending | None = None
        self._refused: BaseException | None = None
        # What was stored and then refused; the next epoch's salvage finds it, if it came before that looked.
        self._refused_blocks = 0
        self._refused_records = 0
        self._ending: Ending | None = None
        # What keeps blocks from being registered, and why; it is the reason that operators see, while there is any.
        self._hindrances: dict[str, str] = {}
        self._reason = "receiving"

        # Last: a heartbeat may steer it at once.
        self._registration = registrar.attach(
            claim.receiver_id,
            registered_through=claim.sequence,
            limit=settings.block_queue_size,
            on_steering=self._on_steering,
            listener=self,
            progress=self.progress,
            on_lost=self._on_refused,
        )
        receiver.attach_supervisor(self)

    # -- the owner's side --------------------------------------------------------------------------------------------

    @property
    def state(self) -> SupervisorState:
        """Where in its life it is."""
        with self._changed:
            return self._state

    @property
    def epoch(self) -> int:
        """Of the claim."""
        return self._claim.epoch

    @property
    def generator(self) -> BlockGenerator:
        """The block generator, for figures."""
        return self._generator

    @property
    def limiter(self) -> RateLimiter:
        """The rate limiter, for figures."""
        return self._limiter

    @property
    def progress_limit(self) -> float:
        """Seconds without progress, while it holds data, that are too many."""
        return progress_limit(self._settings)

    @property
    def holds_data(self) -> bool:
        """Whether something is to be stored or registered. Takes no lock."""
        return self._generator.holds_data or self._registration.has_unsettled or self._storing.any_since(math.inf)

    def on_hindered(self, seconds: float, why: str) -> None:
        """Operators see that it gets nothing done, and why; it goes on by itself (the watchdog, its own thread)."""
        self._hinder(_PROGRESS, f"{HINDERED}: nothing stored or registered for {seconds:g} s: {why}")
        self._reporter.event(
            ReceiverEventKind.ERROR, "data is held and nothing of it could be stored or registered, trying on", why
        )

    def on_moving(self) -> None:
        """It gets on again."""
        self._clear(_PROGRESS)

    def start(self) -> None:
        """As ``run``, on a thread of its own; returns at once."""
        self._generator.start()
        threading.Thread(target=self._run, name=f"receiver {self._claim.receiver_id} supervisor", daemon=True).start()

    def run(self) -> Ending:
        """Start the block generator, then the receiver (S01), unless it is desired otherwise; returns at its end.

        The caller's thread is the control thread.
        """
        self._generator.start()
        return self._run()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Ask for the end, drained; returns at once (S04). The first reason given is the one that counts."""
        code = ExitCode.STOPPED if error is None else ExitCode.FAILED
        self.end(Ending(code, message if error is None else f"{message}: {error}", drained=True))

    def end(self, ending: Ending) -> None:
        """Ask for this end; ``drained`` says whether to drain. Returns at once."""
        with self._changed:
            self._wanted_end = ending if self._wanted_end is None else self._wanted_end
            self._changed.notify_all()

    def await_termination(self, timeout: float | None = None) -> Ending | None:
        """Wait for the end, at most ``timeout`` seconds; None when it has not come."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        with self._changed:
            while self._ending is None:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    return None
                self._clock.wait_on(self._changed, left)
            return self._ending

    # -- the receiver's side (AttachedSupervisor) --------------------------------------------------------------------

    @property
    def stream_id(self) -> int:
        """Of the stream."""
        return self._stream_id

    @property
    def stream_name(self) -> str:
        """Of the stream, as its senders may name it; empty where nobody said."""
        return self._stream_name

    @property
    def receiver_id(self) -> int:
        """Of the receiver, the same after every restart and on every host."""
        return self._claim.receiver_id

    @property
    def reading_loop(self) -> ReadingLoop | None:
        """Who reads from connections on which little comes, where there is one."""
        return self._reading_loop

    @property
    def settings(self) -> ReceiverSettings:
        """Of this receiver."""
        return self._settings

    @property
    def record_schema(self) -> pa.Schema:
        """Of the blocks."""
        return self._schema

    def is_started(self) -> bool:
        """State is Started (R04)."""
        return self.state is SupervisorState.STARTED

    def is_stopped(self) -> bool:
        """State is Stopped (R04)."""
        return self.state is SupervisorState.STOPPED

    def push_single(self, record: object) -> None:
        """One record to the block generator."""
        with self._hand_overs:
            self._generator.add_data(record)
        self._accepted = True

    def push_buffered(self, records: pa.RecordBatch | Sequence[object]) -> None:
        """Many records to the block generator; in even pieces while a rate limit is set."""
        batch = (
            conform(records, self._schema) if isinstance(records, pa.RecordBatch) else to_batch(records, self._schema)
        )
        done = 0
        with self._hand_overs:
            while done < batch.num_rows:
                # Asked anew for each piece: a new rate takes effect in the midst of a chunk.
                rest = batch.slice(done)
                piece = rest.slice(0, self._limiter.piece(rest.num_rows, rest.nbytes))
                done += piece.num_rows
                self._generator.add_multiple_data(piece)
                self._accepted = True

    def push_if_free(self, batch: pa.RecordBatch) -> bool:
        """As ``push_buffered``, but for a wait: where there was to be one, nothing is added; says whether it was."""
        if not self._generator.add_if_free(batch):
            return False
        self._accepted = True
        return True

    def push_and_report_block(self, records: pa.RecordBatch | pa.Table | Sequence[object]) -> None:
        """Many records as one block; returns when it is registered (S07).

        Raises: what stopped it; then the block is not registered, and the source must not be acknowledged.
        """
        if isinstance(records, pa.RecordBatch):
            batches = [conform(records, self._schema)]
        elif isinstance(records, pa.Table):
            batches = [conform(batch, self._schema) for batch in records.to_batches()]
        else:
            batches = [to_batch(records, self._schema)]
        batches = [batch for batch in batches if batch.num_rows]
        if not batches:
            return
        with self._hand_overs:
            self._limiter.acquire(sum(batch.num_rows for batch in batches), sum(batch.nbytes for batch in batches))
            self._push(self._handler.encode(batches)).result()
        self._accepted = True

    def open_partition(self, source: str, partition: str, start_offset: int) -> Position:
        """Where to read a partition of the source from, by the driver log; before its first read, ``start_offset``."""
        if self._positions is None:
            raise NotImplementedError("this receiver's driver log keeps no positions of sources")
        return self._positions.open_partition(source, partition, start_offset)

    @property
    def positions(self) -> SourcePositions:
        """All of the source's positions, for a source of very many partitions."""
        if self._positions is None:
            raise NotImplementedError("this receiver's driver log keeps no positions of sources")
        return self._positions

    def piece(self, records: int, nbytes: int) -> int:
        """How many of so many records to hand on at once, so that they flow evenly under a rate limit."""
        return self._limiter.piece(records, nbytes)

    def push_linked(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> Future[NewBlock]:
        """A batch as one block that moves its source's positions; returns when it is stored, before it is registered.

        The future resolves when the driver log has block and positions. It fails with OffsetConflictError where another
        receiver has read one of the partitions on: then nothing that is under way is registered, nothing more is taken,
        and the receiver is to ask for the positions anew after ``go_on_after_conflict``.

        Raises: what stopped it; then nothing of it is stored, or it is not registered.
        """
        with self._hand_overs:
            self._limiter.acquire(batch.num_rows, batch.nbytes)
            future = self._push(self._handler.encode([conform(batch, self._schema)]), tuple(links))
        self._accepted = True
        return future

    def go_on_after_conflict(self) -> None:
        """Take blocks again, after a refusal for a position or a key. Waits for what is under way.

        What was refused is dropped here: who handed it over does so again, or not.

        Raises: what the receiver was refused with for good.
        """
        with self._push_lock:
            self._next_sequence = self._registration.go_on() + 1
        self.progress.made()

    def wait_for_rate(self, records: int, nbytes: int) -> None:
        """Return when so many records may pass; for ``push_keyed``, which may have to push what has passed again."""
        with self._hand_overs:
            self._limiter.acquire(records, nbytes)

    def handing_over(self) -> AbstractContextManager[None]:
        """While in it, a thread of the receiver's waits for us; a stop gives it the time."""
        return self._hand_overs

    def known_keys(self, keys: Sequence[str], *, wait: bool = True) -> set[str]:
        """Which of these keys the stream has received within its window, by the driver log.

        Without ``wait`` none of them, where it is away: a block that has some will be refused.
        """
        if self._keys is None:
            raise NotImplementedError("this receiver's driver log keeps no keys")
        with self._hand_overs:
            return self._keys.known_keys(keys, wait=wait)

    def push_keyed(self, batch: pa.RecordBatch, keys: Sequence[str]) -> Future[NewBlock]:
        """A batch as one block with its records' keys; returns when it is stored, before it is registered.

        Its sender brings it again where it is not acknowledged, so no salvage registers it. The future resolves when
        the driver log has block and keys. It fails with DuplicateKeysError where one of them is known: then nothing
        with keys that is under way is registered, and nothing is taken before ``go_on_after_conflict``, which the
        caller must come to. A disk that takes no blocks is waited for, but not at a stop.

        Raises: what stopped it; then nothing of it is stored, or it is not registered.
        """
        with self._hand_overs:
            encoded = self._handler.encode([conform(batch, self._schema)])
            backoff = Backoff(_STORE_FIRST_DELAY, _STORE_LONGEST_DELAY)
            while True:
                try:
                    future = self._push(encoded, keys=tuple(keys))
                except WriteAheadLogError as error:
                    self.on_error("a block with keys could not be stored", error)
                    if self.is_stopped() or not self._pause_unless_refused(backoff.next_delay()):
                        raise
                else:
                    self._clear(_STORE)
                    self._accepted = True
                    return future

    def store_dead_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Dead letters to the segment, then to the driver log; returns when all are recorded.

        By one sync and one statement for so many of them: a sender in the wrong encoding has nothing else.
        """
        with self._hand_overs:
            for first in range(0, len(letters), _LETTERS_AT_ONCE):
                self._store_and_record(letters[first : first + _LETTERS_AT_ONCE])

    def _store_and_record(self, letters: Sequence[DeadLetter]) -> None:
        backoff = Backoff(_STORE_FIRST_DELAY, _STORE_LONGEST_DELAY)
        while True:
            try:
                with self._storing:
                    handles = self._store_dead_letters(letters)
                self.progress.made()
            except WriteAheadLogError as error:
                # Not the receiver's to handle: it would drop the good lines that it read with this one.
                self.report_error("a dead letter could not be stored, reading waits for it", error)
                if not self._pause_unless_refused(backoff.next_delay()):
                    raise
            else:
                break
        self._driver_log.add_dead_letters(
            [
                StoredDeadLetter(letter.reason.label, letter.part, len(letter.data), handle)
                for letter, handle in zip(letters, handles, strict=True)
            ]
        )
        self._handler.dead_letters_recorded(handles)
        for letter, handle in zip(letters, handles, strict=True):
            self._reporter.event(
                ReceiverEventKind.BAD_RECORD,
                f"a record went aside as a dead letter: {letter.reason.label}",
                f"part {letter.part}, {len(letter.data)} bytes, segment {handle.segment_id}, offset {handle.offset}",
            )

    def _store_dead_letters(self, letters: Sequence[DeadLetter]) -> list[BlockHandle]:
        with self._push_lock:
            return self._handler.store_dead_letters(
                letters,
                sequence=self._next_sequence - 1,
                registered_through=self._registration.registered_through,
            )

    def _pause_unless_refused(self, seconds: float) -> bool:
        """Wait; False as soon as nothing more is to be stored."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while self._refused is None and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._changed, left)
            return self._refused is None

    def report_connected(self, where: str) -> None:
        """The source is there."""
        self._reporter.event(ReceiverEventKind.CONNECTED, f"connected to {where}")
        self._say(f"connected to {where}")

    def report_listening(self, where: str) -> None:
        """The source's senders may come."""
        self._reporter.event(ReceiverEventKind.CONNECTED, f"listening on {where}")
        self._say(f"listening on {where}")

    def report_error(self, message: str, error: BaseException | None = None) -> None:
        """An event ERROR; receiving goes on (R03)."""
        self._reporter.event(ReceiverEventKind.ERROR, message, _describe(error))
        with suppress(Exception):
            _log.warning(message, receiver_id=self._claim.receiver_id, error=_describe(error))

    def restart_receiver(self, message: str, error: BaseException | None, delay: float | None) -> None:
        """Ask for a restart; returns at once. Ignored unless Started, and while one is asked for (R03, S05)."""
        with self._changed:
            if self._state is SupervisorState.STARTED and self._wanted_restart is None:
                self._wanted_restart = _Restart(message, error, delay)
                self._changed.notify_all()

    # -- the block generator's side (BlockGeneratorListener) ---------------------------------------------------------

    def on_generate_block(self, block: Block) -> None:
        """Nothing to note: this source has no offsets."""

    def on_push_block(self, block: Block) -> None:
        """Store a block and hand it to the registrar; what follows is stored while this one is registered."""
        self._push(block.encoded or self._handler.encode(block.batches))
        self._clear(_STORE)

    def on_idle(self) -> None:
        """Close a segment that has reached its age; note in its file what is acknowledged."""
        self._handler.keep_house(self._registration.registered_through)

    def on_error(self, message: str, error: Exception) -> None:
        """A push failed; it is tried again, and when the queue is full, reading stops (W05)."""
        with self._changed:
            if self._refused is not None:
                return
        self.progress.failed(f"a block could not be stored: {_describe(error)}")
        self._hinder(_STORE, f"a block could not be stored, reading stops when the queue is full: {_describe(error)}")
        self.report_error("a block could not be stored, it is tried again", error)
        with suppress(Exception):
            _log.warning(message, receiver_id=self._claim.receiver_id, error=_describe(error))

    def on_thread_death(self, error: BaseException) -> None:
        """The generator has ended and takes nothing more: so does this process, and another is started."""
        self.end(Ending(ExitCode.FAILED, f"the block generator failed: {_describe(error)}", drained=False, again=True))
        self.report_error("the block generator failed", error)

    def _push(
        self, encoded: EncodedBlock, links: tuple[OffsetLink, ...] = (), keys: tuple[str, ...] | None = None
    ) -> Future[NewBlock]:
        with self._storing:
            while True:
                try:
                    return self._push_once(encoded, links, keys)
                except DuplicateKeysError:
                    if keys is not None:
                        raise
                # Not its own fault: who has handed over the keys goes on at once.
                self._registration.wait_until_it_goes_on()

    def _push_once(
        self, encoded: EncodedBlock, links: tuple[OffsetLink, ...], keys: tuple[str, ...] | None
    ) -> Future[NewBlock]:
        with self._push_lock:
            if self._keyed is not (keys is not None):
                # Never under way together: a refusal for a key would take the others along, and their sender may not
                # bring them again.
                self._registration.wait_until_settled()
                self._keyed = keys is not None
            self._registration.reserve()
            try:
                block = self._handler.store_block(
                    encoded,
                    sequence=self._next_sequence,
                    registered_through=self._registration.registered_through,
                    source_rule=None if keys is None else SourceRule.SENT_AGAIN,
                )
            except BaseException:
                self._registration.release()
                raise
            self.progress.made()
            self._next_sequence += 1
            if links or keys:
                block = replace(block, links=links, keys=keys or ())
            future = self._registration.submit(block)
        future.add_done_callback(partial(self._on_answer, block))
        return future

    # -- the driver log's side (OutageListener; any thread) ----------------------------------------------------------

    def on_driver_log_away(self, what: str, error: Exception) -> None:
        """Operators see why nothing comes: by the reason, where that can be written, else as soon as it can."""
        self._hinder(
            what, f"the driver log does not {what}, reading stops when the queue is full: {_first_line(error)}"
        )

    def on_driver_log_back(self, what: str, seconds: float) -> None:
        """The history says how long it took, and why."""
        why = self._clear(what)
        self._reporter.event(
            ReceiverEventKind.ERROR, "what was received had to wait for the driver log", f"{seconds:.1f} s: {why}"
        )

    # -- the registrar's side (its thread: leave a wish, return) -----------------------------------------------------

    def _on_answer(self, block: NewBlock, future: Future[NewBlock]) -> None:
        error = future.exception()
        if (
            error is None
            or (isinstance(error, OffsetConflictError) and block.links)
            or isinstance(error, DuplicateKeysError)
        ):
            # The receiver drops what it has read, and reads on from where the driver log is; or leaves out what the
            # driver log has.
            if error is None:
                self.acknowledged.add(block)
            return
        with self._changed:
            self._refused_blocks += 1
            self._refused_records += block.records
        self._on_refused(error)

    def _on_refused(self, error: BaseException) -> None:
        """Nothing more of this epoch is accepted."""
        with self._changed:
            if self._refused is not None:
                return
            self._refused = error
            code = ExitCode.FENCED if isinstance(error, ReceiverFencedError) else ExitCode.FAILED
            # It outranks an end that was to drain: there is nobody left to drain to.
            self._wanted_end = Ending(code, str(error), drained=False, again=code is ExitCode.FAILED)
            self._changed.notify_all()
        self._generator.abort()

    def _on_steering(self, steering: Steering) -> None:
        self._limiter.update_rate(steering.rate_limit)
        with self._changed:
            if self._desired is not steering.desired_state:
                self._desired = steering.desired_state
                self._changed.notify_all()
        if steering.assignment > self._assignment:
            self.end(Ending(ExitCode.FENCED, f"moved: assignment {steering.assignment} replaces ours", drained=True))

    # -- the control thread ------------------------------------------------------------------------------------------

    def _run(self) -> Ending:
        try:
            while (ending := self._step()) is None:
                pass
        except BaseException as error:  # noqa: BLE001  logged, and the end all the same
            ending = Ending(ExitCode.FAILED, f"the supervisor failed: {_describe(error)}", drained=True, again=True)
            self._log_failure("a supervisor failed", error)
        try:
            ending = self._finish(ending)
        except BaseException as error:  # noqa: BLE001  logged, and told as the end's reason
            # Whoever waits for the end must see one.
            reason = f"{ending.reason}; then the end itself failed: {_describe(error)}"
            ending = Ending(ExitCode.FAILED, reason, drained=False, again=True)
            self._log_failure("a supervisor could not end in order", error)
        try:
            self._tell(ending)
        except BaseException as error:  # noqa: BLE001  logged: the end must come whether or not it can be told
            self._log_failure("a receiver's end could not be told", error)
        with self._changed:
            self._ending = ending
            self._changed.notify_all()
        return ending

    def _log_failure(self, message: str, error: BaseException) -> None:
        with suppress(Exception):
            _log.error(message, receiver_id=self._claim.receiver_id, exc_info=error)

    def _step(self) -> Ending | None:
        """Wait for the next thing to do and do it; returns the end when it has come."""
        with self._changed:
            while True:
                now = self._clock.monotonic()
                if self._wanted_end is not None:
                    return self._wanted_end
                if self._desired is DesiredState.STOPPED:
                    return Ending(ExitCode.STOPPED, "stopped by an operator", drained=True)
                wait: float | None = None
                if self._desired is DesiredState.PAUSED:
                    if not self._paused:
                        action = self._pause
                        break
                elif self._paused:
                    action = self._resume
                    break
                elif self._state is SupervisorState.STARTED:
                    if self._wanted_restart is not None:
                        action = self._restart
                        break
                elif now >= self._start_at:
                    action = self._start_receiver
                    break
                else:
                    wait = self._start_at - now
                self._clock.wait_on(self._changed, wait)
        action()
        return None

    def _start_receiver(self) -> None:
        with self._changed:
            self._wanted_restart = None
            self._accepted = False
            self._started_at = self._clock.monotonic()
            # Started before on_start runs, which may already ask (S02).
            self._move(SupervisorState.STARTED)
        self._on_start = self._call(self._receiver.on_start, self._on_start_failed)
        if not self._on_start.wait(self._settings.receiver_start_timeout):
            self.report_error(
                f"on_start has not returned after {self._settings.receiver_start_timeout:g} s and is left to run on: "
                "it must not block, start a thread in it"
            )

    def _on_start_failed(self, error: BaseException) -> None:
        self.restart_receiver("Error starting receiver", error, None)

    def _on_stop_failed(self, error: BaseException) -> None:
        self.report_error("Error stopping receiver", error)

    def _call(self, action: Callable[[], None], on_error: Callable[[BaseException], None]) -> WatchedCall:
        name = f"receiver {self._claim.receiver_id} {action.__name__}"
        call = WatchedCall(action, name=name, clock=self._clock, on_error=on_error)
        call.start()
        return call

    def _stop_receiver(self) -> bool:
        """S03: Started goes to Stopped; elsewhere there is nothing to stop. False when the receiver hangs in it."""
        with self._changed:
            if self._state is not SupervisorState.STARTED:
                return True
            self._move(SupervisorState.STOPPED)
            self._wanted_restart = None
        self._limiter.close()
        calls = [self._call(self._receiver.on_stop, self._on_stop_failed)]
        if self._on_start is not None:
            calls.append(self._on_start)
        returned = wait_for_calls(
            calls, self._settings.receiver_stop_timeout, hand_overs=self._hand_overs, clock=self._clock
        )
        if not returned:
            self._stop_hung = True
            self.report_error(
                f"on_stop has not returned after {self._settings.receiver_stop_timeout:g} s, it is waited for no "
                "longer: what was handed over is stored, what the receiver still holds is lost"
            )
        with self._changed:
            if self._refused is None and self._wanted_end is None:
                self._limiter.reopen()
        return returned

    def _end_for_another(self, why: str) -> None:
        """There was to be another start, and the receiver never stopped: only a new process can make one."""
        self.end(Ending(ExitCode.FAILED, f"on_stop hangs, a new process takes over: {why}", drained=True, again=True))

    def _restart(self) -> None:
        with self._changed:
            restart = self._wanted_restart
            healthy = self._accepted or (
                self._clock.monotonic() - self._started_at >= self._settings.receiver_healthy_after
            )
        if restart is None:
            return
        if not self._stop_receiver():
            self._end_for_another(_sentence(restart))
            return
        if healthy:
            self._backoff.reset()
        limit = self._settings.receiver_max_restarts
        if limit and self._backoff.failures >= limit:
            self.end(
                Ending(
                    ExitCode.FAILED,
                    f"{limit} restarts in a row did not help: {_sentence(restart)}",
                    drained=True,
                )
            )
            return
        delay = self._backoff.next_delay()
        with self._changed:
            self._start_at = self._clock.monotonic() + (delay if restart.delay is None else restart.delay)
        self._reporter.event(ReceiverEventKind.RESTARTED, restart.message, _describe(restart.error))
        self._say(f"trying again: {_sentence(restart)}")

    def _pause(self) -> None:
        if not self._stop_receiver():
            self._end_for_another("paused by an operator")
            return
        with self._changed:
            self._paused = True
        self._reporter.event(ReceiverEventKind.PAUSED, "paused by an operator")
        self._reporter.state(ReceiverState.PAUSED, "paused by an operator")

    def _resume(self) -> None:
        with self._changed:
            self._paused = False
            self._start_at = 0.0
        self._reporter.event(ReceiverEventKind.RESUMED, "resumed by an operator")
        self._reporter.state(ReceiverState.ACTIVE, "resumed by an operator")

    def _finish(self, ending: Ending) -> Ending:
        with self._changed:
            self._wanted_end = ending if self._wanted_end is None else self._wanted_end
        if not ending.drained:
            self._generator.abort()
        with suppress(Exception):
            _log.info("receiver ends", receiver_id=self._claim.receiver_id, reason=ending.reason, drain=ending.drained)
        self._stop_receiver()
        # For a receiver that was stopped before, and for pushes of its own that still wait for permits.
        self._limiter.close()
        if ending.drained:
            # Whatever the driver log does: what is on the disk can be salvaged, what is in the buffer is gone with us.
            self._registration.lift_limit()
            self._generator.stop()
            self._registration.wait_until_settled()
        self._handler.close(self._registration.registered_through)
        with self._changed:
            refused = self._refused is not None
            if refused and self._wanted_end is not None:
                # Refused while it drained.
                ending = self._wanted_end
        if refused:
            # Until each block is counted.
            self._registration.wait_until_settled()
        return ending

    def _tell(self, ending: Ending) -> None:
        match ending.exit_code:
            case ExitCode.FENCED:
                self._reporter.event(
                    ReceiverEventKind.FENCED, "another process holds the receiver", f"{ending.reason}{self._held()}"
                )
            case ExitCode.FAILED if ending.again:
                # A new process claims anew and goes on, so this is no state to stay in.
                what, detail = "this process ends, another claims anew", ending.reason
                if isinstance(self._refused, SequenceGapError):
                    what = f"the driver log lacks blocks that it had acknowledged: {what}"
                    detail += f" It was acknowledged up to sequence {self._registration.registered_through}."
                self._reporter.event(ReceiverEventKind.ERROR, what, detail)
            case ExitCode.FAILED:
                self._reporter.state(ReceiverState.FAILED, ending.reason)
                self._reporter.event(ReceiverEventKind.FAILED, "the receiver failed", ending.reason)
            case ExitCode.STOPPED:
                what = "handed over" if self._stop_hung else "read"
                self._reporter.state(ReceiverState.INACTIVE, ending.reason)
                self._reporter.event(
                    ReceiverEventKind.STOPPED, f"stopped, everything {what} is registered", ending.reason
                )

    def _held(self) -> str:
        with self._changed:
            blocks, records = self._refused_blocks, self._refused_records
        if not blocks:
            return ""
        return f"; it held {blocks} blocks with {records} records that are stored and not registered by it"

    def _say(self, reason: str) -> None:
        with self._changed:
            self._reason = reason
            hindered = bool(self._hindrances)
        if not hindered:
            self._reporter.reason(reason)

    def _hinder(self, what: str, reason: str) -> None:
        with self._changed:
            self._hindrances[what] = reason
            # What fails again and again does not hide for how long it has done so.
            shown = self._hindrances.get(_PROGRESS, reason)
        self._reporter.reason(shown)

    def _clear(self, what: str) -> str:
        """A hindrance is gone: show the next one, or the reason that it hid; returns what it was."""
        if not self._hindrances:
            # For each block that is stored; only who stores blocks puts this one there.
            return ""
        with self._changed:
            was = self._hindrances.pop(what, "")
            now = self._hindrances.get(_PROGRESS) or next(iter(self._hindrances.values()), self._reason)
        if was:
            self._reporter.reason(now)
        return was

    def _move(self, to: SupervisorState) -> None:
        if to not in TRANSITIONS[self._state]:
            raise SupervisorStateError(f"{self._state} -> {to}: {SupervisorStateError.__doc__}")
        self._state = to


def progress_limit(settings: ReceiverSettings) -> float:
    """Seconds without progress, while a receiver holds data, that are too many."""
    # One write may take the block store's time-out, and so may the end of the segment before it; what has arrived may
    # wait for its block to be cut; a disk has no time-out, and a large block takes a slow one long.
    return max(
        settings.progress_timeout,
        2 * settings.block_store_timeout,
        3 * settings.block_interval,
        settings.max_block_bytes / _SLOWEST_DISK_BYTES,
    )


class _UnfailingReporter:
    """A reporter whose failures are logged: what is told must not decide what is done."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def state(self, state: ReceiverState, reason: str) -> None:
        self._told(partial(self._reporter.state, state, reason))

    def reason(self, reason: str) -> None:
        self._told(partial(self._reporter.reason, reason))

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        self._told(partial(self._reporter.event, kind, message, detail))

    @staticmethod
    def _told(word: Callable[[], None]) -> None:
        try:
            word()
        except Exception:  # noqa: BLE001  logged
            with suppress(Exception):
                _log.exception("a report failed")


def _describe(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}"


def _first_line(error: Exception) -> str:
    """What the server said, without its hints."""
    said = (error.detail if isinstance(error, DriverLogError) else None) or str(error)
    return said.partition("\n")[0]


def _sentence(restart: _Restart) -> str:
    return restart.message if restart.error is None else f"{restart.message} ({_describe(restart.error)})"
