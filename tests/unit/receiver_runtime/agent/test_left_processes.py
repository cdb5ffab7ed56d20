"""Check what an agent finds out about the processes that a killed agent left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.agent.left_processes import LeftProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that waits until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        assert process.stdin is not None
        process.stdin.close()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(60)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.processes"


def test_a_process_that_ended_is_named_once_and_a_live_one_is_not(file: Path) -> None:
    with child() as first, child() as second:
        LeftProcesses(file, host="here").note([first.pid, second.pid])
        end(first)
        left = LeftProcesses(file, host="here")
        assert left.take_gone() == [first.pid]
        assert left.take_gone() == []
        end(second)
        assert left.take_gone() == [second.pid]


def test_a_surviving_process_is_passed_on_to_later_agents(file: Path) -> None:
    with child() as lasting:
        LeftProcesses(file, host="here").note([lasting.pid])
        LeftProcesses(file, host="here").note([])
        end(lasting)
        assert LeftProcesses(file, host="here").take_gone() == [lasting.pid]


def test_a_zombie_is_gone(file: Path) -> None:
    """A zombie keeps its pid until its parent reads the exit code, but does nothing more."""
    with child() as process:
        LeftProcesses(file, host="here").note([process.pid])
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert LeftProcesses(file, host="here").take_gone() == [process.pid]


def test_a_reused_pid_does_not_count_as_the_old_process(file: Path) -> None:
    with child() as successor:
        LeftProcesses(file, host="here").note([successor.pid])
        noted = json.loads(file.read_text())
        noted["processes"] = [[pid, created - 3600] for pid, created in noted["processes"]]
        file.write_text(json.dumps(noted))
        assert LeftProcesses(file, host="here").take_gone() == []


@pytest.mark.parametrize("key", ["host", "machine"])
def test_a_note_from_another_host_or_machine_is_ignored(file: Path, key: str) -> None:
    with child() as process:
        LeftProcesses(file, host="here").note([process.pid])
        end(process)
        noted = json.loads(file.read_text())
        file.write_text(json.dumps({**noted, key: "another"}))
        assert LeftProcesses(file, host="here").take_gone() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "here"}'])
def test_an_unreadable_note_is_ignored(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    assert LeftProcesses(file, host="here").take_gone() == []


def test_an_agent_that_reported_everything_leaves_no_note(file: Path) -> None:
    left = LeftProcesses(file, host="here")
    left.note([])
    assert file.exists()
    left.forget()
    assert not file.exists()


def test_an_agent_signs_off_even_if_its_note_can_not_be_removed(file: Path) -> None:
    """This happens on a read-only disk, for example."""
    file.mkdir(parents=True)
    LeftProcesses(file, host="here").forget()
