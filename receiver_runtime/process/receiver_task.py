"""Run one receiver as a task of a receiver process, from its acceptance to its end.

A task starts the receiver (``receiver_start``) and runs its supervisor until that ends. It never ends another receiver,
and never ends the process: it reports its own end and leaves the rest to the process. It never starts or closes a part
that it shares with other receivers.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.process.receiver_start import ReceiverStart
from receiver_runtime.reporting.driver_log import DriverLog, GivenUpError
from receiver_runtime.reporting.receiver_status import PROGRESS
from receiver_runtime.supervisor.ending import Ending
from receiver_runtime.watching.exit_codes import ExitCode
from receiver_runtime.watching.progress import Progress
from tracker_store.blocks.segments import end_of_epoch
from tracker_store.connection.errors import DriverLogError, NotAssignedError, ReceiverFencedError
from tracker_store.receivers.hand_overs import sign_off_receiver
from tracker_store.receivers.receivers import NoSuchReceiverError, give_up_receiver, report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from receiver_runtime.process.shared_parts import SharedParts
    from receiver_runtime.reporting.source_lag import SourceLag
    from receiver_runtime.supervisor.receiver_supervisor import ReceiverSupervisor

_log = structlog.get_logger(__name__)

#: The message of the event, and of the log line, that reports a hanging receiver.
HANGING_MESSAGE = "the receiver hangs, its process ends and is replaced"
_REPLACED = "another process takes over and salvages what this one has stored"


class ReceiverTask:
    """Run one receiver on a thread of its own, which becomes the supervisor's control thread.

    The receiver's own code may create more threads. All other threads belong to the process.

    Args:
        engine: of the driver log.
        receiver_id: of the receiver.
        assignment: the only assignment under which this process may claim the receiver.
        on_ended: called once, on the task's thread, after everything of the receiver is written.
    """

    def __init__(
        self,
        engine: sa.Engine,
        receiver_id: int,
        assignment: int,
        *,
        on_ended: Callable[[ReceiverTask, Ending], None],
    ) -> None:
        self.receiver_id = receiver_id
        self.assignment = assignment
        self._on_ended = on_ended
        #: The watchdog reads it.
        self.progress = Progress()
        # Not shared: giving up one receiver's questions must not end those of another receiver.
        self._driver_log = DriverLog(engine, progress=self.progress, on_answer=self._on_answer)
        self._start = ReceiverStart(receiver_id, assignment, driver_log=self._driver_log, progress=self.progress)
        self._lock = threading.Lock()
        self._supervisor: ReceiverSupervisor | None = None
        self._wanted_end: Ending | None = None

    # -- the watchdog's side ----------------------------------------------------------------------------------------

    @property
    def progress_limit(self) -> float:
        """Return how many seconds without progress, while the receiver holds data, are too many."""
        supervisor = self._supervisor
        return self._start.progress_limit if supervisor is None else supervisor.progress_limit

    @property
    def holds_data(self) -> bool:
        """Return whether the receiver has something to salvage, store or register. Takes no lock."""
        supervisor = self._supervisor
        return self._start.holds_data if supervisor is None else supervisor.block_path.holds_data

    @property
    def hanging_reason(self) -> str:
        """Return, for people, why the receiver counts as hanging."""
        what = "starts" if self._supervisor is None else "holds data"
        return f"degraded: it {what}, and nothing was done or even failed for {self.progress_limit:g} s; {_REPLACED}"

    def on_failing(self, seconds: float, why: str) -> None:
        """Report that the receiver has made no progress for these seconds, and why."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.status.report_no_progress(seconds, why)
        else:
            # Only an unavailable driver log hinders a start, so an event can't be written there now.
            _log.warning("the receiver can't start", receiver_id=self.receiver_id, seconds=seconds, error=why)

    def on_moving(self) -> None:
        """Report that the receiver makes progress again."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.status.clear(PROGRESS)

    def give_up(self, connection: sa.Connection, process_id: int) -> None:
        """Give the receiver up in the driver log, with an event, so that another process may take it over."""
        reason = self.hanging_reason
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
                message=HANGING_MESSAGE,
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
            supervisor.lifecycle.end(ending)

    def queued(self) -> int | None:
        """Return how many blocks wait to be stored, or None before the supervisor exists. Any thread may call it."""
        with self._lock:
            supervisor = self._supervisor
        return None if supervisor is None else supervisor.block_path.generator.waiting_blocks

    def source_lag(self) -> SourceLag | None:
        """Return what the receiver's source has unread, or None before the supervisor exists. Any thread."""
        with self._lock:
            supervisor = self._supervisor
        return None if supervisor is None else supervisor.source_lag

    # -- the task's own thread ---------------------------------------------------------------------------------------

    def _run(self, shared: SharedParts) -> None:
        try:
            ending = self._run_receiver(shared)
        except BaseException as error:  # noqa: BLE001  any failure ends this receiver alone
            # A fault in the receiver's own code, or in Forebay's: the agent starts the receiver again after a pause.
            ending = Ending(ExitCode.FAILED, f"{type(error).__name__}: {error}", drained=False)
            self._start.report(
                ReceiverEventKind.ERROR, "the receiver ended by an error, starting it again", ending.reason
            )
            with contextlib.suppress(Exception):
                _log.error("the receiver ended by an error", receiver_id=self.receiver_id, exc_info=error)
        try:
            # Detach only here, where everything of the receiver is written.
            shared.registrar.detach(self.receiver_id)
            if self._start.reporter is not None:
                shared.reporter.detach(self._start.reporter)
        finally:
            # Without this call the process would wait for this receiver for ever.
            self._on_ended(self, ending)

    def _run_receiver(self, shared: SharedParts) -> Ending:
        try:
            with shared.starting:
                supervisor = self._start.run(shared)
            with self._lock:
                if self._wanted_end is not None:
                    # The ending came between two questions. Nothing was read from the source.
                    return self._wanted_end
                self._supervisor = supervisor
        except GivenUpError as error:
            return self._wanted_end or Ending(ExitCode.STOPPED, str(error), drained=True)
        except (NotAssignedError, NoSuchReceiverError, ReceiverFencedError) as error:
            _log.warning("this receiver is not ours to run", receiver_id=self.receiver_id, error=str(error))
            return Ending(ExitCode.FENCED, str(error), drained=True)
        except DriverLogError as error:
            # For example another claim came first: the agent starts the receiver again after a pause.
            _log.error("the receiver could not be claimed", receiver_id=self.receiver_id, error=str(error))
            self._start.report(ReceiverEventKind.ERROR, "the receiver could not be claimed, trying again", str(error))
            return Ending(ExitCode.FAILED, str(error), drained=True)
        except (ValueError, BlockStoreError) as error:
            # The declaration or a setting is wrong, and a restart does not change that.
            _log.error("the receiver could not start", receiver_id=self.receiver_id, error=str(error))
            self._start.report(ReceiverEventKind.FAILED, "the receiver could not start", str(error))
            return Ending(ExitCode.FAILED, str(error), drained=True)
        ending = supervisor.run()
        if not supervisor.stop_hung:
            _sign_off(self, self._driver_log, shared.process_id)
        if ending.exit_code is ExitCode.FENCED:
            _report_lost_commits(self.receiver_id, supervisor, self._driver_log, self._start)
        return ending


