"""Start a server's program, and wait until it listens."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_DEADLINE_SECONDS = 60.0


def started(
    command: Sequence[str], address: tuple[str, int], log: Path, *, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program whose output goes to a log; return when it accepts connections."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            said = log.read_text()
            assert process.poll() is None, f"{command[0]} ended: {said}"
            assert time.monotonic() < deadline, f"{command[0]} takes no connections: {said}"
            time.sleep(0.01)
        else:
            return process
