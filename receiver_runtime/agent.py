"""The agent: one per host; starts, watches, restarts and stops its children, and holds nothing.

What it is to run is in the driver log (the receivers placed on it); what it knows of its children is their commands
and exit codes, so it imports neither tracker nor batch driver. It restarts a process that crashed, at once and then
ever later; it never decides where a receiver runs. A fenced receiver is not started again before the tracker has made
a newer assignment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import structlog

from receiver_runtime.backoff import Backoff
from receiver_runtime.exit_codes import ExitCode
from tracker_store.engine import connect
from tracker_store.outage import SURVIVED, Outage
from tracker_store.processes import (
    ProcessExpiredError,
    deregister_process,
    heartbeat,
    register_process,
)
from tracker_store.receivers import (
    Placement,
    placements_on_agent,
    release_receivers_of_agent,
    report_event,
    set_receiver_state,
)
from tracker_store.schema import ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import sqlalchemy as sa

TICK_SECONDS = 0.5
STOP_GRACE_SECONDS = 15.0
LOG_TAIL_LINES = 20
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 8.0
# So many crashes in a row, about two minutes of them, and the receiver is FAILED.
MAX_CRASHES = 20
HEALTHY_AFTER_SECONDS = 60.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Child:
    """A process of this agent's. `assignment` is 0 for a role."""

    name: str
    process: subprocess.Popen[bytes]
    assignment: int
    started: float
    log_file: Path
    stopping_since: float | None = None


@dataclass(slots=True)
class _History:
    """What is remembered of a receiver or role between two of its processes."""

    backoff: Backoff
    crashes: int = 0
    not_before: float = 0.0
    # Not started again under this assignment or an older one.
    refused_assignment: int = -1


