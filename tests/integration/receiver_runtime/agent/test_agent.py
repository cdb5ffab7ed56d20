"""Test a real agent and its receiver processes: crashes, restarts, the spare process, and a stop during an outage."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from forebay.testing.cutting_proxy import CuttingProxy, through
from forebay.testing.receiver_processes import eventually
from receiver_runtime.agent import agent as agent_module
from receiver_runtime.agent import child_process, receiver_processes, spare_keeper
from receiver_runtime.agent.agent import Agent, AgentSettings
from receiver_runtime.agent.batch_drivers import BatchDrivers
from receiver_runtime.agent.left_processes import LeftProcesses
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.receivers.sockets.text_declaration import SocketText
from tests.integration.receiver_runtime.host_rig import HostRig, host_rig
from tests.integration.receiver_runtime.receiver_rig import NumberedSource
from tests.support.machine.unread_bytes import unread_bytes
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.receivers.processes import end_processes_of_pid, expire_process, register_process
from tracker_store.receivers.receivers import placements
from tracker_store.reports.checks import check_data
from tracker_store.schema.states import ProcessKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_the_spare_process_takes_over_from_one_that_was_killed(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spare_keeper, "SPARE_AFTER_SECONDS", 0.5)
    # Interpreters of their own, as an agent of the product starts them.
    with host_rig(database_url, tmp_path, receivers=1, receivers_per_process=1, spare=True, forks=False) as (
        rig,
        sources,
    ):
        [receiver_id] = sources
        rig.place(receiver_id)
        rig.flow([receiver_id])
        eventually(lambda: len(rig.processes()) == 2, "the spare process")
        # Find the process by its row: if the placement came late, the first process may have been a spare process too.
        holder = "SELECT p.pid FROM forebay.receivers r JOIN forebay.processes p ON p.id = r.process_id"
        [(held_by,)] = rig.execute(holder)
        [spare] = [process for process in rig.processes() if process.pid != held_by]
        assert "--spare" in spare.cmdline()
        for killed in rig.processes():
            if killed != spare:
                killed.kill()
        eventually(lambda: rig.epochs() == {receiver_id: 2}, "the second claim")
        rig.flow([receiver_id])
        assert rig.execute(holder) == [(spare.pid,)]
        # A new spare process starts, and the output of the first one is in the receiver's log.
        eventually(lambda: len(rig.processes()) == 2, "the next spare process")
        log = (tmp_path / "logs" / f"receiver-{receiver_id}.log").read_text()
        assert log.count("starting on") >= 2

        # Killing a spare process affects no receiver, and a new one starts.
        [next_spare] = [process for process in rig.processes() if process.pid != spare.pid]
        next_spare.kill()
        eventually(
            lambda: {process.pid for process in rig.processes()} - {spare.pid, next_spare.pid}, "one more spare process"
        )
        assert rig.epochs() == {receiver_id: 2}
        assert len(rig.events("EXITED")[receiver_id]) == 1
        everybody = rig.processes()
    assert not any(process.is_running() for process in everybody)
    numbers = rig.numbers(receiver_id)
    assert numbers == sorted(set(numbers))


def test_the_end_of_a_receiver_process_is_recorded_before_its_successor_starts(
    database_url: str, tmp_path: Path
) -> None:
    """Check that the leader can't expire the process later, and take the receiver from a successor without a claim."""
    with host_rig(database_url, tmp_path, receivers=1, receivers_per_process=1) as (rig, [receiver_id]):
        rig.place(receiver_id)
        rig.flow([receiver_id])
        [killed] = rig.processes()
        # A process whose end could not be reported during an outage had the pid that this one got.
        ended_pids = rig._agent._ended_pids
        ended_pids.append(killed.pid)
        eventually(lambda: not ended_pids, "the agent's look at it")
        [before] = rig.execute("SELECT * FROM forebay.processes WHERE pid = :pid", pid=killed.pid)
        assert before.ended_at is None, "it runs"
        rig.flow([receiver_id])
        assert rig.epochs() == {receiver_id: 1}
        killed.kill()
        eventually(lambda: rig.epochs() == {receiver_id: 2}, "the second claim")
        [ended] = rig.execute("SELECT * FROM forebay.processes WHERE id = :id", id=before.id)
        [successor] = rig.execute("SELECT * FROM forebay.processes WHERE kind = 'receiver' AND id > :id", id=before.id)
        assert ended.end_reason == "its process ended"
        assert ended.ended_at <= successor.started_at

        # As a leader does that has found the process silent.
        with connect(rig.engine) as connection:
            term = take_leadership(connection, seen=read_leadership(connection), holder="the test")
            assert term is not None
            assert (
                expire_process(connection, term=term, process_id=before.id, heartbeat=ended.heartbeat, why="silent")
                == "moved"
            )
        rig.flow([receiver_id])
        assert rig.epochs() == {receiver_id: 2}
        assert rig.execute("SELECT assignment FROM forebay.receivers") == [(1,)]


