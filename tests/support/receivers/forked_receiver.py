"""Receiver processes that are forked: a program of ``tests.support.machine.forked_processes``.

Its arguments are the driver log, the block store, a port, and what `forebay receiver` takes: pairs of receiver and
assignment, or ``--spare``. A receiver that begins to read from a source on that port ends its process; 0: none does.
``python -m`` this module is the same in an interpreter of its own.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from forebay.testing.receiver_processes import ReceiverProcesses
from receiver_runtime.agent.child_environment import environment_without
from receiver_runtime.agent.child_process import ChildProcess, ChildStarter
from tests.support.machine.forked_processes import CAN_FORK, ForkedProcess, fork
from tracker_store.host.process_output import open_child_log

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from receiver_runtime.sources.source import Source
    from receiver_runtime.supervisor.receiver import Receiver

#: What a command of this program begins with.
PROGRAM = (sys.executable, "-m", __name__)
_WITHOUT_KEY = 4  # arguments


class ForkedReceivers(ReceiverProcesses):
    """Start receiver processes by forking where that does the same, in place of an interpreter and its imports."""

    def _launch(self, first: str, arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        if CAN_FORK and not first and len(arguments) == _WITHOUT_KEY:
            return fork_receiver(arguments, log)
        return super()._launch(first, arguments, log)


class ForkingStarter(ChildStarter):
    """Start the processes of an agent whose command is this program by forking, and keep all that it started."""

    def __init__(self, *of_agent: Any, started: list[ChildProcess], forks: bool, **by_name: Any) -> None:  # noqa: ANN401  what the agent gives
        super().__init__(*of_agent, **by_name)
        self._started = started
        self._forks = forks and CAN_FORK

    def start(self, name: str, command: Sequence[str], *, stdin: int = subprocess.PIPE) -> ChildProcess:
        """Start a child, as an agent does."""
        if self._forks and tuple(command[: len(PROGRAM)]) == PROGRAM:
            child = self._fork(name, command[len(PROGRAM) :], stdin)
        else:
            child = super().start(name, command, stdin=stdin)
        self._started.append(child)
        return child

    def _fork(self, name: str, arguments: Sequence[str], stdin: int) -> ChildProcess:
        log_file = self.log_file(name)
        with open_child_log(log_file) as output:
            descriptors = (stdin, output.fileno(), output.fileno())
            environment = environment_without(self._withheld)
            process = fork(__name__, arguments, descriptors=descriptors, environment=environment)
        return ChildProcess(name, process, self._clock(), log_file)


def fork_receiver(arguments: Sequence[str], log: IO[bytes]) -> ForkedProcess:
    """Start a process for one receiver; it writes to `log`, and ends when its `stdin` closes."""
    receiver_id, assignment, database_url, block_store = arguments
    reading, writing = os.pipe()
    try:
        return fork(
            __name__,
            [database_url, block_store, "0", f"{receiver_id}:{assignment}"],
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
    """Run the receivers."""
    from receiver_runtime.agent.spare_process import wait_for_work  # noqa: PLC0415  as above
    from receiver_runtime.process import receiver_process  # noqa: PLC0415
    from receiver_runtime.process.process_control import parse_receiver  # noqa: PLC0415
    from receiver_runtime.process.receiver_registry import make_receiver  # noqa: PLC0415

    database_url, block_store, poison, *words = arguments

    def make(source: Source) -> Receiver:
        made = make_receiver(source)
        if getattr(source, "port", None) == int(poison):
            made.on_start = lambda: os._exit(3)  # type: ignore[method-assign]
        return made

    if poison != "0":
        patch("receiver_runtime.process.receiver_preparation.make_receiver", make).start()
    if words != ["--spare"]:
        receivers: Sequence[tuple[int, int]] = [parse_receiver(word) for word in words]
    elif (begin := wait_for_work(sys.stdin.fileno())) is not None:
        receivers = begin.receivers
    else:
        return 0
    return receiver_process.run(receivers, database_url=database_url, block_store=block_store)


if __name__ == "__main__":
    load()
    sys.exit(main(sys.argv[1:]))
