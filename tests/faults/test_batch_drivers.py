"""Batch drivers in `forebay up`, as an operator sees them: one system at a 2 s interval for all tests."""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import psutil
import pytest
import sqlalchemy as sa

from forebay.cli.instance.dagster_home import DATABASE_VARIABLE, dagster_database_url
from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import running_system
from tracker_store.batches.run_queue import enqueue_run, run_worker
from tracker_store.connection.engine import connect
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.systems, pytest.mark.timeout(900)]

PIPELINE = Path(__file__).with_name("held_pipeline.py")
# Seconds from the request to cancel a run to its end.
CANCELLED_SECONDS = 2.0
# In seconds. A driver starts Python, Dagster and a JVM, beside other tests.
READY_SECONDS = 300.0


class Drivers:
    """The running system, with access to its drivers and its Dagster."""

    def __init__(self, system: RunningSystem, module: Path) -> None:
        self.system = system
        self.module = module
        os.environ[DATABASE_VARIABLE] = dagster_database_url(EmbeddedPostgres(system.home / "postgres").url())
        self.instance = dg.DagsterInstance.from_config(str(system.home / "dagster"))
        self.url = system.ui_url

    def ready_pids(self) -> list[int]:
        """Return the pids of the drivers that take runs according to the driver log, oldest first."""
        with connect(self.system.engine) as connection:
            pids = connection.execute(
                sa.text(
                    "SELECT p.pid FROM forebay.batch_drivers d JOIN forebay.processes p ON p.id = d.process_id "
                    "WHERE d.state = 'READY' AND p.ended_at IS NULL ORDER BY p.id"
                )
            )
            return list(pids.scalars())

    def ready(self) -> list[psutil.Process]:
        """Return the processes of the drivers that are ready."""
        return [psutil.Process(pid) for pid in self.ready_pids() if psutil.pid_exists(pid)]

    def one(self) -> psutil.Process:
        """Return a driver, as soon as one is ready."""
        return self.system.until("a batch driver is ready", self.ready, READY_SECONDS)[-1]

    def held(self, name: str) -> Hold:
        """Return a context in which each batch waits; `name` is `hold-python` or `hold-spark`."""
        return Hold(self.system.home / name)

    def running(self) -> dg.DagsterRun:
        """Return a batch run that is held in the user's function, or soon will be in its Spark job."""

        def look() -> dg.DagsterRun | None:
            runs = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
            return next((run for run in runs if "held" in self.stdout(run)), None)

        return self.system.until("a batch is in the user's function", look)

    def status(self, run: dg.DagsterRun) -> dg.DagsterRunStatus:
        found = self.instance.get_run_by_id(run.run_id)
        assert found is not None
        return found.status

    def ended(self, run: dg.DagsterRun, seconds: float = 150.0) -> dg.DagsterRunStatus:
        """Wait until the run has ended; return its final status."""
        finished = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
        self.system.until(f"run {run.run_id} has ended", lambda: self.status(run) in finished, seconds)
        return self.status(run)

    def stdout(self, run: dg.DagsterRun, kind: str = "out") -> str:
        """Return the contents of the run's compute log."""
        logs = self.system.home / "dagster" / "storage" / run.run_id / "compute_logs"
        return "".join(file.read_text(encoding="utf-8") for file in logs.glob(f"*.{kind}"))

    def seconds_to_cancel(self, run: dg.DagsterRun) -> float:
        """Return the seconds from the cancel request to the end, as Dagster recorded them."""
        said = {
            entry.dagster_event.event_type: entry.timestamp
            for entry in self.instance.all_logs(run.run_id)
            if entry.dagster_event
        }
        return said[dg.DagsterEventType.RUN_CANCELED] - said[dg.DagsterEventType.RUN_CANCELING]

    def messages(self, run: dg.DagsterRun) -> str:
        return "\n".join(str(entry.message) for entry in self.instance.all_logs(run.run_id))

    def last_success(self) -> dg.DagsterRun | None:
        runs = self.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS]), limit=1)
        return runs[0] if runs else None

    def terminate(self, run: dg.DagsterRun) -> None:
        """Terminate the run as the button in the UI does."""
        query = "mutation($id: String!) { terminateRun(runId: $id) { __typename } }"
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": query, "variables": {"id": run.run_id}}).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self.system.ui_token}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert json.load(answer)["data"]["terminateRun"]["__typename"] == "TerminateRunSuccess"