class Agent:
    """One host's agent. `run` returns when told to stop, with every child gone."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        name: str,
        host: str,
        slots: int,
        receiver_command: Callable[[int, int], Sequence[str]],
        role_commands: Mapping[str, Sequence[str]],
        log_directory: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare an agent.

        Args:
            engine: the driver log.
            name: shown to people; the host's name unless several agents share it.
            host: where it runs.
            slots: how many receivers may be placed on it.
            receiver_command: the command that runs (receiver id, assignment).
            role_commands: further children by role, such as the tracker.
            log_directory: each child's output goes to a file here.
            clock: monotonic, in seconds.
        """
        self._engine = engine
        self._name = name
        self._host = host
        self._slots = slots
        self._receiver_command = receiver_command
        self._role_commands = role_commands
        self._log_directory = log_directory
        self._clock = clock
        self._process_id: int | None = None
        self._receivers: dict[int, _Child] = {}
        self._roles: dict[str, _Child] = {}
        self._histories: dict[str, _History] = {}

    def run(self, stop: threading.Event) -> None:
        """Reconcile children with the driver log every half second until `stop`; then stop them all."""
        self._log_directory.mkdir(parents=True, exist_ok=True)
        outage = Outage("the agent", self._clock)
        try:
            while not stop.is_set():
                self._supervise_roles()
                try:
                    with connect(self._engine) as connection:
                        self._tick(connection)
                except SURVIVED as error:
                    # Children go on: what they can't register they keep, bounded.
                    outage.failed(error)
                else:
                    outage.answered()
                stop.wait(TICK_SECONDS)
        finally:
            self._stop_all()
            self._sign_off()

    def _tick(self, connection: sa.Connection) -> None:
        if self._process_id is None:
            self._process_id = register_process(
                connection,
                kind=ProcessKind.AGENT,
                name=self._name,
                host=self._host,
                pid=os.getpid(),
                slots=self._slots,
            )
            log.info("agent registered", process_id=self._process_id, slots=self._slots)
        try:
            heartbeat(connection, process_id=self._process_id)
        except ProcessExpiredError:
            # Its receivers were given away; those processes are fenced, and stopped by the next reconciliation.
            log.warning("the tracker declared this agent dead; registering anew", process_id=self._process_id)
            self._process_id = None
            return
        self._reconcile(connection, placements_on_agent(connection, self._process_id))

    def _reconcile(self, connection: sa.Connection, placed: Sequence[Placement]) -> None:
        wanted = {placement.receiver_id: placement for placement in placed}
        for receiver_id, child in list(self._receivers.items()):
            placement = wanted.get(receiver_id)
            code = child.process.poll()
            if code is not None:
                del self._receivers[receiver_id]
                self._ended(connection, child, code, receiver_id, placement)
            elif placement is None or placement.assignment != child.assignment:
                self._ask_to_stop(child)
        for receiver_id, placement in wanted.items():
            history = self._history(_receiver_name(receiver_id))
            if (
                receiver_id not in self._receivers
                and placement.assignment > history.refused_assignment
                and self._clock() >= history.not_before
            ):
                self._receivers[receiver_id] = self._start(
                    _receiver_name(receiver_id),
                    self._receiver_command(receiver_id, placement.assignment),
                    placement.assignment,
                )

    def _ended(
        self,
        connection: sa.Connection,
        child: _Child,
        code: int,
        receiver_id: int,
        placement: Placement | None,
    ) -> None:
        history = self._history(child.name)
        if child.stopping_since is not None or code == ExitCode.STOPPED:
            log.info("receiver process ended", receiver_id=receiver_id, code=code)
            history.refused_assignment = max(history.refused_assignment, child.assignment)
            return
        if code == ExitCode.FENCED:
            log.warning("receiver process was fenced", receiver_id=receiver_id, assignment=child.assignment)
            history.refused_assignment = child.assignment
            return
        if self._clock() - child.started >= HEALTHY_AFTER_SECONDS:
            history.backoff.reset()
            history.crashes = 0
        history.crashes += 1
        delay = history.backoff.next_delay()
        history.not_before = self._clock() + delay
        message = f"receiver process {_exit(code)}; crash {history.crashes}, restart in {delay:.1f} s"
        tail = _tail(child.log_file)
        log.error(message, receiver_id=receiver_id)
        report_event(
            connection,
            receiver_id=receiver_id,
            epoch=0,
            kind=ReceiverEventKind.EXITED,
            message=message,
            detail=tail,
        )
        if history.crashes >= MAX_CRASHES and placement is not None:
            history.refused_assignment = child.assignment
            reason = f"crashed {history.crashes} times in a row, the last time: {_exit(code)}"
            set_receiver_state(
                connection,
                receiver_id=receiver_id,
                assignment=child.assignment,
                state=ReceiverState.FAILED,
                reason=reason,
            )
            report_event(connection, receiver_id=receiver_id, epoch=0, kind=ReceiverEventKind.FAILED, message=reason)

    def _supervise_roles(self) -> None:
        for role, command in self._role_commands.items():
            child = self._roles.get(role)
            if child is not None:
                code = child.process.poll()
                if code is None:
                    continue
                history = self._history(role)
                if self._clock() - child.started >= HEALTHY_AFTER_SECONDS:
                    history.backoff.reset()
                delay = history.backoff.next_delay()
                history.not_before = self._clock() + delay
                log.error("role ended", role=role, exit=_exit(code), restart_in=delay, last_lines=_tail(child.log_file))
                del self._roles[role]
            if self._clock() >= self._history(role).not_before:
                self._roles[role] = self._start(role, command, assignment=0)

    def _start(self, name: str, command: Sequence[str], assignment: int) -> _Child:
        log_file = self._log_directory / f"{name}.log"
        output: IO[bytes] = log_file.open("ab")
        with output:
            process = subprocess.Popen(  # noqa: S603  our own command
                command,
                # The end of this pipe is the agent's end: the child stops when it reads it.
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        log.info("child started", child=name, pid=process.pid, assignment=assignment)
        return _Child(name, process, assignment, self._clock(), log_file)

    def _ask_to_stop(self, child: _Child) -> None:
        """SIGTERM at first, SIGKILL when the grace is over."""
        if child.stopping_since is None:
            child.stopping_since = self._clock()
            child.process.send_signal(signal.SIGTERM)
        elif self._clock() - child.stopping_since > STOP_GRACE_SECONDS:
            log.warning("child did not stop in time, killed", child=child.name, pid=child.process.pid)
            child.process.kill()

    def _stop_all(self) -> None:
        """Receivers first: the tracker's word is not needed for them to drain."""
        for group in (list(self._receivers.values()), list(self._roles.values())):
            for child in group:
                self._ask_to_stop(child)
            deadline = self._clock() + STOP_GRACE_SECONDS
            for child in group:
                try:
                    child.process.wait(max(0.0, deadline - self._clock()))
                except subprocess.TimeoutExpired:
                    child.process.kill()
                    child.process.wait()
        self._receivers.clear()
        self._roles.clear()

    def _sign_off(self) -> None:
        if self._process_id is None:
            return
        try:
            with connect(self._engine) as connection:
                release_receivers_of_agent(connection, agent_id=self._process_id, why="its agent was stopped")
                deregister_process(connection, self._process_id)
        except SURVIVED as error:
            log.warning("could not sign off; the tracker will see this agent's heartbeat end", error=str(error))

    def _history(self, name: str) -> _History:
        return self._histories.setdefault(name, _History(Backoff(FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS)))


def _receiver_name(receiver_id: int) -> str:
    return f"receiver-{receiver_id}"


def _exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _tail(log_file: Path) -> str:
    with log_file.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 16_384))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_TAIL_LINES:])
