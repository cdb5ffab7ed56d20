"""Execute batch runs one after another in a process with the code loaded and Spark started: the batch driver.

It claims runs that the launcher has handed to its code location, one at a time, and executes them in the main thread
(the only one that interrupts reach). It runs each as Dagster's own run process would: the same events, the same compute
logs. It decides nothing about batches: a run claims its attempt, or ends.

Guarantees:

- A run is in at most one driver.
- A run that a driver has taken ends in Dagster with its own result, or as failed if the driver could not run it.
  Otherwise the driver's process has ended, which the agent reports at once and the tracker after its limit.
- A driver that stops taking runs first finishes those handed to it, unless there is another driver, the whole system
  stops, or its agent was killed: then the next driver takes them, or they are given up after a minute.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING

import dagster as dg
import structlog

from orchestration.batches.attempt_outputs import running_outputs
from orchestration.run_launcher.cancellation import Cancellation
from orchestration.run_launcher.dagster_internals import (
    EngineEventData,
    capture_interrupts,
    core_execute_run,
    pop_captured_interrupt,
    recon_job_from_origin,
)
from orchestration.run_launcher.driver_start import CODE_MODULE
from orchestration.run_launcher.driver_state import DriverState, DriverStates
from orchestration.run_launcher.loaded_code import LoadedCode
from orchestration.run_launcher.recycling import Recycling
from orchestration.run_launcher.seen_signals import SeenSignals
from orchestration.spark.session.warm_up import warm_up
from tracker_store.batches.run_queue import (
    LEFT,
    QUEUED_CHANNEL,
    Notifications,
    claim_run,
    claimed_run,
    finish_run,
    has_ready_driver,
    has_waiting_run,
)
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.host.code_in_force import loaded_copy
from tracker_store.long_texts import shortened
from tracker_store.schema.states import BatchDriverState

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    import sqlalchemy as sa
    from dagster._core.definitions.reconstruct import ReconstructableJob
    from dagster._core.origin import JobPythonOrigin

    from orchestration.declarations.settings import Settings
    from orchestration.run_launcher.driver_registration import DriverRegistration
    from orchestration.run_launcher.driver_start import Started

# Seconds between looks for runs: a notification may be lost with its connection.
POLL_SECONDS = 1.0
# Seconds between checks of memory and code; they are too slow to do before each run.
RECYCLE_POLL_SECONDS = 2.0
# Pool settings of Dagster's webserver: without a pool each statement opens a connection.
_STATEMENT_TIMEOUT_MS = 15_000
_POOL_RECYCLE_SECONDS = 3_600
_POOL_OVERFLOW = 5

log = structlog.get_logger(__name__)


class BatchDriver:
    """One driver. `run` must be called in the main thread, and returns when the driver has drained."""

    def __init__(
        self,
        settings: Settings,
        *,
        started: Started,
        registration: DriverRegistration,
        drain: threading.Event,
        is_left: threading.Event,
        on_ready: Callable[[], object],
        ask_for_successor: Callable[[str], bool],
    ) -> None:
        """Prepare a driver.

        Args:
            settings: the settings of this installation.
            started: the started Spark session; stopped by `run`.
            registration: the registration of this process; ended by `run`.
            drain: set by the caller: the driver takes no more runs, and ends.
            is_left: set by the caller, before `drain`: its agent is gone without having told it to end.
            on_ready: called once it takes runs.
            ask_for_successor: called with the reason when it should be replaced; returns False if no successor is
                started first: then it ends, and is started again.
        """
        self._settings = settings
        self._registration = registration
        self._location = location = registration.location
        self._drain = drain
        self._is_left = is_left
        self._on_ready = on_ready
        self._ask_for_successor = ask_for_successor
        self._states = DriverStates()
        self._engine: sa.Engine = create_engine(
            settings.require_database_url(), application_name=f"forebay batch driver {location}", pool_size=3
        )
        self._session = started.session
        self._pipelines = started.pipelines
        self._jobs: dict[str, tuple[JobPythonOrigin, ReconstructableJob]] = {}
        # Why it must not take another run; None while it may.
        self._spoilt: str | None = None
        # Why it should be replaced, as reported to its agent.
        self._to_be_replaced: str | None = None
        self._next_poll = time.monotonic()
        self._signals = SeenSignals()
        # An answer was lost: in the driver log this driver may already have a run.
        self._is_unsure = False
        # Runs whose end could not be reported to Dagster yet, with the error that ended them.
        self._unsaid: dict[str, BaseException] = {}

    def run(self) -> None:
        """Take runs until the driver is told to drain or should be replaced, then end."""
        registration = self._registration
        with (
            dg.DagsterInstance.get() as instance,
            # Signals are noticed between two runs; during a run, Dagster lets them end the run.
            capture_interrupts(),
            self._signals,
            registration,
        ):
            instance.optimize_for_webserver(_STATEMENT_TIMEOUT_MS, _POOL_RECYCLE_SECONDS, _POOL_OVERFLOW)
            # Load the definitions now, so that an error in them appears here and not at the first run.
            importlib.import_module(CODE_MODULE)
            if not self._is_waited_for():
                warm_up(self._session.session, self._settings, self._pipelines)
            recycling = Recycling(
                LoadedCode(self._settings.module),
                max_runs=self._settings.batch_driver_max_runs,
                max_memory_mb=self._settings.batch_driver_max_memory_mb,
            )
            cancellation = Cancellation(self._engine, cancel_jobs=self._session.cancel, on_cancel=self._cancelling)
            registration.note(BatchDriverState.READY)
            self._states.move(DriverState.IDLE)
            self._on_ready()
            log.info(
                "batch driver ready",
                process_id=registration.process_id,
                location=self._location,
            )
            why = self._take_runs(instance, registration.process_id, recycling, cancellation)
            log.info("batch driver drains", why=why, runs=recycling.runs)
            self._states.move(DriverState.DRAINING, why)
            if self._is_left.is_set() or not _has_code_in_force():
                # Another driver starts, by another agent or with other code, and takes the runs that are handed over.
                registration.end(LEFT)
            else:
                registration.note(BatchDriverState.DRAINING)
                self._take_remaining(instance, registration.process_id, cancellation)
            self._states.move(DriverState.ENDED)
        self._session.stop()
        self._engine.dispose()

    def _is_waited_for(self) -> bool:
        """Return whether a run waits and no other driver is ready: then that run warms this driver up."""
        with connect(self._engine) as connection:
            return has_waiting_run(connection, location=self._location) and not has_ready_driver(
                connection, location=self._location
            )

    def _take_runs(
        self, instance: dg.DagsterInstance, process_id: int, recycling: Recycling, cancellation: Cancellation
    ) -> str:
        """Take runs until the driver is to end, and return why it ends."""
        notifications = Notifications(self._engine, [QUEUED_CHANNEL])
        outage = Outage("the batch driver")
        try:
            while (why := self._reason_to_end(recycling)) is None:
                try:
                    run_id = self._claim(process_id)
                    if run_id is None:
                        notifications.wait(POLL_SECONDS)
                except SURVIVED as error:
                    outage.failed(error)
                    self._drain.wait(POLL_SECONDS)
                    continue
                outage.answered()
                if run_id is not None:
                    self._execute(instance, run_id, process_id, cancellation)
                    recycling.runs += 1
        finally:
            notifications.close()
        return why

    def _claim(self, process_id: int) -> str | None:
        """Claim and return the next run; after a lost answer, first look for one that this driver already has."""
        with connect(self._engine) as connection:
            if self._is_unsure and (run_id := claimed_run(connection, process_id=process_id)) is not None:
                return run_id
            self._is_unsure = True
            run_id = claim_run(connection, process_id=process_id, location=self._location)
            self._is_unsure = False
            return run_id

    def _reason_to_end(self, recycling: Recycling) -> str | None:
        """Return why it takes no more runs, or None. A driver to be replaced goes on until its successor is ready."""
        if self._drain.is_set():
            return "it was asked to"
        if pop_captured_interrupt():
            return "a signal"
        if self._is_spoilt():
            # Until the successor is ready, runs wait for it or go to the delegate launcher.
            self._ask_for_successor(self._spoilt or "")
            return self._spoilt
        if self._to_be_replaced is None and time.monotonic() >= self._next_poll:
            self._next_poll = time.monotonic() + RECYCLE_POLL_SECONDS
            self._to_be_replaced = recycling.reason()
            if self._to_be_replaced is not None:
                log.info("batch driver should be replaced", why=self._to_be_replaced)
                if not self._ask_for_successor(self._to_be_replaced):
                    return self._to_be_replaced
        return None

    def _is_spoilt(self) -> bool:
        """Return whether it must not take another run: its code is not in force any more, or its JVM has ended."""
        if not _has_code_in_force():
            self._spoilt = self._spoilt or "another version of the code is in force"
        if self._spoilt is None:
            self._spoilt = self._session.ended()
        return self._spoilt is not None

    def _take_remaining(self, instance: dg.DagsterInstance, process_id: int, cancellation: Cancellation) -> None:
        """Execute the runs that were handed over before the driver was DRAINING, if no other driver is ready."""
        while not self._is_spoilt() and not self._unsaid:
            try:
                with connect(self._engine) as connection:
                    if has_ready_driver(connection, location=self._location, other_than=process_id):
                        return
                run_id = self._claim(process_id)
            except SURVIVED as error:
                log.warning("can't look for runs that are left; another driver does", error=str(error))
                return
            if run_id is None:
                return
            self._execute(instance, run_id, process_id, cancellation)
            self._states.move(DriverState.DRAINING)

    def _execute(self, instance: dg.DagsterInstance, run_id: str, process_id: int, cancellation: Cancellation) -> None:
        """Execute a run. Afterwards its row is deleted, or it is claimed again until its end can be reported."""
        self._states.move(DriverState.RUNNING, run_id)
        error = self._unsaid.pop(run_id, None)
        with cancellation.watching(run_id):
            try:
                if error is None:
                    self._execute_in_dagster(instance, run_id, process_id)
            except BaseException as raised:  # noqa: BLE001  Dagster's interrupt is no Exception; all must be caught
                log.warning("the run ended with an error", run_id=run_id, error=shortened(repr(raised), 500))
                error = raised
            is_said = error is None or self._say_end(instance, run_id, error)
        pop_captured_interrupt()
        has_signal = self._signals.came()
        if cancellation.was_interrupted:
            self._spoilt = f"run {run_id} had to be interrupted: its connection to Spark may be out of step"
        elif has_signal:
            # Dagster ends the run because of it; this process must drain too, as after a signal between two runs.
            self._spoilt = f"a signal came during run {run_id}: its connection to Spark may be out of step"
            self._drain.set()
        elif left := running_outputs():
            # Its attempt is over. A batch beside it would share the session and the memory with it.
            self._spoilt = f"outputs of run {run_id} do not end: {', '.join(left)}"
        self._clear_up()
        self._states.move(DriverState.IDLE, run_id)
        if is_said:
            self._finish(run_id, process_id)

    def _say_end(self, instance: dg.DagsterInstance, run_id: str, error: BaseException) -> bool:
        """Report a run's end to Dagster; return whether that worked. If not, the run stays with this driver."""
        try:
            _end_run(instance, run_id, error)
        except Exception as failure:  # noqa: BLE001  an unavailable storage may raise anything
            said = shortened(str(failure), 500)
            log.warning("can't report the run's end to Dagster, trying again", run_id=run_id, error=said)
            self._unsaid[run_id] = error
            self._is_unsure = True
            self._drain.wait(POLL_SECONDS)
            return False
        return True

    def _finish(self, run_id: str, process_id: int) -> None:
        try:
            with connect(self._engine) as connection:
                finish_run(connection, run_id=run_id, process_id=process_id)
        except SURVIVED as error:
            log.warning("can't delete the run's row, trying again", run_id=run_id, error=str(error))
            self._is_unsure = True

    def _execute_in_dagster(self, instance: dg.DagsterInstance, run_id: str, process_id: int) -> None:
        run = instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            log.info("the run is over already", run_id=run_id)
            return
        if run.status is dg.DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, message="Cancelled before the batch driver had begun with it.")
            return
        if run.job_code_origin is None:
            raise RuntimeError(f"run {run_id} names no code to load")
        instance.report_engine_event(
            f"Batch driver (process {process_id}, pid {os.getpid()} on {self._registration.host}) took the run.",
            run,
            EngineEventData.in_process(os.getpid()),
        )
        job = self._job(run.job_code_origin)
        self._session.begin(run_id)
        for _ in core_execute_run(job, run, instance, inject_env_vars=False):
            pass

    def _job(self, origin: JobPythonOrigin) -> ReconstructableJob:
        """Return the run's job, built only once because that costs more than a small batch."""
        known = self._jobs.get(origin.job_name)
        if known is None or known[0] != origin:
            known = self._jobs[origin.job_name] = (origin, recon_job_from_origin(origin))
        return known[1]

    def _clear_up(self) -> None:
        if self._spoilt is not None:
            return
        try:
            self._session.reset()
        except Exception as error:  # noqa: BLE001  after any error the session can't be trusted
            self._spoilt = shortened(f"its Spark session can't be reset: {error!r}", 500)

    def _cancelling(self, run_id: str) -> None:
        self._states.move(DriverState.CANCELLING, run_id)


def _end_run(instance: dg.DagsterInstance, run_id: str, error: BaseException) -> None:
    """Record the run's end if Dagster has not done so itself: a run must not stay STARTED for ever."""
    run = instance.get_run_by_id(run_id)
    if run is None or run.is_finished:
        return
    if run.status is dg.DagsterRunStatus.CANCELING:
        instance.report_run_canceled(run)
    else:
        instance.report_run_failed(run, f"The batch driver could not run it: {error!r}")


def _has_code_in_force() -> bool:
    """Return whether the next run may use the code that this process has; the files' changes: ``LoadedCode``."""
    copy = loaded_copy()
    return copy is None or copy.is_in_force()