def _sign_off(task: ReceiverTask, driver_log: DriverLog, process_id: int) -> None:
    """Let the successor begin at once, if there is one: this process may live on, for other receivers."""
    try:
        driver_log.once(
            lambda c: sign_off_receiver(
                c, receiver_id=task.receiver_id, assignment=task.assignment, process_id=process_id
            )
        )
    except DriverLogError as error:
        # The successor waits until this process has ended, or its time is over.
        _log.warning("could not sign the receiver off", receiver_id=task.receiver_id, error=str(error))


def _report_lost_commits(
    receiver_id: int, supervisor: ReceiverSupervisor, driver_log: DriverLog, start: ReceiverStart
) -> None:
    """Report acknowledged blocks that the driver log lacks, where another epoch went on without them."""
    epoch = supervisor.epoch
    try:
        end = driver_log.once(lambda c: end_of_epoch(c, receiver_id=receiver_id, epoch=epoch))
    except DriverLogError as error:
        _log.warning("could not compare with the driver log", receiver_id=receiver_id, error=str(error))
        return
    lost = supervisor.block_path.writer.acknowledged.describe_after(end.sequence)
    if lost is not None:
        start.report(
            ReceiverEventKind.ERROR,
            "the driver log lacks blocks that it had acknowledged, and another process has gone on without them",
            f"epoch {epoch}: {lost}; its SALVAGED event says which of them are registered again, their "
            "files stay for an hour at least, and `forebay db check --against-store` lists what no row knows; "
            "see docs/runbooks/postgres-failover.md",
        )
