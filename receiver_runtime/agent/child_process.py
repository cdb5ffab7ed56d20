"""Start one child of the agent, and end it: first asked, then killed. Decides nothing about another start."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_environment import environment_without
from tracker_store.host.process_output import open_child_log

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

#: Seconds from SIGTERM to SIGKILL.
STOP_GRACE_SECONDS = 15.0
_LOG_TAIL_LINES = 20

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ChildProcess:
    """Hold a process of this agent."""

    name: str
    process: subprocess.Popen[bytes]
    started: float
    log_file: Path
    stopping_since: float | None = None

    def ask_to_stop(self, now: float) -> None:
        """Send SIGTERM first, and SIGKILL when the grace period is over."""
        if self.stopping_since is None:
            self.stopping_since = now
            self.process.send_signal(signal.SIGTERM)
        elif now - self.stopping_since > STOP_GRACE_SECONDS:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        log.warning("child did not stop in time, killed", child=self.name, pid=self.process.pid)

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 16_384))
                lines = file.read().decode("utf-8", errors="replace").splitlines()
        except OSError as error:
            return f"(its log can't be read: {error})"
        return "\n".join(lines[-_LOG_TAIL_LINES:])


class ChildStarter:
    """Start children, each with a log file in the directory.

    Args:
        withheld: the environment variables that the children do not get.
        clock: monotonic, in seconds.
    """

    def __init__(self, log_directory: Path, *, withheld: Collection[str], clock: Callable[[], float]) -> None:
        self._log_directory = log_directory
        self._withheld = withheld
        self._clock = clock

    def log_file(self, name: str) -> Path:
        """Return where a child of this name writes."""
        return self._log_directory / f"{name}.log"

    def start(self, name: str, command: Sequence[str], *, stdin: int = subprocess.PIPE) -> ChildProcess:
        """Start a child. It stops when it reads the end of its standard input, whose other end is the agent's."""
        log_file = self.log_file(name)
        with open_child_log(log_file) as output:
            process = subprocess.Popen(  # noqa: S603  our own command
                command,
                env=environment_without(self._withheld),
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        log.info("child started", child=name, pid=process.pid)
        return ChildProcess(name, process, self._clock(), log_file)


def describe_exit(code: int) -> str:
    """Return how a process ended, for people."""
    if code >= 0:
        return f"exited with code {code}"
    # Most real-time signals have no name.
    named = {int(one): one.name for one in signal.Signals}
    return f"was killed by {named.get(-code, f'signal {-code}')}"
