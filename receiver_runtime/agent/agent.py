"""Run the agent, one per host: it starts, watches, restarts and stops its children, and holds no data.

The driver log says what it is to run (the receivers placed on it). It knows its children only by their commands and
exit codes, so it imports neither tracker nor batch driver. It restarts a crashed process, at once the first time and
then with growing delays. It never decides where a receiver runs.

Its receivers are in ``receiver_processes``, the tracker in ``role_processes``, its batch drivers in ``batch_drivers``.
A spare process (``spare_keeper``) waits with everything loaded for the next receivers to start here. So after a crash,
or when receivers move here from a host that is gone, no receiver waits for an interpreter to start.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_process import STOP_GRACE_SECONDS, ChildStarter
from receiver_runtime.agent.pending_reports import MAX_REPORTS, PendingReports
from receiver_runtime.agent.process_ends import ProcessEnds
from receiver_runtime.agent.receiver_processes import ReceiverProcesses
from receiver_runtime.agent.role_processes import RoleProcesses
from receiver_runtime.agent.service_manager import ServiceManager
from receiver_runtime.agent.spare_keeper import SpareKeeper
from tracker_store.batches.run_queue import CRASHED
from tracker_store.batches.scaling import wanted_batch_drivers
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.receivers.leadership import end_leadership_of, holder_name
from tracker_store.receivers.processes import (
    ProcessExpiredError,
    deregister_process,
    end_processes_of_pid,
    heartbeat,
    register_process,
)
from tracker_store.receivers.receivers import placements_on_agent
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    import sqlalchemy as sa

    from receiver_runtime.agent.batch_drivers import BatchDrivers
    from receiver_runtime.agent.left_processes import LeftProcesses

TICK_SECONDS = 0.5
# In how many waits the pause between two ticks is cut: a stop that a signal asks for is seen after one of them.
WAITS_PER_TICK = 2
# Seconds that a host's share of drivers must stay the same before it counts. A host whose drivers were killed has none
# until they are back, and the other hosts must not make up for it meanwhile.
STEADY_SECONDS = 15.0
# Seconds between two questions for that share.
SHARE_POLL_SECONDS = 5.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Say what one host's agent runs, and how."""

    #: Shown to people; the host's name unless several agents share it.
    name: str
    #: Where it runs.
    host: str
    #: How many receivers may be placed on it.
    slots: int
    #: The command that runs these (receiver id, assignment) in one process.
    receiver_command: Callable[[Sequence[tuple[int, int]]], Sequence[str]]
    #: Further children by role, such as the tracker.
    role_commands: Mapping[str, Sequence[str]]
    #: Each child's output goes to a file here.
    log_directory: Path
    #: See ``ReceiverProcesses``.
    receivers_per_process: int | None = None
    #: A process that waits for receivers (``spare_process``); None: there is none.
    spare_command: Sequence[str] | None = None
    #: The environment variables that receiver processes do not get, and those that the children by role do not get.
    withheld_from_receivers: Collection[str] = ()
    withheld_from_roles: Collection[str] = ()


