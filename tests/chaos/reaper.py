"""End every process of a run, also when its harness was killed: ``python -m tests.chaos.reaper ROOT TOKEN``.

Started by the harness, it waits for the end of its standard input, which comes with the harness's own. A process is the
run's if its environment has the token or its command line the run's directory.
"""

from __future__ import annotations

import contextlib
import os
import sys

import psutil

VARIABLE = "CHAOS_RUN"
_SECONDS = 10.0


def processes(root: str, token: str) -> list[psutil.Process]:
    """Return every process of the run but harness and reaper, whoever is its parent now."""
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
    """Kill them."""
    left = processes(root, token)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_SECONDS)


if __name__ == "__main__":
    sys.stdin.read()
    end(*sys.argv[1:3])
