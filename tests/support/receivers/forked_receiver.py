"""A receiver process that is forked: a program of ``tests.support.machine.forked_processes``."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import ReceiverProcesses
from tests.support.machine.forked_processes import CAN_FORK, ForkedProcess, fork

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from typing import IO

_WITHOUT_KEY = 4  # arguments


class ForkedReceivers(ReceiverProcesses):
    """Start receiver processes by forking where that does the same, in place of an interpreter and its imports."""

    def _launch(self, first: str, arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        if CAN_FORK and not first and len(arguments) == _WITHOUT_KEY:
            return fork_receiver(arguments, log)
        return super()._launch(first, arguments, log)


def fork_receiver(arguments: Sequence[str], log: IO[bytes]) -> ForkedProcess:
    """Start a process with the arguments of ``main``; it writes to `log`, and ends when its `stdin` closes."""
    reading, writing = os.pipe()
    try:
        return fork(
            __name__,
            arguments,
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
