"""Test the run launcher, in a real instance and on a real driver log; the drivers are rows."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.launcher.base import LaunchRunContext, WorkerStatus
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin

from orchestration.run_launcher import launcher
from orchestration.run_launcher.code_server_runs import CodeServerRunLauncher
from orchestration.run_launcher.launcher import BatchRunLauncher
from tests.support.dagster.recording_launcher import RecordingRunLauncher
from tracker_store.batches.run_queue import (
    claim_run,
    enqueue_run,
    is_cancel_requested,
    register_batch_driver,
    run_worker,
    set_batch_driver_state,
)
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogUnavailableError, OutcomeUnknownError
from tracker_store.receivers.processes import deregister_process, register_process
from tracker_store.schema.states import BatchDriverState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Iterator

BATCH = {"forebay/pipeline": "p", "forebay/batch_time": "2026-01-01T00:00:00+00:00"}


class Rig:
    def __init__(self, instance: dg.DagsterInstance, engine: sa.Engine) -> None:
        self.instance = instance
        self.engine = engine
        launcher = instance.run_launcher
        assert isinstance(launcher, BatchRunLauncher)
        self.launcher = launcher
        delegate = launcher._delegate
        assert isinstance(delegate, RecordingRunLauncher)
        self.delegate = delegate

    def unpool(self) -> None:
        """Close the launcher's connections, which may be those of another URL than it has now."""
        self.launcher.dispose()
        self.launcher._pool = None

    def driver(self, location: str = "forebay") -> int:
        with connect(self.engine) as connection:
            process_id = register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="d", host="here", pid=1)
            register_batch_driver(connection, process_id=process_id, location=location)
            set_batch_driver_state(connection, process_id=process_id, state=BatchDriverState.READY)
        return process_id

    def claim(self, process_id: int) -> str | None:
        with connect(self.engine) as connection:
            return claim_run(connection, process_id=process_id, location="forebay")

    def launch(self, tags: dict[str, str], status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTING) -> dg.DagsterRun:
        location = GrpcServerCodeLocationOrigin(host="localhost", port=1, location_name="forebay")
        run = self.instance.add_run(
            dg.DagsterRun(
                job_name="p_batch",
                run_id=str(uuid.uuid4()),
                status=status,
                tags=tags,
                remote_job_origin=RemoteJobOrigin(RemoteRepositoryOrigin(location, "__repository__"), "p_batch"),
            )
        )
        self.launcher.launch_run(LaunchRunContext(run, workspace=None))
        return run

    def queued(self, run: dg.DagsterRun) -> bool:
        with connect(self.engine) as connection:
            return run_worker(connection, run.run_id) is not None

    def status(self, run: dg.DagsterRun) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    delegate = {
        "module": "tests.support.dagster.recording_launcher",
        "class": "RecordingRunLauncher",
        "config": {"name": "the delegate"},
    }
    overrides = {
        "run_launcher": {
            "module": "orchestration.run_launcher.launcher",
            "class": "BatchRunLauncher",
            "config": {"delegate": delegate, "database_url": "postgresql://configured"},
        },
        "telemetry": {"enabled": False},
    }
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster")), overrides=overrides) as made:
        assert isinstance(made.run_launcher, BatchRunLauncher)
        assert made.run_launcher._database_url == "postgresql://configured"
        yield made


@pytest.fixture
def rig(instance: dg.DagsterInstance, engine: sa.Engine, database_url: str) -> Iterator[Rig]:
    rig = Rig(instance, engine)
    rig.launcher._database_url = database_url
    rig.delegate.asked.clear()
    yield rig
    rig.unpool()


@pytest.mark.parametrize(
    ("named", "loaded"),
    [
        (None, CodeServerRunLauncher),
        ({}, CodeServerRunLauncher),
        ({"class": "DefaultRunLauncher"}, dg.DefaultRunLauncher),
        ({"module": "dagster"}, dg.DefaultRunLauncher),
    ],
)
def test_a_delegate_that_is_named_in_part_is_dagsters(named: dict[str, str] | None, loaded: type) -> None:
    assert type(BatchRunLauncher(named)._delegate) is loaded


def test_the_delegate_gets_its_configuration_and_the_instance(rig: Rig) -> None:
    assert rig.delegate.name == "the delegate"
    assert rig.delegate._instance is rig.instance


def test_a_batch_run_goes_to_a_driver_and_every_other_run_to_the_delegate(rig: Rig) -> None:
    rig.driver()
    batch, other = rig.launch(BATCH), rig.launch({"forebay/pipeline": "p"})
    assert rig.queued(batch)
    assert not rig.queued(other)
    assert rig.delegate.asked == [("launch", other.run_id)]


