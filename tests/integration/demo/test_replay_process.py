"""Test the replay server as the demo's child: found, followed and ended."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from forebay.demo.replay_process import ReplayFailedError, ReplayProcess
from forebay.demo.replay_server import ReplayState

DEADLINE = 30.0


def test_progress_follows_the_reader() -> None:
    with ReplayProcess(rate=2_000) as replay:
        address = replay.wait_listening()
        assert replay.progress().lines == 0
        with socket.create_connection(address, timeout=DEADLINE) as reader:
            lines = 0
            while lines < 500:
                lines += reader.recv(1 << 16).count(b"\n")
            end = time.monotonic() + DEADLINE
            while replay.progress().lines < 500:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert replay.progress().state is ReplayState.SERVING
            assert replay.progress().connections == 1


def test_stop_ends_the_process_and_can_be_called_twice() -> None:
    replay = ReplayProcess(rate=100)
    replay.wait_listening()
    pid = replay.pid
    replay.stop()
    replay.stop()
    assert not psutil.pid_exists(pid)


def test_an_end_of_the_process_is_reported_as_an_error() -> None:
    with ReplayProcess(rate=100) as replay:
        replay.wait_listening()
        psutil.Process(replay.pid).kill()
        end = time.monotonic() + DEADLINE

        def look_until_the_deadline() -> None:
            # The process has ended only when its last thread has, a little after its state shows it.
            while time.monotonic() < end:
                replay.progress()
                time.sleep(0.02)

        with pytest.raises(ReplayFailedError, match="Exit code"):
            look_until_the_deadline()


def test_a_port_in_use_is_named() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        ReplayProcess(rate=1, port=taken.getsockname()[1]) as replay,
        pytest.raises(ReplayFailedError, match=r"[Aa]ddress"),
    ):
        replay.wait_listening()


def test_the_process_ends_when_its_parent_is_killed() -> None:
    program = (
        "import time; from forebay.demo.replay_process import ReplayProcess\n"
        "replay = ReplayProcess(rate=1); replay.wait_listening()\n"
        "print(replay.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=DEADLINE)
        child.wait(timeout=DEADLINE)
