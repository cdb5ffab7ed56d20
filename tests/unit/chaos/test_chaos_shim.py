"""Check that the library that `make chaos` preloads steps a process's clock, but not its monotonic clock."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.chaos.shim import Shim, compiled, is_possible

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not is_possible(), reason="there is no C compiler")

CLOCKS = "import sys, time\nfor _ in sys.stdin: print(time.time(), time.monotonic(), flush=True)"


@pytest.fixture
def shim(tmp_path: Path) -> Shim:
    return Shim(compiled(tmp_path), tmp_path / "control")


def test_clocks_are_stepped_and_restored_while_a_process_runs(shim: Shim) -> None:
    with subprocess.Popen(
        [sys.executable, "-I", "-c", CLOCKS],
        env={**os.environ, **shim.environment()},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for step in (0, 3600, -3600, 0):
            shim.step_clock(step)
            before = time.time(), time.monotonic()
            process.stdin.write("now\n")
            process.stdin.flush()
            wall, monotonic = map(float, process.stdout.readline().split())
            after = time.time(), time.monotonic()
            assert before[0] + step <= wall <= after[0] + step
            assert before[1] <= monotonic <= after[1]


def test_a_sync_waits_while_syncs_are_slow(shim: Shim, tmp_path: Path) -> None:
    sync = "import os, sys, time; f = open(sys.argv[1], 'wb'); b = time.monotonic(); os.fdatasync(f.fileno()); "
    command = [sys.executable, "-I", "-c", sync + "print(time.monotonic() - b)", str(tmp_path / "file")]
    shim.slow_syncs(300)
    took = subprocess.run(command, env={**os.environ, **shim.environment()}, check=True, capture_output=True, text=True)
    assert float(took.stdout) >= 0.3
