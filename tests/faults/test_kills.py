"""`kill -9` on the real processes is healed without a person: every registered record comes out once, nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import psutil

    from tests.faults.running_system import RunningSystem

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]


def test_the_receiver_process(system: RunningSystem) -> None:
    before = system.epoch()
    system.kill(system.receiver_process())
    system.until("a new process has claimed the receiver", lambda: system.epoch() > before)
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()


def test_the_agent(system: RunningSystem) -> None:
    """Its children end with it; its successor's receiver begins when the old agent is found silent."""
    before = system.epoch()
    agent = system.process("forebay.cli", "agent")
    assert agent is not None
    family = agent.children(recursive=True)
    system.kill(agent)
    system.until("a new process has claimed the receiver", lambda: system.epoch() > before)
    assert [child for child in family if child.is_running()] == []
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()


def test_the_tracker(system: RunningSystem) -> None:
    """The receiver does not notice; another process leads, under another term."""
    epoch, before = system.epoch(), system.leadership()
    tracker = system.process("forebay.cli", "tracker")
    assert tracker is not None
    system.kill(tracker)
    system.receive(500)
    system.until("another process leads", lambda: system.leadership().term > before.term)
    assert system.leadership().holder != before.holder
    system.settle()
    system.check_every_number_came_out_once()
    assert system.epoch() == epoch, "the receiver was started anew"


def test_the_dagster_daemon(system: RunningSystem) -> None:
    daemon = system.process("dagster._daemon")
    assert daemon is not None
    system.kill(daemon)
    system.receive(500)
    successor = system.until("the daemon is started again", lambda: system.process("dagster._daemon"))
    assert successor.pid != daemon.pid
    system.settle()
    system.check_every_number_came_out_once()


def test_a_batch_run_in_progress(system: RunningSystem) -> None:
    running = system.until(
        "a batch is running", lambda: next((row for row in system.batches() if row.state == "RUNNING"), None)
    )

    def java_of_the_run() -> psutil.Process | None:
        # The run's process is the parent of its JVM: killed in the middle of its Spark job.
        return system.process("java", "org.apache.spark.deploy.SparkSubmit")

    java = system.until("the run has started Spark", java_of_the_run)
    run = next(
        process
        for process in java.parents()
        if "multiprocessing" in " ".join(process.cmdline()) or "execute_run" in " ".join(process.cmdline())
    )
    system.kill(run)
    system.settle()
    healed = next(row for row in system.batches() if row.batch_time == running.batch_time)
    assert healed.state == "COMPLETED"
    assert healed.attempt > running.attempt
    system.check_every_number_came_out_once()


@pytest.mark.outage
def test_postgres_itself(system: RunningSystem) -> None:
    """Dagster keeps its storage there too: whatever of it ends is started again."""
    epoch = system.epoch()
    postmaster = system.process("bin/postgres", "-D")
    assert postmaster is not None
    system.kill(postmaster)
    system.until("the driver log answers again", system.registered)
    system.receive(500)
    system.settle()
    system.check_every_number_came_out_once()
    assert system.epoch() == epoch, "the receiver was started anew"
