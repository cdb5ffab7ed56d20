"""Run the life of one receiver in a receiver process, from its acceptance to its end.

A life reads the receiver's declaration, claims the receiver, opens its write-ahead log, salvages what an earlier
process has stored, and runs the supervisor until that ends. It reads nothing from a source before the driver log has
answered the claim, because everything that is read belongs to the claimed epoch.

If the receiver runs on another agent and is only offered to this one, the life takes it over when everything before the
claim is done, and waits until the process there has signed off: the stream pauses for the drain and the claim alone.

A life never ends another receiver, and never ends the process: it reports its own end and leaves the rest to the
process. It never starts or closes a part that it shares with other receivers.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.registered_through import RegisteredThrough
from receiver_runtime.block_path.salvage import salvage, store_location
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
from receiver_runtime.block_store.frames import frame
from receiver_runtime.block_store.frames.encryption import BlockKey, FrameEncryptor
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import root_names
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.process.receiver_start import prepare_receiver
from receiver_runtime.process.store_wait import await_store, wait_for_store
from receiver_runtime.reporting.driver_log import DriverLog, GivenUpError, ReceiverDriverLog
from receiver_runtime.reporting.replica_reports import ReplicaReports
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.supervisor.receiver_supervisor import Ending, ReceiverSupervisor, progress_limit
from receiver_runtime.watching.exit_codes import ExitCode
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.block_stores import attached_identities
from tracker_store.blocks.blocks import Claim, claim, newest_epoch
from tracker_store.blocks.segments import end_of_epoch
from tracker_store.connection.errors import (
    ClaimBusyError,
    ClaimLostError,
    DriverLogError,
    NotAssignedError,
    ReceiverFencedError,
)
from tracker_store.receivers.hand_overs import predecessor_holds, sign_off_receiver, take_over
from tracker_store.receivers.processes import heartbeat
from tracker_store.receivers.receivers import (
    NoSuchReceiverError,
    get_receiver,
    give_up_receiver,
    report_event,
    set_receiver_state,
)
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from receiver_runtime.block_path.block_threads import BlockThreads
    from receiver_runtime.block_path.registrar import PostgresBlockLog, Registrar
    from receiver_runtime.block_store.frames.encryption import KeyReference
    from receiver_runtime.reporting.status_reporter import ReceiverReporter, StatusReporter
    from receiver_runtime.supervisor.reading_loop import ReadingLoop
    from receiver_runtime.watching.clock import Clock

_log = structlog.get_logger(__name__)

T = TypeVar("T")

# How often to claim the receiver: other claims, or the blocks of a busy receiver, may overtake a claim.
_CLAIM_ATTEMPTS = 5
# Seconds to wait for the process before to drain and sign off; then the claim fences it. Its agent allows it 15 s.
_HAND_OVER_SECONDS = 20.0
# Seconds between two looks for that: they are part of the stream's pause.
_SIGN_OFF_LOOK_SECONDS = 0.03

#: The message of the event, and of the log line, that reports a stuck receiver.
STUCK_MESSAGE = "the receiver is stuck, its process ends and is replaced"
_REPLACED = "another process takes over and salvages what this one has stored"


class _NotOursError(Exception):
    """This process may not run the receiver."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Hold the parts that the receivers of a process share. The process starts and closes them."""

    process_id: int
    block_store: str
    #: The key that encrypts blocks; None: they are not encrypted.
    block_key: KeyReference | None
    host: str
    clock: Clock
    block_log: PostgresBlockLog
    registrar: Registrar
    reporter: StatusReporter
    block_threads: BlockThreads
    reading_loop: ReadingLoop
    #: Limits how many receivers start at the same time.
    starting: threading.BoundedSemaphore