def test_without_a_driver_of_its_location_a_batch_run_goes_to_the_delegate(rig: Rig) -> None:
    rig.driver(location="elsewhere")
    batch = rig.launch(BATCH)
    assert not rig.queued(batch)
    assert rig.delegate.asked == [("launch", batch.run_id)]


@pytest.mark.parametrize("url", [None, "postgresql://nobody@127.0.0.1:1/none"])
def test_without_a_driver_log_a_batch_run_goes_to_the_delegate(
    rig: Rig, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    rig.launcher._database_url = url
    batch = rig.launch(BATCH)
    assert rig.delegate.asked == [("launch", batch.run_id)]


def test_a_delegated_run_stays_with_the_delegate(rig: Rig) -> None:
    run = rig.launch({})
    assert rig.launcher.terminate(run.run_id)
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.SUCCESS
    assert rig.delegate.asked == [("launch", run.run_id), ("terminate", run.run_id), ("health", run.run_id)]


def test_cancelling_a_waiting_run_ends_it_at_once(rig: Rig) -> None:
    process_id = rig.driver()
    run = rig.launch(BATCH)
    assert rig.launcher.terminate(run.run_id)
    assert rig.status(run) is dg.DagsterRunStatus.CANCELED
    said = [str(entry.get_dagster_event().message) for entry in rig.instance.all_logs(run.run_id)]
    assert any("is tried again under the next attempt's number" in message for message in said), said
    assert rig.claim(process_id) is None, "a driver would run what was cancelled"


def test_cancelling_a_run_of_a_driver_asks_the_driver(rig: Rig) -> None:
    process_id = rig.driver()
    run = rig.launch(BATCH, dg.DagsterRunStatus.STARTED)
    assert rig.claim(process_id) == run.run_id
    assert rig.launcher.terminate(run.run_id)
    assert rig.status(run) is dg.DagsterRunStatus.CANCELING, "the driver reports its end"
    with connect(rig.engine) as connection:
        assert is_cancel_requested(connection, run.run_id)
        deregister_process(connection, process_id)
    assert not rig.launcher.terminate(run.run_id), "no driver is left to be asked"


def test_a_runs_health_is_that_of_its_driver(rig: Rig) -> None:
    process_id = rig.driver()
    run = rig.launch(BATCH)
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    rig.claim(process_id)
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING
    with connect(rig.engine) as connection:
        deregister_process(connection, process_id, "killed by SIGKILL")
    health = rig.launcher.check_run_worker_health(run)
    assert health.status is WorkerStatus.FAILED
    assert "killed by SIGKILL" in str(health.msg)


def test_a_run_without_a_driver_is_given_up_after_a_while(rig: Rig) -> None:
    process_id = rig.driver()
    run = rig.launch(BATCH)
    with connect(rig.engine) as connection:
        deregister_process(connection, process_id)
        assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING, "one may be starting"
        connection.execute(sa.text("UPDATE forebay.run_queue SET enqueued_at = enqueued_at - interval '2 minutes'"))
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.FAILED
    assert not rig.queued(run), "a driver that starts later would run it although it was given up"


def test_no_run_is_reported_unhealthy_while_the_driver_log_is_unavailable(rig: Rig) -> None:
    run = rig.launch(BATCH)
    rig.unpool()
    rig.launcher._database_url = "postgresql://nobody@127.0.0.1:1/none"
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.RUNNING


@pytest.mark.parametrize("url", [None, "postgresql://nobody@127.0.0.1:1/none"])
def test_a_run_that_is_never_handed_over_requires_no_driver_log(
    rig: Rig, url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a person can end every unrelated run while Postgres is unavailable."""
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    rig.launcher._database_url = url
    run = rig.launch({"forebay/pipeline": "p"})
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.SUCCESS
    assert rig.launcher.terminate(run.run_id)


def test_without_a_driver_log_a_batch_run_stays_with_the_delegate(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    rig.launcher._database_url = None
    run = rig.launch(BATCH)
    assert rig.launcher.check_run_worker_health(run).status is WorkerStatus.SUCCESS
    assert rig.launcher.terminate(run.run_id)


class LosesTheAnswer:
    """Enqueue the run, then report a lost answer; after that the drivers are gone, or the driver log is unavailable."""

    def __init__(self, rig: Rig, process_id: int, then: Exception | None) -> None:
        self.rig = rig
        self.process_id = process_id
        self.then = then
        self.asked = 0

    def __call__(self, connection: sa.Connection, *, run_id: str, location: str) -> bool:
        self.asked += 1
        if self.asked == 1:
            assert enqueue_run(connection, run_id=run_id, location=location)
            deregister_process(connection, self.process_id)
            raise OutcomeUnknownError
        if self.then is not None:
            raise self.then
        return enqueue_run(connection, run_id=run_id, location=location)


@pytest.mark.parametrize("then", [None, DriverLogUnavailableError()])
def test_a_run_that_may_be_queued_is_never_delegated(
    rig: Rig, then: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because two processes would run one attempt."""
    monkeypatch.setattr(launcher, "enqueue_run", LosesTheAnswer(rig, rig.driver(), then))
    if then is None:
        assert rig.queued(rig.launch(BATCH))
    else:
        with pytest.raises(DriverLogUnavailableError):
            rig.launch(BATCH)
    assert rig.delegate.asked == []


def test_every_private_name_of_dagsters() -> None:
    """Check this because Dagster is pinned exactly: a new pin shows here what the launcher and the driver depend on."""
    import inspect  # noqa: PLC0415

    from dagster._core.events import EngineEventData  # noqa: PLC0415
    from dagster._core.execution.compute_logs import redirect_to_file  # noqa: PLC0415
    from dagster._core.launcher.base import CheckRunHealthResult, RunLauncher  # noqa: PLC0415
    from dagster._core.storage.compute_log_manager import CapturedLogContext, ComputeIOType  # noqa: PLC0415
    from dagster._core.storage.local_compute_log_manager import IO_TYPE_EXTENSION  # noqa: PLC0415
    from dagster._core.storage.tags import GRPC_INFO_TAG  # noqa: PLC0415
    from dagster._grpc.client import DagsterGrpcClient  # noqa: PLC0415
    from dagster._grpc.impl import core_execute_run  # noqa: PLC0415
    from dagster._grpc.types import GetCurrentRunsResult  # noqa: PLC0415
    from dagster._serdes import ConfigurableClassData, deserialize_value  # noqa: PLC0415
    from dagster._utils.hosted_user_process import recon_job_from_origin  # noqa: PLC0415
    from dagster._utils.interrupts import capture_interrupts, pop_captured_interrupt  # noqa: PLC0415

    from orchestration.run_launcher import dagster_internals  # noqa: PLC0415

    assert set(dagster_internals.__all__) - {"GRPC_INFO_TAG"} == {
        named.__name__
        for named in (
            EngineEventData,
            capture_interrupts,
            core_execute_run,
            dagster_internals.current_runs,
            pop_captured_interrupt,
            recon_job_from_origin,
        )
    }
    assert list(inspect.signature(core_execute_run).parameters) == [
        "recon_job",
        "dagster_run",
        "instance",
        "inject_env_vars",
        "resume_from_failure",
    ]
    assert list(inspect.signature(recon_job_from_origin).parameters) == ["origin"]
    assert GRPC_INFO_TAG == ".dagster/grpc_info"
    assert "socket" in inspect.signature(DagsterGrpcClient).parameters
    # No bound can be given.
    assert list(inspect.signature(DagsterGrpcClient.get_current_runs).parameters) == ["self"]
    assert list(GetCurrentRunsResult.__annotations__) == ["current_runs", "serializable_error_info"]
    assert list(inspect.signature(deserialize_value).parameters) == ["val", "as_type", "whitelist_map"]
    assert list(inspect.signature(dg.DagsterInstance.optimize_for_webserver).parameters) == [
        "self",
        "statement_timeout",
        "pool_recycle",
        "max_overflow",
    ]
    assert list(inspect.signature(EngineEventData.in_process).parameters) == ["pid", "step_keys_to_execute"]
    assert list(inspect.signature(ConfigurableClassData).parameters) == ["module_name", "class_name", "config_yaml"]
    assert list(inspect.signature(redirect_to_file).parameters) == ["stream", "filepath"]
    assert next(iter(inspect.signature(CapturedLogContext).parameters)) == "log_key"
    assert set(IO_TYPE_EXTENSION) == {ComputeIOType.STDOUT, ComputeIOType.STDERR}
    assert CheckRunHealthResult._fields == ("status", "msg", "transient", "run_worker_id")
    assert LaunchRunContext._fields == ("dagster_run", "workspace")
    assert {"launch_run", "terminate"} == RunLauncher.__abstractmethods__
    assert {"DagsterRun", "DagsterRunStatus", "DefaultRunLauncher"} <= set(dir(dg))
