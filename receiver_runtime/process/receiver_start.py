"""Start one receiver in a receiver process, step by step, up to a supervisor that is ready to run.

A start reads the receiver's declaration, claims the receiver, opens its write-ahead log, and salvages what an earlier
process has stored. It reads nothing from a source: everything that is read belongs to the claimed epoch.

If the receiver runs on another agent and is only offered to this one, the start takes it over when everything before
the claim is done, and waits until the process there has signed off: so the stream pauses only for the drain and the
claim.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.dead_letters.letter_replay import LetterReplay
from receiver_runtime.block_path.receiver_context import ReceiverContext
from receiver_runtime.block_path.recovery.salvage import salvage, store_location
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
from receiver_runtime.block_store.frames import frame
from receiver_runtime.block_store.frames.encryption import BlockKey, BlockKeys, FrameEncryptor
from receiver_runtime.block_store.roots import root_names
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.process.receiver_preparation import prepare_receiver
from receiver_runtime.process.store_wait import await_store, wait_for_store
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from receiver_runtime.reporting.receiver_status import ReceiverStatus
from receiver_runtime.reporting.replica_reports import ReplicaReports
from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.records.registry import parse_records
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.supervisor.receiver_supervisor import ReceiverSupervisor, progress_limit
from tracker_store.blocks.block_stores import attached_identities
from tracker_store.blocks.blocks import Claim, claim, newest_epoch
from tracker_store.connection.errors import ClaimLostError, NotAssignedError
from tracker_store.receivers.hand_overs import predecessor_holds, take_over
from tracker_store.receivers.processes import heartbeat
from tracker_store.receivers.receivers import get_receiver, report_event, set_receiver_state
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from receiver_runtime.process.shared_parts import SharedParts
    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.reporting.receiver_reporter import ReceiverReporter
    from receiver_runtime.watching.progress import Progress

_log = structlog.get_logger(__name__)

# How often to claim the receiver: other claims, or the blocks of a busy receiver, may overtake a claim.
_CLAIM_ATTEMPTS = 5
# Seconds to wait for the process before to drain and sign off; then the claim fences it. Its agent allows it 15 s.
_HAND_OVER_SECONDS = 20.0
# Seconds between two polls for that: they are part of the stream's pause.
_SIGN_OFF_POLL_SECONDS = 0.03


class ReceiverStart:
    """Start one receiver; see the module. Call ``run`` once, on the receiver's thread.

    Args:
        receiver_id: of the receiver.
        assignment: the only assignment under which this process may claim the receiver.
        driver_log: the receiver's own: a wait of it ends where the receiver is to end.
        progress: the receiver's.
    """

    def __init__(self, receiver_id: int, assignment: int, *, driver_log: DriverLog, progress: Progress) -> None:
        self._receiver_id = receiver_id
        self._assignment = assignment
        self._driver_log = driver_log
        self._progress = progress
        #: True from the receiver's turn to start on, except where it only waits: meanwhile it salvages stored data.
        self.holds_data = False
        #: How many seconds without progress, while it holds data, are too many.
        self.progress_limit = ReceiverSettings().progress_timeout
        #: Once the receiver is claimed.
        self.reporter: ReceiverReporter | None = None

    def run(self, shared: SharedParts) -> ReceiverSupervisor:
        """Return the supervisor, ready to run. Nothing was read from the source.

        Raises:
            NotAssignedError, NoSuchReceiverError, ReceiverFencedError: this process may not run it.
            GivenUpError: the receiver is to end.
            DriverLogError: for example another claim came first.
            ValueError, BlockStoreError: the declaration or a setting is wrong, and a restart does not change that.
        """
        self._shared = shared
        self.holds_data = True
        spec = self._driver_log.until_answered(
            "read the receiver's declaration", lambda c: get_receiver(c, self._receiver_id)
        )
        if self._assignment not in (spec.assignment, spec.offered_assignment):
            raise NotAssignedError(
                f"assignment {spec.assignment} is in force, this process was started for {self._assignment}"
            )
        source = parse_source(spec.source)
        records = None if spec.records is None else parse_records(spec.records)
        settings = ReceiverSettings.of_row(spec.settings)
        # Before the claim: without its key a receiver must store nothing.
        encryptor = None if shared.block_key is None else FrameEncryptor(BlockKey.read(shared.block_key))
        self.progress_limit = progress_limit(settings)
        with self._unwatched():
            # The receiver's own code may take long here, and the receiver holds no data yet.
            receiver, rows = prepare_receiver(
                source,
                records,
                receiver_id=self._receiver_id,
                stream_id=spec.stream_id,
                driver_log=self._driver_log,
            )
        source_rule = receiver.source_rule or source.source_rule
        if self._assignment != spec.assignment:
            self._await_store(settings)
            self._take_over()
        self._await_sign_off()
        claimed = self._claim()
        if not self._driver_log.until_answered(
            "say that the receiver is active",
            lambda c: set_receiver_state(
                c,
                receiver_id=self._receiver_id,
                assignment=self._assignment,
                state=ReceiverState.ACTIVE,
                reason=f"starting on {source.address}",
                process_id=shared.process_id,
            ),
        ):
            raise NotAssignedError("the driver log has it under another assignment, or not as placed")
        response = self._driver_log.until_answered(
            "read what the receiver is to do",
            lambda c: heartbeat(c, process_id=shared.process_id, receiver_ids=[self._receiver_id]),
        )[0]
        self.reporter = shared.reporter.for_receiver(claimed, assignment=self._assignment, process_id=shared.process_id)
        expected = self._expected_store()
        store = open_block_store(
            shared.block_store,
            min_replicas=settings.min_replicas,
            timeout=settings.block_store_timeout,
            listener=ReplicaReports(self.reporter, receiver_id=self._receiver_id),
            expected=expected,
        )
        with self._given_back():
            wait_for_store(store, driver_log=self._driver_log, reporter=self.reporter, progress=self._progress)
        location = store_location(shared.host, store, expected)
        claimed = salvage(
            self._driver_log,
            store,
            claimed=claimed,
            location=location,
            clock=shared.clock,
            progress=self._progress,
        )
        reporter = UnfailingReporter(self.reporter, receiver_id=self._receiver_id)
        status = ReceiverStatus(reporter)
        context = ReceiverContext(
            stream_id=spec.stream_id,
            stream_name=spec.stream_name,
            claim=claimed,
            assignment=self._assignment,
            settings=settings,
            schema=receiver.record_schema,
            rows=rows,
            registrar=shared.registrar,
            driver_log=ReceiverDriverLog(
                self._driver_log, claim=claimed, status=status, durability=settings.durability, store=location
            ),
            reporter=reporter,
            status=status,
            clock=shared.clock,
            progress=self._progress,
        )
        log = WriteAheadLog(
            store,
            context.driver_log,
            source_rule=frame.SourceRule[source_rule.name],
            registered_through=RegisteredThrough(claimed.sequence),
            settings=settings,
            clock=shared.clock,
            progress=self._progress,
        )
        handler = BlockHandler(log, rows.schema, compression=settings.compression, encryptor=encryptor)
        self.reporter.state(ReceiverState.ACTIVE, f"starting on {source.address}")
        self.reporter.event(ReceiverEventKind.STARTED, f"claimed on {shared.host}", f"epoch {claimed.epoch}")
        keys = [key for key in (shared.block_key, *shared.keys_for_reading) if key is not None]
        return ReceiverSupervisor(
            receiver,
            context,
            handler,
            desired_state=response.desired_state,
            rate_limit=response.rate_limit,
            threads=shared.block_threads,
            reading_loop=shared.reading_loop,
            letters=LetterReplay(store, BlockKeys(keys), source.refusals),
        )

    @contextlib.contextmanager
    def _given_back(self) -> Iterator[None]:
        """Release this receiver's turn to start, and take a turn again at the end of the block."""
        turn = self._shared.starting
        turn.release()
        try:
            yield
        finally:
            # Other receivers may salvage for long, and this one only waits for them.
            with self._unwatched():
                turn.acquire()

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        """Say that the receiver holds no data: what runs in this block may last without hanging."""
        self.holds_data = False
        try:
            yield
        finally:
            self.holds_data = True

    def _expected_store(self) -> dict[str, list[str]]:
        return self._driver_log.until_answered(
            "read which block store this host has",
            lambda c: attached_identities(c, root_names(self._shared.block_store), host=self._shared.host),
        )

    def _await_store(self, settings: ReceiverSettings) -> None:
        """Return once this host has its block store. The receiver runs elsewhere meanwhile, and must go on there.

        Raises GivenUpError if the receiver is to end: the leader withdraws an offer that is not taken in time.
        """
        shared = self._shared
        store = open_block_store(
            shared.block_store,
            min_replicas=settings.min_replicas,
            timeout=settings.block_store_timeout,
            expected=self._expected_store(),
        )

        def report_once(error: Exception, earlier: int) -> None:
            # The receiver still runs elsewhere, so its state says nothing about this.
            if not earlier:
                what = f"it can't move to {shared.host}: the block store is not there"
                self.report(ReceiverEventKind.ERROR, what, str(error))

        with self._given_back(), self._unwatched():
            await_store(store, driver_log=self._driver_log, on_missing=report_once)

    def _take_over(self) -> None:
        taken = self._driver_log.until_answered(
            "take the receiver over",
            lambda c: take_over(c, receiver_id=self._receiver_id, assignment=self._assignment),
        )
        if not taken:
            raise NotAssignedError(f"it is not offered under assignment {self._assignment} any more")

    def _await_sign_off(self) -> None:
        """Wait until the process before has registered what it holds, for a limited time."""
        clock = self._shared.clock
        deadline = clock.monotonic() + _HAND_OVER_SECONDS
        while self._driver_log.until_answered(
            "look for the process before",
            lambda c: predecessor_holds(c, receiver_id=self._receiver_id, assignment=self._assignment),
        ):
            if clock.monotonic() >= deadline:
                _log.warning("the process before has not signed off in time", receiver_id=self._receiver_id)
                return
            self._driver_log.pause(_SIGN_OFF_POLL_SECONDS)

    def _claim(self) -> Claim:
        """Claim the receiver. A claim whose answer was lost is not ours: claim again, with a newer epoch."""
        for attempt in range(_CLAIM_ATTEMPTS):
            try:
                return self._driver_log.until_answered(
                    "claim the receiver",
                    lambda c: claim(
                        c,
                        receiver_id=self._receiver_id,
                        seen_epoch=newest_epoch(c, self._receiver_id),
                        assignment=self._assignment,
                    ),
                )
            except ClaimLostError:
                if attempt + 1 == _CLAIM_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def report(self, kind: ReceiverEventKind, message: str, detail: str) -> None:
        """Report an event that no supervisor can report. For FAILED, set the receiver's state too."""

        def write(connection: sa.Connection) -> None:
            if kind is ReceiverEventKind.FAILED:
                set_receiver_state(
                    connection,
                    receiver_id=self._receiver_id,
                    assignment=self._assignment,
                    state=ReceiverState.FAILED,
                    reason=detail,
                )
            report_event(connection, receiver_id=self._receiver_id, epoch=0, kind=kind, message=message, detail=detail)

        try:
            self._driver_log.once(write)
        except Exception as error:  # noqa: BLE001  the receiver ends, reported or not
            with contextlib.suppress(Exception):
                _log.warning("could not report the receiver's end", receiver_id=self._receiver_id, error=str(error))
