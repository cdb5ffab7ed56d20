"""Keep one process per role, such as the tracker: started again after it ended, with growing delays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_process import describe_exit
from receiver_runtime.agent.crash_history import HEALTHY_AFTER_SECONDS, CrashHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.agent.child_process import ChildProcess, ChildStarter

log = structlog.get_logger(__name__)


class RoleProcesses:
    """Hold the processes by role. Only the agent's thread uses it."""

    def __init__(
        self, starter: ChildStarter, commands: Mapping[str, Sequence[str]], clock: Callable[[], float]
    ) -> None:
        self._starter = starter
        self._commands = commands
        self._clock = clock
        self.children: dict[str, ChildProcess] = {}
        self._histories = {role: CrashHistory() for role in commands}

    def supervise(self) -> list[int]:
        """Start each role that does not run, when its delay is over; return the pids of those that have ended."""
        ended = []
        for role, command in self._commands.items():
            child, history = self.children.get(role), self._histories[role]
            if child is not None:
                code = child.process.poll()
                if code is None:
                    continue
                if self._clock() - child.started >= HEALTHY_AFTER_SECONDS:
                    history.backoff.reset()
                delay = history.backoff.next_delay()
                history.not_before = self._clock() + delay
                ended.append(child.process.pid)
                del self.children[role]
                log.error(
                    "role ended", role=role, exit=describe_exit(code), restart_in=delay, last_lines=child.log_tail()
                )
            if self._clock() >= history.not_before:
                self.children[role] = self._starter.start(role, command)
        return ended
