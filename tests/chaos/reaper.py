"""End every process of a run, even if its harness was killed: ``python -m tests.chaos.reaper ROOT TOKEN``.

The harness starts it. It waits for the end of its standard input, which comes when the harness ends. A process belongs
to the run if its environment has the token or its command line contains the run's directory.
"""

from __future__ import annotations

import contextlib
import os
import sys

import psutil

VARIABLE = "CHAOS_RUN"
_SECONDS = 10.0


def processes(root: str, token: str) -> list[psutil.Process]:
    """Return every process of the run except harness and reaper, whatever its parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            ours = root in " ".join(command) or process.environ().get(VARIABLE) == token
        except psutil.Error:
            continue
        if ours and process.pid != os.getpid() and "tests.chaos.reaper" not in command:
            found.append(process)
    return found


def end(root: str, token: str) -> None:
    """Kill the run's processes."""
    left = processes(root, token)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_SECONDS)


if __name__ == "__main__":
    sys.stdin.read()
    end(*sys.argv[1:3])