class Agent:
    """Run one host's agent. `run` returns when told to stop, after every child has ended."""

    def __init__(
        self,
        engine: sa.Engine,
        settings: AgentSettings,
        *,
        batch_drivers: BatchDrivers | None = None,
        left_processes: LeftProcesses | None = None,
        service_manager: ServiceManager | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare an agent.

        Args:
            engine: the driver log.
            settings: what it runs.
            batch_drivers: this host's; None: it has none.
            left_processes: what an earlier agent in the same home has left, and where this one notes its own; None:
                an agent that is killed is missed when its heartbeat is.
            service_manager: what started this process and watches it; None: nothing does.
            clock: monotonic, in seconds.
        """
        self._engine = engine
        self._settings = settings
        self._batch_drivers = batch_drivers
        self._left_processes = left_processes
        self._service_manager = service_manager or ServiceManager(None)
        self._clock = clock
        starter = ChildStarter(settings.log_directory, withheld=settings.withheld_from_receivers, clock=clock)
        self._spare = SpareKeeper(starter, settings.spare_command, clock)
        self._reports = PendingReports()
        self._receivers = ReceiverProcesses(
            settings.receiver_command,
            per_process=settings.receivers_per_process,
            starter=starter,
            spare=self._spare,
            reports=self._reports,
            clock=clock,
        )
        self._roles = RoleProcesses(
            ChildStarter(settings.log_directory, withheld=settings.withheld_from_roles, clock=clock),
            settings.role_commands,
            clock,
        )
        # Ended processes that the driver log does not know of yet.
        self._ended_pids: deque[int] = deque(maxlen=MAX_REPORTS)
        self._least_batch_drivers = 0 if batch_drivers is None else batch_drivers.wanted
        # This host's share of the wanted drivers, and since when it has been that number.
        self._share, self._share_since = 1, clock()
        self._next_share_poll = clock()
        self._process_id: int | None = None

    def run(self, stop: threading.Event) -> None:
        """Reconcile children with the driver log every half second until `stop`; then stop them all."""
        with ProcessEnds() as ends:
            self._run(stop, ends)

    def _run(self, stop: threading.Event, ends: ProcessEnds) -> None:
        self._settings.log_directory.mkdir(parents=True, exist_ok=True)
        outage = Outage("the agent", self._clock)
        # Ready without the driver log too: the agent waits for that by itself, and a restart would not help.
        self._service_manager.ready()
        try:
            while not stop.is_set():
                self._service_manager.alive(
                    f"{len(self._receivers.processes)} receiver processes of {self._settings.slots} slots"
                )
                self._ended_pids += self._roles.supervise()
                if self._batch_drivers is not None:
                    # An ended driver's work is reported as lost at once: its batch need not wait for the time limit.
                    self._ended_pids += self._batch_drivers.tick()
                self._check_left_processes()
                try:
                    with connect(self._engine) as connection:
                        self._tick(connection)
                except SURVIVED as error:
                    # Children go on: they keep what they can't register, up to a bound.
                    outage.failed(error)
                else:
                    outage.answered()
                self._spare.keep()
                self._pause(stop, ends)
        finally:
            self._service_manager.stopping()
            self._stop_all()
            self._sign_off()

    def _pause(self, stop: threading.Event, ends: ProcessEnds) -> None:
        """Wait until the next tick; return at once when a process ends that was running before the pause."""
        running = [
            process.child.process for process in self._receivers.processes if process.child.process.poll() is None
        ]
        drivers = self._batch_drivers
        if drivers is not None:
            running += drivers.processes()
        for _ in range(WAITS_PER_TICK):
            if stop.is_set() or ends.wait(running, TICK_SECONDS / WAITS_PER_TICK):
                return

    def _tick(self, connection: sa.Connection) -> None:
        # Give up what an earlier agent had here, before this agent asks for work.
        self._report_ended_pids(connection)
        if self._process_id is None:
            self._process_id = register_process(
                connection,
                kind=ProcessKind.AGENT,
                name=self._settings.name,
                host=self._settings.host,
                pid=os.getpid(),
                slots=self._settings.slots,
            )
            log.info("agent registered", process_id=self._process_id, slots=self._settings.slots)
        try:
            heartbeat(connection, process_id=self._process_id)
        except ProcessExpiredError:
            # Other hosts got its receivers. Its processes are fenced, and the next reconciliation stops them.
            expired, self._process_id = self._process_id, None
            log.warning("the tracker declared this agent dead; registering again", process_id=expired)
            return
        self._reconcile(connection, self._process_id)
        if self._batch_drivers is not None and self._least_batch_drivers:
            self._scale_batch_drivers(connection, self._batch_drivers)

    def _scale_batch_drivers(self, connection: sa.Connection, drivers: BatchDrivers) -> None:
        """Want at least as many drivers as it was started with, more if batches take too long (O04); 0 stays 0."""
        if self._clock() < self._next_share_poll:
            return
        self._next_share_poll = self._clock() + SHARE_POLL_SECONDS
        share = wanted_batch_drivers(connection, self._settings.host)
        if share != self._share:
            self._share, self._share_since = share, self._clock()
        elif self._clock() - self._share_since >= STEADY_SECONDS:
            drivers.wanted = max(self._least_batch_drivers, share)

    def _reconcile(self, connection: sa.Connection, agent_id: int) -> None:
        self._ended_pids += self._receivers.take_ended()
        # Before new processes are started: from here on the leader can't find these processes silent, and so can't take
        # the receivers from a successor that has not claimed them yet. Placements are read after it.
        self._report_ended_pids(connection)
        placed = placements_on_agent(connection, agent_id)
        self._receivers.reconcile(
            {placement.receiver_id: placement.assignment for placement in placed},
            alone={placement.receiver_id for placement in placed if placement.own_process},
            unheld={placement.receiver_id for placement in placed if placement.is_unheld},
        )
        self._reports.write(connection)

    def _check_left_processes(self) -> None:
        """Report at once that an earlier agent here, which was killed, and its processes have ended."""
        if self._left_processes is None:
            return
        if gone := self._left_processes.take_gone():
            log.warning("processes of an agent that was killed are gone", pids=gone)
            self._ended_pids += gone
        self._left_processes.note(self._running_pids())

    def _running_pids(self) -> list[int]:
        """Return the pids of all processes that have not been found to have ended."""
        children = [*(process.child for process in self._receivers.processes), *self._roles.children.values()]
        drivers = [] if self._batch_drivers is None else self._batch_drivers.pids()
        return [*(child.process.pid for child in children), *drivers]

    def _report_ended_pids(self, connection: sa.Connection) -> None:
        """End the rows of processes that are known to have ended: their parent saw it, or a check did not find them."""
        machine = socket.gethostname()
        how_ended = {} if self._batch_drivers is None else self._batch_drivers.how_ended
        while self._ended_pids:
            pid = self._ended_pids[0]
            if pid in self._running_pids():
                # A child of this agent got the pid while the driver log was unavailable. Only heartbeats can tell whose
                # rows those are.
                how_ended.pop(self._ended_pids.popleft(), None)
                continue
            why = f"{CRASHED} ({how_ended[pid]})" if pid in how_ended else CRASHED
            # A batch run in that process has its own row, under the machine's name.
            end_processes_of_pid(connection, hosts=[self._settings.host, machine], pid=pid, why=why)
            how_ended.pop(self._ended_pids.popleft(), None)
            # A tracker has no row there; ending its leadership lets the next tracker lead at once. Agents without a
            # tracker may lack the right to ask. Asked once: a killed tracker's last statement may hold the row for
            # long, and an agent that waited for it again and again would send no heartbeat. The next tracker then leads
            # after the time limit.
            if self._settings.role_commands and end_leadership_of(connection, holder_name(machine, pid)):
                log.info("the leading tracker has ended", pid=pid)

    def _stop_all(self) -> None:
        """Stop all children, receivers first: they drain without the tracker."""
        if self._batch_drivers is not None:
            self._batch_drivers.drain()
        self._spare.end()
        processes = self._receivers.processes
        for group in ([process.child for process in processes], list(self._roles.children.values())):
            for child in group:
                child.ask_to_stop(self._clock())
            deadline = self._clock() + STOP_GRACE_SECONDS
            for child in group:
                try:
                    child.process.wait(max(0.0, deadline - self._clock()))
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.process.wait()
        if self._batch_drivers is not None:
            self._ended_pids += self._batch_drivers.stop()
        for process in processes:
            process.line.close()
            # One that was killed could not end its own row, and the next placement would wait for it.
            self._ended_pids.append(process.child.process.pid)
        processes.clear()
        self._roles.children.clear()

    def _sign_off(self) -> None:
        if self._process_id is None:
            return
        try:
            with connect(self._engine) as connection:
                self._report_ended_pids(connection)
                if self._left_processes is not None:
                    self._left_processes.forget()
                deregister_process(connection, self._process_id)
        except SURVIVED as error:
            log.warning("could not sign off; the tracker will see this agent's heartbeat end", error=str(error))
