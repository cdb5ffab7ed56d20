"""Start a server's program, wait until it listens or answers, and kill it."""

from __future__ import annotations

import socket
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_DEADLINE_SECONDS = 60.0
_SHOWN = 2000  # characters of a log's end


def started(
    command: Sequence[str],
    at: tuple[str, int] | str,
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    seconds: float = _DEADLINE_SECONDS,
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to a log; return when it accepts connections, or answers at a URL."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    deadline = time.monotonic() + seconds
    while True:
        try:
            if isinstance(at, str):
                urllib.request.urlopen(at, timeout=5).close()
            else:
                socket.create_connection(at, timeout=1).close()
        except OSError:
            said = log.read_text(errors="replace")[-_SHOWN:]
            assert process.poll() is None, f"{command[0]} ended: {said}"
            assert time.monotonic() < deadline, f"{command[0]} does not answer at {at}: {said}"
            time.sleep(0.01)
        else:
            return process


def killed(process: subprocess.Popen[bytes] | None) -> None:
    """Kill a program, if it runs."""
    if process is not None:
        process.kill()
        process.wait(60)