class Hold:
    def __init__(self, file: Path) -> None:
        self._file = file

    def __enter__(self) -> None:
        self._file.touch()

    def __exit__(self, *_: object) -> None:
        self._file.unlink()


@pytest.fixture(scope="module")
def shared() -> Iterator[Drivers]:
    with state_directory() as home, NumberedSource() as source:
        module = home / "held_pipeline.py"
        shutil.copy(PIPELINE, module)
        with running_system(home, source, str(module)) as system:
            drivers = Drivers(system, module)
            drivers.one()
            yield drivers
            drivers.instance.dispose()


@pytest.fixture
def drivers(shared: Drivers) -> Drivers:
    """Wait until a driver is ready and records flow."""
    shared.one()
    shared.system.receive(500)
    return shared


def test_a_warm_run_looks_like_any_other(drivers: Drivers) -> None:
    """Check that events, output and errors are where Dagster's pages look, and that the next run finds no remains."""
    before = drivers.last_success()
    run = drivers.system.until(
        "a batch has succeeded",
        lambda: found if (found := drivers.last_success()) and (not before or found.run_id != before.run_id) else None,
    )
    driver = drivers.one()
    assert f"pid {driver.pid} on " in drivers.messages(run), "it did not run in the driver"
    assert "version one of" in drivers.stdout(run)
    assert "dirty no" in drivers.stdout(run, "err"), "it saw what the run before had set"
    kinds = {
        entry.dagster_event.event_type_value for entry in drivers.instance.all_logs(run.run_id) if entry.dagster_event
    }
    assert {"PIPELINE_START", "STEP_START", "ASSET_MATERIALIZATION", "STEP_SUCCESS", "PIPELINE_SUCCESS"} <= kinds

    def gone() -> bool:
        with connect(drivers.system.engine) as connection:
            return run_worker(connection, run.run_id) is None

    drivers.system.until("its row is gone: the queue would grow with every run", gone)


def test_j02_a_run_that_can_not_be_run_fails_and_the_driver_goes_on(drivers: Drivers) -> None:
    """Check that an error outside user code fails the run with its reason, and does not affect the next run."""
    driver = drivers.one()
    good = drivers.system.until("a batch has succeeded", drivers.last_success)
    origin = good.job_code_origin
    assert origin is not None
    broken = good._replace(
        run_id=str(uuid.uuid4()),
        status=dg.DagsterRunStatus.STARTING,
        # Without the sensor's tags, because the sensor finds its runs by them.
        tags={},
        job_code_origin=origin._replace(job_name="a_job_that_is_not_there"),
    )
    drivers.instance.add_run(broken)
    with connect(drivers.system.engine) as connection:
        assert enqueue_run(connection, run_id=broken.run_id, location="forebay")
    assert drivers.ended(broken) is dg.DagsterRunStatus.FAILURE
    assert "a_job_that_is_not_there" in drivers.messages(broken) + str(
        [entry.dagster_event for entry in drivers.instance.all_logs(broken.run_id)]
    )
    drivers.system.settle()
    assert drivers.one().pid == driver.pid


@pytest.mark.parametrize("where", ["hold-spark", pytest.param("hold-python", marks=pytest.mark.systems)])
def test_a_cancelled_run_ends_within_two_seconds_and_its_batch_comes_out_later(drivers: Drivers, where: str) -> None:
    took: list[float] = []
    # Only the fastest of up to three counts: a pause of the whole machine says nothing about the driver.
    while not took or (min(took) > CANCELLED_SECONDS and len(took) < 3):
        drivers.one()
        drivers.system.receive(500)
        with drivers.held(where):
            run = drivers.running()
            drivers.terminate(run)
            assert drivers.ended(run) is dg.DagsterRunStatus.CANCELED
        took.append(drivers.seconds_to_cancel(run))
        drivers.system.settle()
        drivers.system.check_every_number_came_out_once()
    assert min(took) <= CANCELLED_SECONDS, took


