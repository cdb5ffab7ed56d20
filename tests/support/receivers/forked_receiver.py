"""A receiver process that is forked: a program of ``tests.support.machine.forked_processes``."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from tests.support.machine.forked_processes import ForkedProcess, fork

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO


def fork_receiver(receiver: tuple[int, int], *, database_url: str, block_store: str, log: IO[bytes]) -> ForkedProcess:
    """Start a process for a receiver and its assignment; it writes to `log`, and ends when its `stdin` closes."""
    reading, writing = os.pipe()
    try:
        return fork(
            __name__,
            [*map(str, receiver), database_url, block_store],
            descriptors=(reading, log.fileno(), log.fileno()),
            stdin=os.fdopen(writing, "wb"),
        )
    finally:
        os.close(reading)


def load() -> None:
    """Import what a receiver process has loaded after its first connection and its first records."""
    from receiver_runtime.agent.spare_process import load  # noqa: PLC0415  a test process loads this module, and not those

    load()
    for module in ("encodings.idna", "pyarrow.compute", "receiver_runtime.receivers.run_receiver"):
        importlib.import_module(module)


def main(arguments: Sequence[str]) -> int:
    """Run the receiver."""
    from receiver_runtime.process.receiver_process import run  # noqa: PLC0415  as above

    receiver_id, assignment, database_url, block_store = arguments
    return run([(int(receiver_id), int(assignment))], database_url=database_url, block_store=block_store)