def test_an_agent_that_stops_records_the_end_of_a_receiver_process_that_it_had_to_kill(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the next placement of its receiver does not wait for it to drain."""
    for module in (agent_module, child_process, receiver_processes):
        monkeypatch.setattr(module, "STOP_GRACE_SECONDS", 0.1)
    with host_rig(database_url, tmp_path, receivers=1, receivers_per_process=1) as (rig, [receiver_id]):
        rig.place(receiver_id)
        rig.flow([receiver_id])
        [hanging] = rig.processes()
        hanging.suspend()
        rig.stop()
        with connect(rig.engine) as connection:
            [placement] = placements(connection)
        assert (placement.state, placement.agent_id) == (ReceiverState.INACTIVE, None)
        assert not placement.handing_over


def test_a_successor_starts_under_the_assignment_that_the_leader_has_just_made(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the case that the leader is faster: under the earlier assignment a successor would only be refused."""

    def after_the_leader(connection: sa.Connection, *, hosts: Sequence[str], pid: int, why: str) -> int:
        # What the leader does after the agent saw that the process has ended and before the agent reports it.
        connection.execute(
            sa.text("UPDATE forebay.receivers SET assignment = assignment + 1, state = 'SCHEDULED', process_id = NULL")
        )
        return end_processes_of_pid(connection, hosts=hosts, pid=pid, why=why)

    with host_rig(database_url, tmp_path, receivers=1, receivers_per_process=1) as (rig, [receiver_id]):
        rig.place(receiver_id)
        rig.flow([receiver_id])
        [killed] = rig.processes()
        monkeypatch.setattr("receiver_runtime.agent.agent.end_processes_of_pid", after_the_leader)
        killed.kill()
        eventually(lambda: rig.epochs() == {receiver_id: 2}, "the second claim")
        monkeypatch.undo()
        rig.flow([receiver_id])
        assert "not ours to run" not in (tmp_path / "logs" / f"receiver-{receiver_id}.log").read_text()
        assert rig.execute("SELECT assignment FROM forebay.receivers") == [(2,)]


def test_a_leadership_that_can_not_be_ended_now_is_left_to_expire(
    engine: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the agent asks once: a killed tracker's statement may hold the row.

    An agent that asked again and again would send no heartbeat.
    """
    asked: list[str] = []

    def wait_in_vain(_: sa.Connection, holder: str) -> bool:
        asked.append(holder)
        raise DriverLogUnavailableError("canceling statement due to lock timeout")

    monkeypatch.setattr("receiver_runtime.agent.agent.end_leadership_of", wait_in_vain)
    agent = Agent(
        engine,
        AgentSettings(
            name="here",
            host="here",
            slots=1,
            receiver_command=lambda _: [],
            role_commands={"tracker": []},
            log_directory=tmp_path,
        ),
    )
    agent._ended_pids.append(2**31 - 1)
    with connect(engine) as connection:
        with pytest.raises(DriverLogUnavailableError):
            agent._tick(connection)
        agent._tick(connection)
    assert len(asked) == 1


def test_the_end_of_a_batch_driver_is_recorded_with_how_it_ended(engine: sa.Engine, tmp_path: Path) -> None:
    pid = 2**31 - 1
    drivers = BatchDrivers([], tmp_path)
    settings = AgentSettings(
        name="here", host="here", slots=1, receiver_command=lambda _: [], role_commands={}, log_directory=tmp_path
    )
    agent = Agent(engine, settings, batch_drivers=drivers)
    with connect(engine) as connection:
        register_process(connection, kind=ProcessKind.BATCH_DRIVER, name="d", host="here", pid=pid)
        drivers.how_ended[pid] = "was killed by SIGKILL"
        agent._ended_pids.append(pid)
        agent._report_ended_pids(connection)
        reason = connection.execute(sa.text("SELECT end_reason FROM forebay.processes")).scalar_one()
    assert reason == "its process ended (was killed by SIGKILL)"
    assert not drivers.how_ended, "a later process may have the pid"


def test_an_agent_reports_the_end_of_each_process_that_a_killed_agent_left(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.processes"
    sleeping = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
    gone, living = sleeping
    with ExitStack() as stack:
        for process in sleeping:
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
        LeftProcesses(file, host="here").note([process.pid for process in sleeping])
        rig = HostRig(database_url, tmp_path, receivers_per_process=1, left_processes=LeftProcesses(file, host="here"))
        stack.callback(rig.engine.dispose)
        with connect(rig.engine) as connection:
            agent, receiver, elsewhere = (
                register_process(connection, kind=kind, name="left", host=host, pid=pid)
                for kind, host, pid in (
                    (ProcessKind.AGENT, "here", gone.pid),
                    (ProcessKind.RECEIVER, "here", living.pid),
                    (ProcessKind.AGENT, "elsewhere", gone.pid),
                )
            )
        gone.kill()
        gone.wait(60)
        rig.start()
        stack.callback(rig.stop)
        ended = "SELECT id FROM forebay.processes WHERE name = 'left' AND ended_at IS NOT NULL ORDER BY id"
        eventually(lambda: rig.execute(ended) == [(agent,)], "the end of the one that is gone")
        living.kill()
        living.wait(60)
        eventually(lambda: rig.execute(ended) == [(agent,), (receiver,)], "the end of the other one")
        assert rig.execute("SELECT ended_at FROM forebay.processes WHERE id = :id", id=elsewhere) == [(None,)]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="asks Linux what the receiver has read")
def test_an_agent_that_stops_while_postgres_is_away_leaves_what_it_accepted_for_salvage(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that receivers drain to disk, can't register and are killed; the next agent's register it all, once."""
    for module in (agent_module, child_process, receiver_processes):
        monkeypatch.setattr(module, "STOP_GRACE_SECONDS", 4.0)
    with ExitStack() as stack:
        proxy = stack.enter_context(closing(CuttingProxy(database_url)))
        source = stack.enter_context(closing(NumberedSource(pause=0.002)))
        first = HostRig(through(database_url, proxy.port), tmp_path, receivers_per_process=1)
        stack.callback(first.engine.dispose)
        declared = SocketText(host="127.0.0.1", port=source.port).model_dump(mode="json")
        receiver_id = first.declare("numbers", declared, block_interval="50ms", block_queue_size=100)
        first.start()
        first.place(receiver_id)
        first.flow([receiver_id])

        proxy.away = True
        proxy.cut()
        sent = source.sent
        eventually(lambda: source.sent > sent + 200, "200 lines that can not be registered")
        source.pause()
        eventually(lambda: unread_bytes(source.port) == 0, "the receiver's reading")
        processes = first.processes()
        first.stop()
        assert not any(process.is_running() for process in processes)
        proxy.away = False

        # No process signed off: the tracker finds the old agent silent and places the receiver again.
        second = HostRig(through(database_url, proxy.port), tmp_path, receivers_per_process=1)
        stack.callback(second.engine.dispose)
        before = second.records()[receiver_id]
        assert before < source.sent - 100, "nothing was left to be salvaged"
        assert stored(tmp_path) == list(range(source.sent))
        second.start()
        stack.callback(second.stop)
        second.place(receiver_id)
        eventually(lambda: second.records()[receiver_id] == source.sent, "all that was accepted")
        assert second.numbers(receiver_id) == list(range(source.sent))
        # The event is written after the blocks are registered.
        eventually(lambda: second.events("SALVAGED"), "the event")
        assert len(second.events("SALVAGED")[receiver_id]) == 1
        source.sending.set()
        second.flow([receiver_id])
        engine = create_engine(database_url, application_name="tests")
        stack.callback(engine.dispose)
        with connect(engine) as connection:
            assert [result for result in check_data(connection) if not result.passed] == []


def stored(root: Path) -> list[int]:
    """Return every record in a file, by file and place."""
    store = LocalBlockStore(root / "blocks")
    found: list[int] = []
    for path in sorted(store.segment_paths()):
        for item in store.scan(path):
            assert isinstance(item, IntactFrame)
            for batch in store.read_batches(path, item.offset, item.length, item.crc32c):
                found.extend(int(value) for value in batch.column(0).to_pylist())
    return found


def test_a_receiver_starts_under_an_older_assignment_than_a_refused_one(database_url: str, tmp_path: Path) -> None:
    """Check after a failover that lost the newer assignments: refusals under those do not apply to later ones."""
    with host_rig(database_url, tmp_path, receivers=1, receivers_per_process=1) as (rig, [receiver_id]):
        rig.execute("UPDATE forebay.receivers SET assignment = 7")
        rig.place(receiver_id)
        rig.flow([receiver_id])
        rig.execute("UPDATE forebay.receivers SET assignment = 1")
        rig.place(receiver_id)
        eventually(lambda: rig.epochs() == {receiver_id: 2}, "the second claim")
        rig.flow([receiver_id])
        assert rig.execute("SELECT assignment, state FROM forebay.receivers") == [(2, "ACTIVE")]
