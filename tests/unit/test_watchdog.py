"""Test that a test which outlives its time-out ends its process, and that the run says where it was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_RUN = """
import sys
import pytest
from tests.support.watchdog import Watchdog
sys.exit(pytest.main(sys.argv[1:], plugins=[Watchdog(0.5)]))
"""
# A blocked signal has the same effect as a call that waits in C.
_TESTS = """
import signal
import threading

import pytest


def waits():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    threading.Event().wait(60)


@pytest.fixture
def waiting_at_the_end():
    yield
    waits()


def test_in_time():
    pass


def test_late():
    waits()


def test_failing(waiting_at_the_end):
    assert False


def test_after_it():
    pass
"""


@pytest.mark.parametrize("late", ["test_late", "test_failing"])
def test_a_test_that_no_time_out_ends_ends_its_process(tmp_path: Path, late: str) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(_TESTS)
    command = [
        *(sys.executable, "-c", _RUN, "-v", "-c", "/dev/null", "-p", "no:cacheprovider", "-p", "pytest_timeout"),
        *("-o", "timeout=1", *(f"{tests}::{name}" for name in ("test_in_time", late, "test_after_it"))),
    ]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    finished = subprocess.run(
        command, env=environment, cwd=_ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert finished.returncode == 1, finished
    assert "test_in_time PASSED" in finished.stdout
    assert "test_after_it" not in finished.stdout
    assert f'File "{tests}", line 10 in waits' in finished.stderr
