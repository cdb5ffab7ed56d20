"""Check that Ctrl-C ends `forebay demo` on its real services with 130 at any moment, and leaves no process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from pathlib import Path

START_SECONDS = 180.0
STOP_SECONDS = 90.0


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes that run for this home, by their environment or arguments."""
    found: list[str] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            command = process.cmdline()
            if process.environ().get("FOREBAY_HOME") == str(home) or str(home) in " ".join(command):
                found.append(" ".join(command))
    return found


@pytest.mark.timeout(400)
@pytest.mark.slow
@pytest.mark.parametrize("moment", ["postgres is ready", "records in"])
def test_ctrl_c_leaves_no_process(tmp_path: Path, moment: str) -> None:
    home = tmp_path / "demo"
    log = tmp_path / "demo.log"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "forebay.cli", "demo", "--home", str(home), "--rate", "500"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        end = time.monotonic() + START_SECONDS
        while moment not in log.read_text(errors="replace"):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        assert processes_of(home), "this check would find nothing even if all were left"
        # As a terminal does: to the whole foreground process group.
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=STOP_SECONDS) == 130, log.read_text()
    finally:
        process.kill()
        process.wait(60)
    assert "all services are stopped" in log.read_text()
    assert processes_of(home) == []