class ReceiverLife:
    """Run one receiver on a thread of its own, which becomes the supervisor's control thread.

    The receiver's own code may create more threads. All other threads belong to the process.

    Args:
        engine: of the driver log.
        receiver_id: of the receiver.
        assignment: the only assignment under which this process may claim the receiver.
        on_ended: called once, on the life's thread, after everything of the receiver is written.
    """

    def __init__(
        self,
        engine: sa.Engine,
        receiver_id: int,
        assignment: int,
        *,
        on_ended: Callable[[ReceiverLife, Ending], None],
    ) -> None:
        self.receiver_id = receiver_id
        self.assignment = assignment
        self._on_ended = on_ended
        #: The watchdog reads it.
        self.progress = Progress()
        # Not shared: giving up one receiver's questions must not end those of another receiver.
        self._driver_log = DriverLog(engine, progress=self.progress, on_answer=self._on_answer)
        # True from the receiver's turn to start until the supervisor runs: meanwhile it salvages stored data.
        self._starting = False
        self._limit = ReceiverSettings().progress_timeout
        self._lock = threading.Lock()
        self._supervisor: ReceiverSupervisor | None = None
        self._reporter: ReceiverReporter | None = None
        self._wanted_end: Ending | None = None

    # -- the watchdog's side (Watched) -------------------------------------------------------------------------------

    @property
    def progress_limit(self) -> float:
        """Return how many seconds without progress, while the receiver holds data, are too many."""
        supervisor = self._supervisor
        return self._limit if supervisor is None else supervisor.progress_limit

    @property
    def holds_data(self) -> bool:
        """Return whether the receiver has something to salvage, store or register. Takes no lock."""
        supervisor = self._supervisor
        return self._starting if supervisor is None else supervisor.block_path.holds_data

    @property
    def stuck_reason(self) -> str:
        """Return, for people, why the receiver counts as stuck."""
        what = "starts" if self._supervisor is None else "holds data"
        return f"stuck: it {what}, and nothing was done or even failed for {self.progress_limit:g} s; {_REPLACED}"

    def on_hindered(self, seconds: float, why: str) -> None:
        """Report that the receiver has made no progress for these seconds, and why."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.report_no_progress(seconds, why)
        else:
            # Only an unavailable driver log hinders a start, so an event can't be written there now.
            _log.warning("the receiver can't start", receiver_id=self.receiver_id, seconds=seconds, error=why)

    def on_moving(self) -> None:
        """Report that the receiver makes progress again."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.report_progress()

    def give_up(self, connection: sa.Connection, process_id: int) -> None:
        """Give the receiver up in the driver log, with an event, so that another process may take it over."""
        reason = self.stuck_reason
        if give_up_receiver(
            connection,
            receiver_id=self.receiver_id,
            assignment=self.assignment,
            process_id=process_id,
            reason=reason,
        ):
            report_event(
                connection,
                receiver_id=self.receiver_id,
                epoch=0,
                kind=ReceiverEventKind.ERROR,
                message=STUCK_MESSAGE,
                detail=reason,
            )

    def _on_answer(self) -> None:
        if self._supervisor is None:
            self.progress.made()

    # -- any thread --------------------------------------------------------------------------------------------------

    def start(self, shared: SharedParts) -> None:
        """Start the thread; returns at once."""
        threading.Thread(target=self._run, args=(shared,), name=f"receiver {self.receiver_id}", daemon=True).start()

    def end(self, ending: Ending) -> None:
        """Ask for this ending; returns at once. The first ending counts. Any thread may call it at any time."""
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None:
                # The start has read nothing from the source, and the ending keeps it from doing so.
                self._wanted_end = self._wanted_end or ending
                self._driver_log.give_up()
        if supervisor is not None:
            supervisor.end(ending)

    def queued(self) -> int | None:
        """Return how many blocks wait to be stored, or None before the supervisor exists. Any thread may call it."""
        with self._lock:
            supervisor = self._supervisor
        return None if supervisor is None else supervisor.block_path.generator.waiting_blocks

    # -- the life's own thread ---------------------------------------------------------------------------------------

    def _run(self, shared: SharedParts) -> None:
        try:
            ending = self._live(shared)
        except BaseException as error:  # noqa: BLE001  any failure ends this receiver alone
            # A fault in the receiver's own code, or in Forebay's: the agent starts the receiver again after a pause.
            ending = Ending(ExitCode.FAILED, f"{type(error).__name__}: {error}", drained=False)
            self._tell(ReceiverEventKind.ERROR, "the receiver ended by an error, starting it again", ending.reason)
            with contextlib.suppress(Exception):
                _log.error("the receiver ended by an error", receiver_id=self.receiver_id, exc_info=error)
        try:
            # Detach only here, where everything of the receiver is written.
            shared.registrar.detach(self.receiver_id)
            if self._reporter is not None:
                shared.reporter.detach(self._reporter)
        finally:
            # Without this call the process would wait for this receiver for ever.
            self._on_ended(self, ending)

    def _live(self, shared: SharedParts) -> Ending:
        try:
            with shared.starting:
                self._starting = True
                supervisor = self._start(shared)
        except GivenUpError as error:
            return self._wanted_end or Ending(ExitCode.STOPPED, str(error), drained=True)
        except (_NotOursError, NotAssignedError, NoSuchReceiverError, ReceiverFencedError) as error:
            _log.warning("this receiver is not ours to run", receiver_id=self.receiver_id, error=str(error))
            return Ending(ExitCode.FENCED, str(error), drained=True)
        except DriverLogError as error:
            # For example another claim came first: the agent starts the receiver again after a pause.
            _log.error("the receiver could not be claimed", receiver_id=self.receiver_id, error=str(error))
            self._tell(ReceiverEventKind.ERROR, "the receiver could not be claimed, trying again", str(error))
            return Ending(ExitCode.FAILED, str(error), drained=True)
        except (ValueError, BlockStoreError) as error:
            # The declaration or a setting is wrong, and a restart does not change that.
            _log.error("the receiver could not start", receiver_id=self.receiver_id, error=str(error))
            self._tell(ReceiverEventKind.FAILED, "the receiver could not start", str(error))
            return Ending(ExitCode.FAILED, str(error), drained=True)
        ending = supervisor.run()
        if not supervisor.stop_hung:
            self._sign_off(shared)
        if ending.exit_code is ExitCode.FENCED:
            self._tell_lost_commits(supervisor)
        return ending

    def _sign_off(self, shared: SharedParts) -> None:
        """Let the successor begin at once, if there is one: this process may live on, for other receivers."""
        try:
            self._driver_log.once(
                lambda c: sign_off_receiver(
                    c, receiver_id=self.receiver_id, assignment=self.assignment, process_id=shared.process_id
                )
            )
        except DriverLogError as error:
            # The successor waits until this process has ended, or its time is over.
            _log.warning("could not sign the receiver off", receiver_id=self.receiver_id, error=str(error))

    def _tell_lost_commits(self, supervisor: ReceiverSupervisor) -> None:
        """Report acknowledged blocks that the driver log lacks, where another epoch went on without them."""
        try:
            end = self._driver_log.once(lambda c: end_of_epoch(c, receiver_id=self.receiver_id, epoch=supervisor.epoch))
        except DriverLogError as error:
            _log.warning("could not compare with the driver log", receiver_id=self.receiver_id, error=str(error))
            return
        lost = supervisor.block_path.acknowledged.describe_after(end.sequence)
        if lost is not None:
            self._tell(
                ReceiverEventKind.ERROR,
                "the driver log lacks blocks that it had acknowledged, and another process has gone on without them",
                f"epoch {supervisor.epoch}: {lost}; its SALVAGED event says which of them are registered again, their "
                "files stay for an hour at least, and `forebay db check --against-store` lists what no row knows; "
                "see docs/runbooks/postgres-failover.md",
            )

    # -- the start, step by step -------------------------------------------------------------------------------------

    def _start(self, shared: SharedParts) -> ReceiverSupervisor:
        spec = self._ask("read the receiver's declaration", lambda c: get_receiver(c, self.receiver_id))
        if self.assignment not in (spec.assignment, spec.offered_assignment):
            raise _NotOursError(
                f"assignment {spec.assignment} is in force, this process was started for {self.assignment}"
            )
        source = parse_source(spec.source)
        settings = ReceiverSettings.of_row(spec.settings)
        # Before the claim: without its key a receiver must store nothing.
        encryptor = None if shared.block_key is None else FrameEncryptor(BlockKey.read(shared.block_key))
        self._limit = progress_limit(settings)
        with self._unwatched():
            # The receiver's own code may take long here, and the receiver holds no data yet.
            receiver = prepare_receiver(source, receiver_id=self.receiver_id, ask=self._ask)
        source_rule = receiver.source_rule or source.source_rule
        if self.assignment != spec.assignment:
            self._await_store(shared, settings)
            self._take_over()
        self._await_sign_off(shared.clock)
        claimed = self._claim()
        if not self._ask(
            "say that the receiver is active",
            lambda c: set_receiver_state(
                c,
                receiver_id=self.receiver_id,
                assignment=self.assignment,
                state=ReceiverState.ACTIVE,
                reason=f"starting on {source.address}",
                process_id=shared.process_id,
            ),
        ):
            raise _NotOursError("the driver log has it under another assignment, or not as placed")
        steering = self._ask(
            "read what the receiver is to do",
            lambda c: heartbeat(c, process_id=shared.process_id, receiver_ids=[self.receiver_id]),
        )[0]
        self._reporter = shared.reporter.for_receiver(claimed, assignment=self.assignment, process_id=shared.process_id)
        expected = self._expected_store(shared)
        store = open_block_store(
            shared.block_store,
            min_replicas=settings.min_replicas,
            timeout=settings.block_store_timeout,
            listener=ReplicaReports(self._reporter, receiver_id=self.receiver_id),
            expected=expected,
        )
        with self._given_back(shared.starting):
            wait_for_store(store, driver_log=self._driver_log, reporter=self._reporter, progress=self.progress)
        location = store_location(shared.host, store, expected)
        claimed = salvage(
            self._driver_log,
            store,
            claimed=claimed,
            location=location,
            clock=shared.clock,
            progress=self.progress,
        )
        rows = ReceiverDriverLog(
            self._driver_log,
            claim=claimed,
            durability=settings.durability,
            store=location,
        )
        log = WriteAheadLog(
            store,
            rows,
            claim=claimed,
            source_rule=frame.SourceRule[source_rule.name],
            registered_through=RegisteredThrough(claimed.sequence),
            segment_interval=settings.segment_interval,
            max_segment_bytes=settings.max_segment_bytes,
            max_failures=settings.write_ahead_log_max_failures,
            durable=settings.durability == "durable",
            clock=shared.clock,
            progress=self.progress,
        )
        handler = BlockHandler(log, receiver.record_schema, compression=settings.compression, encryptor=encryptor)
        self._reporter.state(ReceiverState.ACTIVE, f"starting on {source.address}")
        self._reporter.event(ReceiverEventKind.STARTED, f"claimed on {shared.host}", f"epoch {claimed.epoch}")
        supervisor = ReceiverSupervisor(
            receiver,
            stream_id=spec.stream_id,
            stream_name=spec.stream_name,
            claim=claimed,
            assignment=self.assignment,
            settings=settings,
            handler=handler,
            registrar=shared.registrar,
            driver_log=rows,
            positions=rows,
            keys=rows,
            reporter=self._reporter,
            desired_state=steering.desired_state,
            rate_limit=steering.rate_limit,
            threads=shared.block_threads,
            reading_loop=shared.reading_loop,
            clock=shared.clock,
            progress=self.progress,
        )
        rows.tell(supervisor.block_path)
        with self._lock:
            if self._wanted_end is not None:
                # The ending came between two questions. Nothing was read from the source.
                raise GivenUpError(self._wanted_end.reason)
            self._supervisor = supervisor
        return supervisor

    @contextlib.contextmanager
    def _given_back(self, turn: threading.Semaphore) -> Iterator[None]:
        """Release this receiver's turn to start, and take a turn again at the end of the block."""
        turn.release()
        try:
            yield
        finally:
            # Other receivers may salvage for long, and this one only waits for them.
            with self._unwatched():
                turn.acquire()

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Tell the watchdog that the receiver holds no data: what runs in this block may last without being stuck."""
        self._starting = False
        try:
            yield
        finally:
            self._starting = True

    def _expected_store(self, shared: SharedParts) -> dict[str, list[str]]:
        return self._ask(
            "read which block store this host has",
            lambda c: attached_identities(c, root_names(shared.block_store), host=shared.host),
        )

    def _await_store(self, shared: SharedParts, settings: ReceiverSettings) -> None:
        """Return once this host has its block store. The receiver runs elsewhere meanwhile, and must go on there.

        Raises GivenUpError if the receiver is to end: the leader withdraws an offer that is not taken in time.
        """
        store = open_block_store(
            shared.block_store,
            min_replicas=settings.min_replicas,
            timeout=settings.block_store_timeout,
            expected=self._expected_store(shared),
        )

        def tell_once(error: Exception, earlier: int) -> None:
            # The receiver still runs elsewhere, so its state says nothing about this.
            if not earlier:
                what = f"it can't move to {shared.host}: the block store is not there"
                self._tell(ReceiverEventKind.ERROR, what, str(error))

        with self._given_back(shared.starting), self._unwatched():
            await_store(store, driver_log=self._driver_log, on_missing=tell_once)

    def _take_over(self) -> None:
        taken = self._ask(
            "take the receiver over",
            lambda c: take_over(c, receiver_id=self.receiver_id, assignment=self.assignment),
        )
        if not taken:
            raise _NotOursError(f"it is not offered under assignment {self.assignment} any more")

    def _await_sign_off(self, clock: Clock) -> None:
        """Wait until the process before has registered what it holds, for a limited time."""
        deadline = clock.monotonic() + _HAND_OVER_SECONDS
        while self._ask(
            "look for the process before",
            lambda c: predecessor_holds(c, receiver_id=self.receiver_id, assignment=self.assignment),
        ):
            if clock.monotonic() >= deadline:
                _log.warning("the process before has not signed off in time", receiver_id=self.receiver_id)
                return
            self._driver_log.pause(_SIGN_OFF_LOOK_SECONDS)

    def _claim(self) -> Claim:
        """Claim the receiver. A claim whose answer was lost is not ours: claim again, with a newer epoch."""
        for attempt in range(_CLAIM_ATTEMPTS):
            try:
                return self._ask(
                    "claim the receiver",
                    lambda c: claim(
                        c,
                        receiver_id=self.receiver_id,
                        seen_epoch=newest_epoch(c, self.receiver_id),
                        assignment=self.assignment,
                    ),
                )
            except (ClaimLostError, ClaimBusyError):
                if attempt + 1 == _CLAIM_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _tell(self, kind: ReceiverEventKind, message: str, detail: str) -> None:
        """Report an event that no supervisor can report. For FAILED, set the receiver's state too."""

        def tell(connection: sa.Connection) -> None:
            if kind is ReceiverEventKind.FAILED:
                set_receiver_state(
                    connection,
                    receiver_id=self.receiver_id,
                    assignment=self.assignment,
                    state=ReceiverState.FAILED,
                    reason=detail,
                )
            report_event(connection, receiver_id=self.receiver_id, epoch=0, kind=kind, message=message, detail=detail)

        try:
            self._driver_log.once(tell)
        except Exception as error:  # noqa: BLE001  the receiver ends, reported or not
            with contextlib.suppress(Exception):
                _log.warning("could not report the receiver's end", receiver_id=self.receiver_id, error=str(error))

    def _ask(self, what: str, statement: Callable[[sa.Connection], T]) -> T:
        return self._driver_log.until_answered(what, statement)
