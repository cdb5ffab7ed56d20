"""A receiver process that is started before it is needed: everything is loaded, and it waits for its receivers.

What follows a crash is then a line on a socket, and not a second of imports. It owns nothing while it waits: no
connection, no row in the driver log. One line makes it an ordinary receiver process, for good; the end of its standard
input ends it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.process_control import parse_receiver

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


# What is loaded at the first connection only, and takes its time.
_MODULES = ("receiver_runtime.receiver_process", "sqlalchemy.dialects.postgresql.psycopg2", "psycopg2.extras")


@dataclass(frozen=True, slots=True)
class Begin:
    """To a spare process: be the process of these (receiver id, assignment), and write to this file from now on."""

    receivers: Sequence[tuple[int, int]]
    log_file: str


def load() -> None:
    """Import what every receiver process needs."""
    for module in _MODULES:
        importlib.import_module(module)


def encode_begin(receivers: Sequence[tuple[int, int]], log_file: Path) -> bytes:
    """The one line that a spare process waits for."""
    pairs = ",".join("{}:{}".format(*pair) for pair in receivers)
    return f"begin {pairs} {log_file}\n".encode()


def wait_for_work(descriptor: int) -> Begin | None:
    """Wait for the line, and write to its file from then on; None when the agent is gone. Reads nothing behind it."""
    line = b""
    while not line.endswith(b"\n"):
        # One by one: what comes next on this socket is for the receiver process.
        byte = os.read(descriptor, 1)
        if not byte:
            return None
        line += byte
    begin = _decode(line.decode().rstrip("\n"))
    # Where a full disk has no room for a new file, it goes on in the spare process's own.
    with contextlib.suppress(OSError):
        log_file = os.open(begin.log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for output in (1, 2):
            os.dup2(log_file, output)
        os.close(log_file)
    return begin


def _decode(line: str) -> Begin:
    word, pairs, log_file = line.split(" ", 2)
    if word != "begin":
        raise ValueError(f"{line!r} is no line that a spare process knows")
    return Begin([parse_receiver(pair) for pair in pairs.split(",")], log_file)
