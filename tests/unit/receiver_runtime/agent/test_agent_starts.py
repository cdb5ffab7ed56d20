"""Check which receivers an agent starts."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from receiver_runtime.agent.agent import Agent, AgentSettings
from receiver_runtime.agent.child_process import ChildProcess
from receiver_runtime.agent.receiver_processes import Member, StartedProcess
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.connection.engine import create_engine

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest


def test_the_number_of_hanging_processes_that_can_not_be_killed_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that waits for a disk that no longer answers can't even be killed."""
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    agent = Agent(
        engine,
        AgentSettings(
            name="here",
            host="here",
            slots=1,
            receiver_command=lambda _: [],
            role_commands={},
            log_directory=tmp_path,
        ),
    )
    started: list[Sequence[tuple[int, int]]] = []
    monkeypatch.setattr(agent._receivers, "_start_receivers", started.append)
    ours, theirs = socket.socketpair()

    def hanging(number: int) -> StartedProcess:
        child = ChildProcess(f"receiver-{number}", None, 0.0, tmp_path / "log")  # type: ignore[arg-type]
        return StartedProcess(child, ours, {}, strays={7})

    with ours, theirs:
        # A process in which other receivers run does not count, however often this one failed there.
        shared = hanging(0)
        shared.members[8] = Member(1, 0.0, accepted=True)
        agent._receivers.processes = [shared, hanging(1), hanging(2)]
        agent._receivers.start_wanted({7: 1})
        assert started == [[(7, 1)]]
        agent._receivers.processes.append(hanging(3))
        agent._receivers.start_wanted({7: 1})
        assert started == [[(7, 1)]]
        # One hanging process has ended: the disk answers again.
        del agent._receivers.processes[1]
        agent._receivers.start_wanted({7: 1})
        assert started == [[(7, 1)]] * 2
    engine.dispose()


def started_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receivers: int, *, given: int | None = None, running: int = 0
) -> list[int]:
    """Return how many receivers each process has once `receivers` are placed here, `running` of them before."""
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    agent = Agent(
        engine,
        AgentSettings(
            name="here",
            host="here",
            slots=1000,
            receiver_command=lambda _: [],
            role_commands={},
            log_directory=tmp_path,
            receivers_per_process=given,
        ),
    )

    def start(group: Sequence[tuple[int, int]]) -> None:
        child = ChildProcess("receivers", None, 0.0, tmp_path / "log")  # type: ignore[arg-type]
        members = {receiver_id: Member(assignment, 0.0, accepted=True) for receiver_id, assignment in group}
        agent._receivers.processes.append(StartedProcess(child, socket.socket(), members))

    monkeypatch.setattr(agent._receivers, "_start_receivers", start)
    monkeypatch.setattr("receiver_runtime.agent.receiver_processes._send", lambda *_: True)
    for count in (running, receivers):
        agent._receivers.start_wanted(dict.fromkeys(range(1, count + 1), 1))
    for process in agent._receivers.processes:
        process.line.close()
    engine.dispose()
    return [len(process.members) for process in agent._receivers.processes]


def test_receivers_share_processes_when_a_host_has_more_than_sixteen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because 50 processes used up the 200 connections of the embedded server."""
    assert started_together(tmp_path, monkeypatch, 16) == [1] * 16
    assert started_together(tmp_path, monkeypatch, 17) == [2] * 8 + [1]
    assert started_together(tmp_path, monkeypatch, 1000) == [63] * 15 + [55]
    # Those that run stay where they are; the next one joins one of them.
    assert sorted(started_together(tmp_path, monkeypatch, 17, running=16)) == [1] * 15 + [2]
    assert sorted(started_together(tmp_path, monkeypatch, 100, running=20)) == [2] + [7] * 14
    # A person's number holds.
    assert started_together(tmp_path, monkeypatch, 17, given=1) == [1] * 17
    assert started_together(tmp_path, monkeypatch, 17, given=10) == [10, 7]


def test_a_fenced_receiver_is_started_again_under_its_assignment_only_if_no_process_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was declared dead before it held the receiver leaves it SCHEDULED under the same assignment."""
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    now = 0.0
    agent = Agent(
        engine,
        AgentSettings(
            name="here",
            host="here",
            slots=1,
            receiver_command=lambda _: [],
            role_commands={},
            log_directory=tmp_path,
        ),
        clock=lambda: now,
    )
    started: list[Sequence[tuple[int, int]]] = []
    monkeypatch.setattr(agent._receivers, "_start_receivers", started.append)
    fenced = Member(3, 0.0, accepted=True)
    agent._receivers._receiver_ended(7, fenced, ExitCode.FENCED, "declared dead")
    agent._receivers.start_wanted({7: 3}, set())
    assert started == []
    agent._receivers.start_wanted({7: 3}, {7})
    assert started == [[(7, 3)]]
    # If that helps nothing, the starts come later and later.
    agent._receivers._receiver_ended(7, fenced, ExitCode.FENCED, "declared dead")
    agent._receivers.start_wanted({7: 3}, {7})
    assert started == [[(7, 3)]]
    now += 60.0
    agent._receivers.start_wanted({7: 3}, {7})
    assert started == [[(7, 3)]] * 2
    # One that a stop has ended is refused, whichever process has it.
    agent._receivers._receiver_ended(8, fenced, ExitCode.STOPPED, "stopped")
    agent._receivers.start_wanted({8: 3}, {8})
    assert started == [[(7, 3)]] * 2
    engine.dispose()