def test_a_killed_driver_costs_an_attempt_and_nothing_else(drivers: Drivers) -> None:
    with drivers.held("hold-spark"):
        run = drivers.running()
        driver = drivers.one()
        family = driver.children(recursive=True)
        drivers.system.kill(driver)
        assert drivers.ended(run) is dg.DagsterRunStatus.FAILURE
    drivers.system.settle()
    drivers.system.check_every_number_came_out_once()
    psutil.wait_procs(family, timeout=60)
    assert [process for process in family if process.is_running()] == [], "its JVM outlived it"
    healed = [row for row in drivers.system.batches() if row.state == "COMPLETED" and row.attempt > 1]
    assert healed


def jvm_of(driver: psutil.Process) -> psutil.Process:
    [jvm] = [process for process in driver.children(recursive=True) if process.name() == "java"]
    return jvm


def test_an_idle_driver_with_a_killed_jvm_is_replaced_and_costs_no_attempt(drivers: Drivers) -> None:
    drivers.system.settle()
    before = [(row.batch_time, row.attempt) for row in drivers.system.batches() if row.attempt > 1]
    driver = drivers.one()
    jvm_of(driver).kill()
    drivers.system.until("another driver is ready", lambda: drivers.one().pid != driver.pid, READY_SECONDS)
    drivers.system.receive(500)
    drivers.system.settle()
    drivers.system.check_every_number_came_out_once()
    assert [(row.batch_time, row.attempt) for row in drivers.system.batches() if row.attempt > 1] == before


def test_a_busy_driver_with_a_killed_jvm_is_replaced_and_its_batch_comes_out_once(drivers: Drivers) -> None:
    with drivers.held("hold-spark"):
        run = drivers.running()
        driver = drivers.one()
        jvm_of(driver).kill()
        assert drivers.ended(run) is dg.DagsterRunStatus.FAILURE
    drivers.system.until("another driver is ready", lambda: drivers.one().pid != driver.pid, READY_SECONDS)
    drivers.system.settle()
    drivers.system.check_every_number_came_out_once()


def test_a_stalled_driver_ends_and_its_batch_comes_out_once(drivers: Drivers) -> None:
    """Pause a driver during a run until it is declared dead and its batch is run elsewhere; it must not go on."""
    with drivers.held("hold-python"):
        run = drivers.running()
        driver = drivers.one()
        driver.suspend()
        try:
            assert drivers.ended(run) is dg.DagsterRunStatus.FAILURE
        finally:
            driver.resume()
        psutil.wait_procs([driver], timeout=60)
        assert not driver.is_running()
    drivers.system.settle()
    drivers.system.check_every_number_came_out_once()


def test_new_code_is_taken_up_by_the_next_driver(drivers: Drivers) -> None:
    old = drivers.one()
    text = drivers.module.read_text(encoding="utf-8")
    drivers.module.write_text(text.replace('VERSION = "one"', 'VERSION = "two"'), encoding="utf-8")

    def replaced() -> bool:
        return bool(set(drivers.ready_pids()) - {old.pid})

    drivers.system.until("another driver has taken over", replaced, READY_SECONDS)
    drivers.system.receive(500)
    drivers.system.until(
        "a batch ran the new code", lambda: (run := drivers.last_success()) and "version two of" in drivers.stdout(run)
    )
    psutil.wait_procs([old], timeout=60)
    assert not old.is_running()
    drivers.system.settle()
    drivers.system.check_every_number_came_out_once()


def test_without_a_driver_batches_run_as_dagster_runs_them() -> None:
    with state_directory() as home, NumberedSource() as source:
        module = home / "held_pipeline.py"
        shutil.copy(PIPELINE, module)
        with running_system(home, source, str(module), FOREBAY_BATCH_DRIVERS="0") as system:
            drivers = Drivers(system, module)
            system.receive(500)
            run = system.until("a batch has run", drivers.last_success, READY_SECONDS)
            assert "Batch driver" not in drivers.messages(run)
            assert "Started process for run" in drivers.messages(run)
            system.settle()
            system.check_every_number_came_out_once()
