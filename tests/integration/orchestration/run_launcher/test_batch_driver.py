"""Test what a batch driver does with a run whose claim, end or finish got no answer; without Spark and user code."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import dagster as dg
import pytest

from orchestration.batches.attempt_outputs import _OutputThread, running_outputs
from orchestration.declarations.settings import Settings
from orchestration.run_launcher import batch_driver
from orchestration.run_launcher.batch_driver import BatchDriver
from orchestration.run_launcher.dagster_internals import capture_interrupts
from orchestration.run_launcher.driver_registration import DriverRegistration
from orchestration.run_launcher.driver_start import Started
from orchestration.run_launcher.driver_state import DriverState
from orchestration.run_launcher.loaded_code import LoadedCode
from orchestration.run_launcher.recycling import Recycling
from orchestration.spark.session.session import WarmSession
from tests.support.polling import eventually
from tracker_store.batches.run_queue import (
    LEFT,
    claim_run,
    enqueue_run,
    finish_run,
    register_batch_driver,
    run_worker,
    set_batch_driver_state,
)
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogUnavailableError, OutcomeUnknownError
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import BatchDriverState, ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import sqlalchemy as sa

    from orchestration.run_launcher.cancellation import Cancellation

P = ParamSpec("P")
R = TypeVar("R")

LOCATION = "forebay"


class Rig:
    """A driver that is ready, and one run that was handed over to it."""

    def __init__(self, engine: sa.Engine, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = engine
        self.instance = instance
        self.drain = threading.Event()
        registration = SimpleNamespace(host="h", location=LOCATION)
        session = SimpleNamespace(ended=lambda: None, reset=lambda: None)
        self.driver = BatchDriver(
            Settings(),
            started=Started([], cast("Any", session)),
            registration=cast("Any", registration),
            drain=self.drain,
            is_left=threading.Event(),
            on_ready=lambda: None,
            ask_for_successor=lambda _: True,
        )
        self.driver._states.move(DriverState.IDLE)
        nobody_cancels = SimpleNamespace(watching=nullcontext, was_interrupted=False)
        self.cancellation = cast("Cancellation", nobody_cancels)
        self.executed: list[str] = []
        self.does: Callable[[dg.DagsterRun], object] = instance.report_run_failed
        monkeypatch.setattr(self.driver, "_execute_in_dagster", self._execute)
        with connect(engine) as connection:
            self.process_id = register_process(
                connection, kind=ProcessKind.BATCH_DRIVER, name="d", host="h", pid=os.getpid()
            )
            register_batch_driver(connection, process_id=self.process_id, location=LOCATION)
            set_batch_driver_state(connection, process_id=self.process_id, state=BatchDriverState.READY)
            self.run = instance.add_run(dg.DagsterRun(job_name="j", status=dg.DagsterRunStatus.STARTED))
            enqueue_run(connection, run_id=self.run.run_id, location=LOCATION)

    def _execute(self, instance: dg.DagsterInstance, run_id: str, _process_id: int) -> None:
        run = instance.get_run_by_id(run_id)
        assert run is not None
        if not run.is_finished:
            self.executed.append(run_id)
            self.does(run)

    def take(self) -> str | None:
        """Run one round of its loop; return the run that it took."""
        run_id = self.driver._claim(self.process_id)
        if run_id is not None:
            self.driver._execute(self.instance, run_id, self.process_id, self.cancellation)
        return run_id

    def reason_to_end(self) -> str | None:
        """Return why it would take no more runs."""
        never = Recycling(LoadedCode("no_module"), max_runs=1_000, max_memory_mb=1_000_000)
        return self.driver._reason_to_end(never)

    def is_queued(self) -> bool:
        with connect(self.engine) as connection:
            return run_worker(connection, self.run.run_id) is not None

    def status(self) -> dg.DagsterRunStatus:
        run = self.instance.get_run_by_id(self.run.run_id)
        assert run is not None
        return run.status


@pytest.fixture
def rig(engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setattr(batch_driver, "POLL_SECONDS", 0.01)
    with dg.DagsterInstance.ephemeral() as instance, capture_interrupts():
        made = Rig(engine, instance, monkeypatch)
        with made.driver._signals:
            yield made
        made.driver._engine.dispose()


def once(function: Callable[P, R], error: Exception, *, works: bool) -> Callable[P, R]:
    """Wrap `function` to raise the first time, with or without having worked."""
    errors = [error]

    def called(*arguments: P.args, **named: P.kwargs) -> R:
        if errors:
            if works:
                function(*arguments, **named)
            raise errors.pop()
        return function(*arguments, **named)

    return called


def test_a_run_whose_claim_got_no_answer_is_executed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because the driver log has the run as this driver's: no other takes it, and this one goes on."""
    monkeypatch.setattr(batch_driver, "claim_run", once(claim_run, OutcomeUnknownError(), works=True))
    with pytest.raises(OutcomeUnknownError):
        rig.take()
    assert rig.take() == rig.run.run_id
    assert rig.executed == [rig.run.run_id]
    assert rig.take() is None
    assert not rig.is_queued()


