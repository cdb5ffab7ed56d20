"""Run a receiver process that is started before it is needed: it has loaded everything and waits for its receivers.

After a crash it takes only a line on a socket to replace a process, not a second of imports. While it waits it owns no
connection and no row in the driver log. One line makes it an ordinary receiver process, for good; it ends when its
standard input closes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from receiver_runtime.process.process_control import parse_receiver
from tracker_store.host.log_files import open_log

if TYPE_CHECKING:
    from collections.abc import Sequence


# Modules that are otherwise loaded at the first connection, and take time to load.
_MODULES = ("receiver_runtime.process.receiver_process", "sqlalchemy.dialects.postgresql.psycopg2", "psycopg2.extras")


@dataclass(frozen=True, slots=True)
class Begin:
    """Tell a spare process to run these (receiver id, assignment), and to write to this file from now on."""

    receivers: Sequence[tuple[int, int]]
    log_file: str


def load() -> None:
    """Import what every receiver process needs."""
    for module in _MODULES:
        importlib.import_module(module)


def encode_begin(receivers: Sequence[tuple[int, int]], log_file: Path) -> bytes:
    """Return the one line that a spare process waits for."""
    pairs = ",".join("{}:{}".format(*pair) for pair in receivers)
    return f"begin {pairs} {log_file}\n".encode()


def wait_for_work(descriptor: int) -> Begin | None:
    """Wait for the line, and write to its file from then on; return None if the agent is gone.

    Reads nothing after the line.
    """
    line = b""
    while not line.endswith(b"\n"):
        # Read byte by byte: what follows on this socket is for the receiver process.
        byte = os.read(descriptor, 1)
        if not byte:
            return None
        line += byte
    begin = _decode(line.decode().rstrip("\n"))
    # If a full disk has no room for a new file, go on writing to the spare process's own.
    with contextlib.suppress(OSError):
        log_file = open_log(Path(begin.log_file))
        for output in (1, 2):
            os.dup2(log_file.fileno(), output)
        log_file.close()
    return begin


def _decode(line: str) -> Begin:
    word, pairs, log_file = line.split(" ", 2)
    if word != "begin":
        raise ValueError(f"{line!r} is no line that a spare process knows")
    return Begin([parse_receiver(pair) for pair in pairs.split(",")], log_file)
