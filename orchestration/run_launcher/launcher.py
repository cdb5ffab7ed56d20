"""The run launcher of a Forebay instance: hands batch runs to the batch drivers, and every other run to its delegate.

In a ``dagster.yaml``, beside what the instance has already::

    run_launcher:
      module: orchestration.run_launcher.launcher
      class: BatchRunLauncher
      config:
        delegate: {module: dagster_k8s, class: K8sRunLauncher, config: {...}}   # the default launcher unless named

A batch run is known by its tags (``routing``). It goes to a driver of its code location by a row of ``run_queue``; when
none takes runs, or the driver log can't be asked, it goes to the delegate too, where it runs the same and only starts
later. Where a run went is decided once, and known afterwards by its row.
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

from orchestration.run_launcher.lost_runs import why_lost
from orchestration.run_launcher.routing import is_batch_run, location_of
from orchestration.settings import DatabaseUrlMissingError, Settings
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError, DriverLogUnavailableError, OutcomeUnknownError
from tracker_store.run_queue import enqueue_run, request_cancel, run_worker, withdraw_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import sqlalchemy as sa

DEFAULT_DELEGATE = {"module": "dagster", "class": "DefaultRunLauncher", "config": {}}

WHAT_CANCELLING_DOES = (
    "Somebody cancels this run. That ends this attempt alone: the batch keeps its blocks, and is tried again under the "
    "next attempt's number, within seconds. It counts as a lost attempt, not as a failed one: after max_lost_attempts "
    "of them the batch is QUARANTINED, and can be replayed or discarded."
)

log = structlog.get_logger(__name__)


class BatchRunLauncher(RunLauncher[dg.DagsterInstance], ConfigurableClass):
    """Hands over, or delegates. Used by Dagster's daemon, webserver and code servers, from any of their threads."""

    def __init__(
        self,
        delegate: Mapping[str, Any] | None = None,
        database_url: str | None = None,
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Prepare it; nothing is connected before the first batch run.

        Args:
            delegate: module, class and config of the launcher for everything else.
            database_url: the driver log; FOREBAY_DATABASE_URL unless given.
            inst_data: Dagster's own, for passing the launcher on.
        """
        self._inst_data = inst_data
        self._database_url = database_url
        self._delegate = _load({**DEFAULT_DELEGATE, **(delegate or {})})
        self._lock = threading.Lock()
        self._pool: sa.Engine | None = None
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def inst_data(self) -> ConfigurableClassData | None:
        """As Dagster keeps it."""
        return self._inst_data

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """What stands under `config` in dagster.yaml."""
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
        """Made by Dagster from dagster.yaml."""
        return cls(inst_data=inst_data, **config_value)

    def register_instance(self, instance: dg.DagsterInstance) -> None:
        """Both launchers report to the same instance."""
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
            # It may be queued, and then it may not be launched elsewhere too: two would run it. To ask again changes
            # nothing; a failure now, of whatever kind, is this launch's, and the batch sensor makes the next attempt.
            with self._connection() as connection:
                return (
                    enqueue_run(connection, run_id=run_id, location=location)
                    or run_worker(connection, run_id) is not None
                )
        except (DatabaseUrlMissingError, DriverLogUnavailableError) as error:
            log.warning("no batch driver can be asked, the run goes to the delegate", run_id=run_id, error=str(error))
            return False

    def terminate(self, run_id: str) -> bool:
        """Cancel a run, wherever it is; True where somebody was there to be told."""
        run = self._instance.get_run_by_id(run_id)
        if run is not None and is_batch_run(run.tags) and not run.is_finished:
            self._instance.report_engine_event(WHAT_CANCELLING_DOES, run)
        if run is None or not self._may_be_handed_over(run):
            return bool(self._delegate.terminate(run_id))
        with self._connection() as connection:
            if run_worker(connection, run_id) is None:
                return bool(self._delegate.terminate(run_id))
            if run.is_finished:
                return False
            # First, so that its failing step is recorded as cancelled.
            self._instance.report_run_canceling(run)
            if withdraw_run(connection, run_id):
                self._instance.report_run_canceled(run, message="Cancelled before a batch driver had taken it.")
                return True
            return request_cancel(connection, run_id)

    def _may_be_handed_over(self, run: dg.DagsterRun) -> bool:
        """What never is has nothing to do with the driver log, and needs none."""
        return is_batch_run(run.tags) and (self._database_url or Settings().database_url) is not None

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Asked by Dagster's run monitoring."""
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """FAILED once the driver's process is known to have ended; the batch sensor then makes the next attempt."""
        worker = why = None
        if self._may_be_handed_over(run):
            try:
                with self._connection() as connection:
                    worker = run_worker(connection, run.run_id)
                    why = why_lost(connection, run.run_id)
            except DriverLogError as error:
                # Nothing is known: nobody is accused.
                return CheckRunHealthResult(WorkerStatus.RUNNING, f"the driver log said no: {error}")
        if worker is None:
            if self._delegate.supports_check_run_worker_health:
                return self._delegate.check_run_worker_health(run)
            return CheckRunHealthResult(WorkerStatus.RUNNING, "its launcher can't tell")
        status = WorkerStatus.RUNNING if why is None else WorkerStatus.FAILED
        return CheckRunHealthResult(status, why or worker.why, run_worker_id=worker.driver or None)

    def get_run_worker_debug_info(self, run: dg.DagsterRun, include_container_logs: bool | None = True) -> str | None:  # noqa: FBT002  Dagster's
        """The delegate's, for a run of its own."""
        return self._delegate.get_run_worker_debug_info(run, include_container_logs)

    @property
    def supports_resume_run(self) -> bool:
        """No: a batch that was cut short gets its next attempt, under the driver log's rules."""
        return False

    def join(self, timeout: int = 30) -> None:
        """Wait for the delegate's runs."""
        self._delegate.join(timeout)

    def dispose(self) -> None:
        """Close the connections, of both."""
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
    # JSON is YAML.
    data = ConfigurableClassData(delegate["module"], delegate["class"], json.dumps(delegate["config"]))
    launcher: RunLauncher[dg.DagsterInstance] = data.rehydrate(as_type=RunLauncher)  # type: ignore[type-abstract]
    return launcher