@pytest.mark.parametrize("works", [False, True])
def test_a_driver_survives_an_unavailable_driver_log_when_its_run_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, *, works: bool
) -> None:
    """Check this because a cold start takes seconds, and a row that stays behind would belong to no driver."""
    monkeypatch.setattr(batch_driver, "finish_run", once(finish_run, DriverLogUnavailableError(), works=works))
    assert rig.take() == rig.run.run_id
    rig.take()
    assert rig.take() is None
    assert rig.executed == [rig.run.run_id]
    assert not rig.is_queued()


def test_a_run_whose_end_can_not_be_reported_is_ended_later_and_not_executed_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check while Dagster's storage is unavailable, in the middle of a run and at its end."""

    def fails(_run: dg.DagsterRun) -> None:
        raise OSError("Dagster's storage is away")

    rig.does = fails
    monkeypatch.setattr(batch_driver, "_end_run", once(batch_driver._end_run, OSError("it is still away"), works=False))
    assert rig.take() == rig.run.run_id
    assert rig.status() is dg.DagsterRunStatus.STARTED
    assert rig.is_queued()
    assert rig.take() == rig.run.run_id
    assert rig.status() is dg.DagsterRunStatus.FAILURE
    assert not rig.is_queued()
    assert rig.executed == [rig.run.run_id]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_a_run_ends_the_driver_too(rig: Rig, sent: signal.Signals) -> None:
    """Check this because Dagster ends the run by the signal alone, which may have interrupted a call to Spark."""

    def hit(run: dg.DagsterRun) -> None:
        os.kill(os.getpid(), sent)
        rig.instance.report_run_failed(run)

    rig.does = hit
    rig.take()
    assert rig.drain.is_set()
    assert rig.driver._spoilt is not None
    assert "signal" in rig.driver._spoilt


def test_a_driver_in_which_an_output_of_a_past_run_goes_on_takes_no_other_run(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because its batch is over, so that the next attempt may begin in another driver."""
    asked: list[str] = []
    monkeypatch.setattr(rig.driver, "_ask_for_successor", asked.append)
    for_ever = threading.Event()

    def hang() -> None:
        for_ever.wait(60)

    def leave_one(run: dg.DagsterRun) -> None:
        _OutputThread("counts", hang).start()
        rig.instance.report_run_failed(run)

    rig.does = leave_one
    try:
        rig.take()
        assert asked == []
        assert rig.reason_to_end() == f"outputs of run {rig.run.run_id} do not end: counts"
        assert asked == [rig.reason_to_end()] * 2
    finally:
        for_ever.set()
    eventually(lambda: not running_outputs(), "the output ends")
    assert rig.reason_to_end() is not None, "what it left behind is unknown"


def test_a_driver_without_a_living_jvm_takes_no_run(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check after the JVM was killed while idle: the run waits for the successor, and no attempt is used up."""
    asked: list[str] = []
    monkeypatch.setattr(rig.driver, "_ask_for_successor", asked.append)
    jvm = subprocess.Popen(["sleep", "60"])
    session = WarmSession.__new__(WarmSession)
    session._remote = False
    lives = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    context = SimpleNamespace(_gateway=SimpleNamespace(proc=jvm), _jsc=lives)
    session.session = cast("Any", SimpleNamespace(sparkContext=context))
    rig.driver._session = session
    assert rig.reason_to_end() is None
    jvm.kill()
    eventually(lambda: rig.reason_to_end() is not None, "the driver notices")
    assert asked[0] == rig.reason_to_end() == "its JVM has ended, with code -9"
    rig.driver._take_remaining(rig.instance, rig.process_id, rig.cancellation)
    assert rig.executed == []
    assert rig.is_queued()


def test_a_run_without_a_signal_ends_nothing(rig: Rig) -> None:
    rig.take()
    assert not rig.drain.is_set()
    assert rig.driver._spoilt is None


@pytest.mark.parametrize(("reasons", "is_waited_for"), [((LEFT, "stopped"), True), (("stopped",), False)])
def test_runs_wait_for_the_successor_of_a_driver_that_its_agent_left(
    engine: sa.Engine, reasons: Sequence[str], is_waited_for: bool
) -> None:
    registration = DriverRegistration(engine, host="h", location=LOCATION)
    registration.note(BatchDriverState.READY)
    for reason in reasons:
        registration.end(reason)
    with connect(engine) as connection:
        assert enqueue_run(connection, run_id="r", location=LOCATION) is is_waited_for
