"""Send `kill -9` to real processes: all recovers without help, each registered record comes out once, nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tracker_store.batches.run_queue import CRASHED

if TYPE_CHECKING:
    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.slow
@pytest.mark.core
def test_the_receiver_process(system: RunningSystem) -> None:
    before = system.epoch()
    killed = system.receiver_process()
    system.kill(killed)
    system.until("a new process has claimed the receiver", lambda: system.epoch() > before)
    assert system.end_reason(killed.pid) == CRASHED
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()


@pytest.mark.slow
def test_the_agent(system: RunningSystem) -> None:
    """Check that its children end with it, and that its successor reports its end before a timeout has to detect it."""
    before = system.epoch()
    agent = system.process("forebay.cli agent")
    assert agent is not None
    family = agent.children(recursive=True)
    system.kill(agent)
    assert system.until("its end is known", lambda: system.end_reason(agent.pid)) == CRASHED
    system.until("its children have ended", lambda: not any(child.is_running() for child in family))
    system.until("a new process has claimed the receiver", lambda: system.epoch() > before)
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()


@pytest.mark.slow
@pytest.mark.core
def test_the_tracker(system: RunningSystem) -> None:
    """Check that the receiver does not notice, and that another process leads with a new term."""
    epoch, before = system.epoch(), system.leadership()
    tracker = system.process("forebay.cli tracker")
    assert tracker is not None
    system.kill(tracker)
    system.receive(500)
    system.until("another process leads", lambda: system.leadership().term > before.term)
    assert system.leadership().holder != before.holder
    system.settle()
    system.check_every_number_came_out_once()
    assert system.epoch() == epoch, "the receiver was restarted"


@pytest.mark.slow
@pytest.mark.core
def test_the_dagster_daemon(system: RunningSystem) -> None:
    daemon = system.process("dagster._daemon")
    assert daemon is not None
    system.kill(daemon)
    system.receive(500)
    successor = system.until("the daemon is started again", lambda: system.process("dagster._daemon"))
    assert successor.pid != daemon.pid
    system.settle()
    system.check_every_number_came_out_once()


@pytest.mark.slow
@pytest.mark.core
def test_the_webserver(system: RunningSystem) -> None:
    """Check that the batch sensor launches 2 s batches while the webserver, to which the tracker pushes, is down."""
    system.until("the tracker has pushed", lambda: any(name.startswith("tracker") for name in system.launchers()))
    # Everything that has to warm up has done so.
    system.settle()
    webserver = system.process("dagster_webserver")
    assert webserver is not None
    system.kill(webserver)
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()
    assert system.run_keys_with_several_runs() == [], "each attempt had one run, whatever launched it"


@pytest.mark.slow
def test_the_batch_driver(system: RunningSystem) -> None:
    """Kill it whatever it is doing; test_batch_drivers has tests that kill it in the middle of a batch."""
    system.until("a batch is running", lambda: any(row.state == "RUNNING" for row in system.batches()))
    driver = system.process("forebay.cli batch-driver")
    assert driver is not None
    family = driver.children(recursive=True)
    system.kill(driver)
    system.until("its JVM is gone too", lambda: not any(process.is_running() for process in family))
    system.settle()
    successor = system.until("it is started again", lambda: system.process("forebay.cli batch-driver"))
    assert successor.pid != driver.pid
    system.check_every_number_came_out_once()


@pytest.mark.outage
def test_postgres_itself(system: RunningSystem) -> None:
    """Check that all parts of Dagster that end are restarted: its storage is in this Postgres too."""
    epoch = system.epoch()
    postmaster = system.process("bin/postgres", "-D")
    assert postmaster is not None
    system.kill(postmaster)
    system.until("the driver log answers again", system.registered)
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()
    assert system.epoch() == epoch, "the receiver was restarted"
