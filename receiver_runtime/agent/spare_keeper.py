"""Keep a spare process ready for the next receivers to start; see ``spare_process`` for its other side."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_process import ChildProcess, describe_exit
from receiver_runtime.agent.crash_history import CrashHistory
from receiver_runtime.agent.spare_process import encode_begin
from receiver_runtime.process.process_control import socket_pair
from tracker_store.host.log_files import open_log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from receiver_runtime.agent.child_process import ChildStarter

#: Seconds since the last start of a receiver before a spare is started: receivers that start need the processor more.
SPARE_AFTER_SECONDS = 3.0
_NAME = "spare"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Spare:
    """Hold a process that waits for receivers, and the agent's end of the line to it."""

    child: ChildProcess
    line: socket.socket


class SpareKeeper:
    """Hold at most one spare. Only the agent's thread uses it.

    Args:
        command: of a process that waits for receivers; None: there is no spare.
        clock: monotonic, in seconds.
    """

    def __init__(self, starter: ChildStarter, command: Sequence[str] | None, clock: Callable[[], float]) -> None:
        self._starter = starter
        self._command = command
        self._clock = clock
        self._spare: Spare | None = None
        self._not_before = clock() + SPARE_AFTER_SECONDS
        self._backoff = CrashHistory().backoff

    def keep(self) -> None:
        """Start a spare process, unless receivers have just been started or the last spare soon ended."""
        spare = self._spare
        if spare is not None and (code := spare.child.process.poll()) is not None:
            self._not_before = self._clock() + max(SPARE_AFTER_SECONDS, self._backoff.next_delay())
            spare.line.close()
            self._spare = None
            log.warning("the spare process ended", exit=describe_exit(code), last_lines=spare.child.log_tail())
        if self._spare is None and self._command is not None and self._clock() >= self._not_before:
            ours, theirs = socket_pair()
            with theirs:
                self._spare = Spare(self._starter.start(_NAME, self._command, stdin=theirs.fileno()), ours)

    def take(self, name: str, receivers: Sequence[tuple[int, int]]) -> Spare | None:
        """Turn the spare process into these receivers' process; return None if there is no living spare."""
        self._not_before = self._clock() + SPARE_AFTER_SECONDS
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        log_file = self._starter.log_file(name)
        # The process opens the file itself, and may end before that.
        with contextlib.suppress(OSError):
            open_log(log_file).close()
        try:
            spare.line.sendall(encode_begin(receivers, log_file.absolute()))
        except OSError:
            _end(spare)
            return None
        self._backoff.reset()
        log.info("the spare process runs receivers now", child=name, pid=spare.child.process.pid)
        return Spare(ChildProcess(name, spare.child.process, self._clock(), log_file), spare.line)

    def end(self) -> None:
        """Kill the spare process, if there is one."""
        if self._spare is not None:
            _end(self._spare)
            self._spare = None


def _end(spare: Spare) -> None:
    """Kill the process: it holds nothing that would be lost."""
    spare.line.close()
    spare.child.process.kill()
    spare.child.process.wait()
