"""What an agent finds of the processes of one that was killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.left_processes import LeftProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits until it is killed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run" / "agent.processes"


def test_a_process_that_is_gone_is_named_once_and_one_that_lives_is_not(file: Path) -> None:
    with child() as first, child() as second:
        LeftProcesses(file, host="here").note([first.pid, second.pid])
        end(first)
        left = LeftProcesses(file, host="here")
        assert left.take_gone() == [first.pid]
        assert left.take_gone() == []
        end(second)
        assert left.take_gone() == [second.pid]


def test_one_that_still_lives_is_known_to_the_agent_after_the_next_too(file: Path) -> None:
    with child() as lasting:
        LeftProcesses(file, host="here").note([lasting.pid])
        LeftProcesses(file, host="here").note([])
        end(lasting)
        assert LeftProcesses(file, host="here").take_gone() == [lasting.pid]


def test_a_zombie_is_gone(file: Path) -> None:
    """It has its pid until somebody asks for its exit code, and does nothing more."""
    with child() as process:
        LeftProcesses(file, host="here").note([process.pid])
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert LeftProcesses(file, host="here").take_gone() == [process.pid]


def test_a_pid_that_another_process_has_by_now_ends_nobody(file: Path) -> None:
    with child() as successor:
        LeftProcesses(file, host="here").note([successor.pid])
        noted = json.loads(file.read_text())
        noted["processes"] = [[pid, created - 3600] for pid, created in noted["processes"]]
        file.write_text(json.dumps(noted))
        assert LeftProcesses(file, host="here").take_gone() == []


@pytest.mark.parametrize("key", ["host", "machine"])
def test_a_note_from_elsewhere_says_nothing_of_the_processes_here(file: Path, key: str) -> None:
    with child() as process:
        LeftProcesses(file, host="here").note([process.pid])
        end(process)
        noted = json.loads(file.read_text())
        file.write_text(json.dumps({**noted, key: "another"}))
        assert LeftProcesses(file, host="here").take_gone() == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": "here"}'])
def test_a_note_that_can_not_be_read_is_no_note(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.write_text(text)
    assert LeftProcesses(file, host="here").take_gone() == []


def test_an_agent_that_said_all_itself_leaves_no_note(file: Path) -> None:
    left = LeftProcesses(file, host="here")
    left.note([])
    assert file.exists()
    left.forget()
    assert not file.exists()


def test_a_note_that_can_not_be_removed_hinders_no_agent_from_signing_off(file: Path) -> None:
    """On a disk that is read-only, say."""
    file.mkdir(parents=True)
    LeftProcesses(file, host="here").forget()
