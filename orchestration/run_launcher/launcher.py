"""Launch the runs of a Forebay instance: batch runs go to the batch drivers, every other run to a delegate launcher.

Add to the instance's ``dagster.yaml``::

    run_launcher:
      module: orchestration.run_launcher.launcher
      class: BatchRunLauncher
      config:
        delegate: {module: dagster_k8s, class: K8sRunLauncher, config: {...}}   # unless named: code_server_runs

A batch run is recognised by its tags. It goes to a driver of its code location through a row of
``run_queue``. If no driver takes runs, or the driver log can't be reached, it goes to the delegate, where it runs the
same way but starts later. The decision is made once; afterwards the row shows where the run went.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import dagster as dg
import structlog
from dagster._core.launcher.base import CheckRunHealthResult, LaunchRunContext, RunLauncher, WorkerStatus
from dagster._serdes import ConfigurableClass, ConfigurableClassData

from orchestration.batches.lost_runs import why_lost
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.batches.run_queue import enqueue_run, request_cancel, run_worker, withdraw_run
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError, DriverLogUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import sqlalchemy as sa

DEFAULT_DELEGATE = {
    "module": "orchestration.run_launcher.code_server_runs",
    "class": "CodeServerRunLauncher",
    "config": {},
}

# Completes a delegate that is named in part.
_DAGSTERS_DEFAULT = {"module": "dagster", "class": "DefaultRunLauncher", "config": {}}

WHAT_CANCELLING_DOES = (
    "Somebody cancels this run. That ends this attempt alone: the batch keeps its blocks, and is tried again under the "
    "next attempt's number, within seconds. It counts as a lost attempt, not as a failed one: after max_lost_attempts "
    "of them the batch is QUARANTINED, and can be replayed or discarded."
)

# Tags that the batch sensor sets; a run with both is one batch of one pipeline.
_BATCH_RUN_TAGS = ("forebay/pipeline", "forebay/batch_time")

log = structlog.get_logger(__name__)


def is_batch_run(tags: Mapping[str, str]) -> bool:
    """Return whether the tags are those of a run of one batch."""
    return all(tag in tags for tag in _BATCH_RUN_TAGS)


def location_of(run: dg.DagsterRun) -> str | None:
    """Return the name of the run's code location; None if it has none (a job in a test)."""
    return None if run.remote_job_origin is None else run.remote_job_origin.location_name


class BatchRunLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """Launch runs; see the module. Used by Dagster's daemon, webserver and code servers, from any of their threads."""

    def __init__(
        self,
        delegate: Mapping[str, Any] | None = None,
        database_url: str | None = None,
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Prepare the launcher; it connects at the first batch run.

        Args:
            delegate: module, class and config of the launcher for everything else.
            database_url: the driver log; FOREBAY_DATABASE_URL unless given.
            inst_data: Dagster's own data, from which other processes rebuild the launcher.
        """
        self._inst_data = inst_data
        self._database_url = database_url
        self._delegate = _load({**_DAGSTERS_DEFAULT, **(delegate or DEFAULT_DELEGATE)})
        self._lock = threading.Lock()
        self._pool: sa.Engine | None = None
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """Return Dagster's own data about the launcher."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Return the schema of `config` in dagster.yaml."""
        return {
            "delegate": dg.Field(
                dg.Shape(  # type: ignore[no-untyped-call]
                    {
                        "module": dg.Field(str, is_required=False),
                        "class": dg.Field(str, is_required=False),
                        "config": dg.Field(dict, is_required=False),
                    }
                ),
                is_required=False,
                description="The launcher of every run that is not handed to a batch driver.",
            ),
            "database_url": dg.Field(
                dg.StringSource, is_required=False, description="The driver log; FOREBAY_DATABASE_URL unless given."
            ),
        }

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Build the launcher; called by Dagster with the configuration in dagster.yaml."""
        return cls(inst_data=inst_data, **config_value)

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Register the instance with both launchers, so that both report to it."""
        super().register_instance(instance)
        self._delegate.register_instance(instance)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Hand a batch run to the drivers of its code location, or let the delegate launch it."""
        run = context.dagster_run
        location = location_of(run)
        if location is not None and is_batch_run(run.tags) and self._enqueue(run.run_id, location):
            return
        self._delegate.launch_run(context)

    def _enqueue(self, run_id: str, location: str) -> bool:
        try:
            with self._connection() as connection:
                return enqueue_run(connection, run_id=run_id, location=location)
        except OutcomeUnknownError:
            # The run may be queued, and then the delegate must not launch it too, or two processes would run it. Asking
            # again is idempotent; any failure now fails this launch, and the batch sensor makes the next attempt.
            with self._connection() as connection:
                return (
                    enqueue_run(connection, run_id=run_id, location=location)
                    or run_worker(connection, run_id) is not None
                )
        except (DatabaseUrlMissingError, DriverLogUnavailableError) as error:
            log.warning("the driver log can't be asked, the run goes to the delegate", run_id=run_id, error=str(error))
            return False

    def terminate(self, run_id: str) -> bool:
        """Cancel a run, wherever it is; return True if it was still queued, or its process could be told."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and is_batch_run(run.tags) and not run.is_finished:
            self._instance.report_engine_event(WHAT_CANCELLING_DOES, run)
        if run is None or not _needs_driver_log(run, self._database_url):
            return bool(self._delegate.terminate(run_id))
        with self._connection() as connection:
            if run_worker(connection, run_id) is None:
                return bool(self._delegate.terminate(run_id))
            if run.is_finished:
                return False
            # Before the request, so that its failing step is recorded as cancelled.
            self._instance.report_run_canceling(run)
            if withdraw_run(connection, run_id):
                self._instance.report_run_canceled(run, message="Cancelled before a batch driver had taken it.")
                return True
            return request_cancel(connection, run_id)

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Return True: Dagster's run monitoring may ask for a run's health."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """Return FAILED if the driver's process is known to have ended; the batch sensor makes the next attempt."""
        worker = why = None
        if _needs_driver_log(run, self._database_url):
            try:
                with self._connection() as connection:
                    worker = run_worker(connection, run.run_id)
                    why = why_lost(connection, run.run_id)
            except DriverLogError as error:
                # Unknown: the run is not reported as failed.
                return CheckRunHealthResult(WorkerStatus.RUNNING, f"the driver log can't be read: {error}")
        if worker is None:
            if self._delegate.supports_check_run_worker_health:
                return self._delegate.check_run_worker_health(run)
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its launcher can't tell")
        status = WorkerStatus.RUNNING if why is None else WorkerStatus.FAILED
        return CheckRunHealthResult(status, why or worker.why, run_worker_id=worker.driver or None)

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str | None:  # noqa: FBT002  Dagster's
        """Return the delegate's information about a run that it launched."""
        return self._delegate.get_run_worker_debug_info(run, include_container_logs)

    @property
    def supports_resume_run(self) -> bool:
        """Return False: an interrupted batch gets its next attempt, by the driver log's rules."""
        return False

    def join(self, timeout: int = 30) -> None:
        """Wait for the delegate's runs."""
        self._delegate.join(timeout)

    def dispose(self) -> None:
        """Close the connections of both launchers."""
        self._delegate.dispose()
        if self._pool is not None:
            self._pool.dispose()

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        with self._lock:
            if self._pool is None:
                url = self._database_url or Settings().require_database_url()
                self._pool = create_engine(url, application_name="forebay run launcher", pool_size=1)
        with connect(self._pool) as connection:
            yield connection


def _load(delegate: Mapping[str, Any]) -> RunLauncher[dg.DagsterInstance]:
    # Dagster expects YAML, and JSON is valid YAML.
    data = ConfigurableClassData(delegate["module"], delegate["class"], json.dumps(delegate["config"]))
    launcher: RunLauncher[dg.DagsterInstance] = data.rehydrate(as_type=RunLauncher)  # type: ignore[type-abstract]
    return launcher


def _needs_driver_log(run: dg.DagsterRun, database_url: str | None) -> bool:
    """Return whether the driver log must be read for a run; other runs need no driver log."""
    return is_batch_run(run.tags) and (database_url or Settings().database_url) is not None
