"""Run the agent, one per host: it starts, watches, restarts and stops its children, and holds no data.

The driver log says what it is to run (the receivers placed on it). It knows its children only by their commands and
exit codes, so it imports neither tracker nor batch driver. It restarts a crashed process, at once the first time and
then with growing delays. It never decides where a receiver runs. A fenced receiver is not started again before the
tracker has made a newer assignment, unless no process has the receiver under this one.

Several receivers may share a process (``receivers_per_process``), except those whose stream wants a process of its own.
Without that setting, as many share as keep the host at 16 processes: each holds connections to the driver log.
Each ends by itself, and the process reports it. A crash ends all receivers of the process and counts against each of
them. They are then suspected for a while: suspects are started again only with other suspects, in ever smaller groups.
So after a few crashes the faulty receiver is alone in its process and crashes no other. The first crash splits no
group, because most crashes are not a receiver's fault.

A spare process (``spare_command``) waits with everything loaded for the next receivers to start here. So after a crash,
or when receivers move here from a host that is gone, no receiver waits for an interpreter to start.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_environment import environment_without
from receiver_runtime.agent.process_ends import ProcessEnds
from receiver_runtime.agent.service_manager import ServiceManager
from receiver_runtime.agent.spare_process import encode_begin
from receiver_runtime.process.process_control import (
    Accepted,
    ControlledRun,
    Declined,
    Ended,
    Lines,
    Message,
    Stop,
    encode,
    socket_pair,
)
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.batches.run_queue import CRASHED
from tracker_store.batches.scaling import wanted_batch_drivers
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.host.log_files import open_log
from tracker_store.host.process_output import open_child_log
from tracker_store.receivers.leadership import end_leadership_of, holder_name
from tracker_store.receivers.processes import (
    ProcessExpiredError,
    deregister_process,
    end_processes_of_pid,
    heartbeat,
    register_process,
)
from tracker_store.receivers.receivers import (
    placements_on_agent,
    release_receivers_of_agent,
    report_event,
    set_receiver_state,
)
from tracker_store.schema.states import ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    import sqlalchemy as sa

    from receiver_runtime.agent.batch_drivers import BatchDrivers
    from receiver_runtime.agent.left_processes import LeftProcesses

TICK_SECONDS = 0.5
# In how many waits the pause between two ticks is cut: a stop that a signal asks for is seen after one of them.
WAITS_PER_TICK = 2
STOP_GRACE_SECONDS = 15.0
LOG_TAIL_LINES = 20
# The first restart is at once; from the second on there is a delay.
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 8.0
# After this many crashes in a row, which take about two minutes, the receiver is FAILED.
MAX_CRASHES = 20
HEALTHY_AFTER_SECONDS = 60.0
# Seconds for which a receiver is suspected after a crash of its process; longer than most slow crashes take.
SUSPECT_SECONDS = 900.0
# Seconds since the last start of a receiver before a spare is started: receivers that start need the processor more.
SPARE_AFTER_SECONDS = 3.0
# Seconds that a host's share of drivers must stay the same before it counts. A host whose drivers were killed has none
# until they are back, and the other hosts must not make up for it meanwhile.
STEADY_SECONDS = 15.0
# Seconds between two questions for that share.
SHARE_LOOK_SECONDS = 5.0
# Each further crash reduces groups of suspects to a quarter: a shift by two bits.
_SPLIT_BITS = 2
_MAX_REPORTS = 1000
# With more receivers than this on a host, they share processes: its connections to the driver log stay bounded.
MOST_ISOLATED = 16
# A process that hangs in its disk may survive SIGKILL. With this many of a receiver's processes left hanging, its next
# process waits until one of them has ended.
_MOST_LEFT_HANGING = 3
_SPARE = "spare"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _AgentChild:
    """Hold a process of this agent."""

    name: str
    process: subprocess.Popen[bytes]
    started: float
    log_file: Path
    stopping_since: float | None = None


@dataclass(slots=True)
class _Member:
    """Hold a receiver in a process. `accepted`: the process was started with it, or has said that it runs it."""

    assignment: int
    started: float
    accepted: bool
    stopping_since: float | None = None


@dataclass(slots=True, eq=False)
class _StartedProcess:
    """Hold a process that runs receivers, and the agent's end of the line to it."""

    child: _AgentChild
    line: socket.socket
    members: dict[int, _Member]
    lines: Lines = field(default_factory=Lines)
    # Whether the process has begun to run receivers.
    begun: bool = False
    # Receivers that failed here, or did not stop in time: they must not be started here again.
    strays: set[int] = field(default_factory=set)


@dataclass(slots=True)
class _Spare:
    """Hold a process that waits for receivers, and the agent's end of the line to it."""

    child: _AgentChild
    line: socket.socket


@dataclass(slots=True)
class _History:
    """Hold what is remembered of a receiver or role between two of its processes."""

    backoff: Backoff
    crashes: int = 0
    not_before: float = 0.0
    # How many crashes it has had since it became suspected, and when the last of them was.
    suspicion: int = 0
    last_crash: float = 0.0
    # Not started again under this assignment or an older one.
    refused_assignment: int = -1
    # The refused assignment under which its process was fenced; -1: it is refused for another reason.
    fenced_assignment: int = -1


class Agent:
    """Run one host's agent. `run` returns when told to stop, after every child has ended."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        name: str,
        host: str,
        slots: int,
        receiver_command: Callable[[Sequence[tuple[int, int]]], Sequence[str]],
        role_commands: Mapping[str, Sequence[str]],
        log_directory: Path,
        receivers_per_process: int | None = None,
        spare_command: Sequence[str] | None = None,
        batch_drivers: BatchDrivers | None = None,
        left_processes: LeftProcesses | None = None,
        withheld_from_receivers: Collection[str] = (),
        withheld_from_roles: Collection[str] = (),
        service_manager: ServiceManager | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare an agent.

        Args:
            engine: the driver log.
            name: shown to people; the host's name unless several agents share it.
            host: where it runs.
            slots: how many receivers may be placed on it.
            receiver_command: the command that runs these (receiver id, assignment) in one process.
            role_commands: further children by role, such as the tracker.
            log_directory: each child's output goes to a file here.
            receivers_per_process: how many may share a process; with 1 each is isolated from all others. None: 1 for up
                to MOST_ISOLATED receivers, and as many more as keep the number of processes at that.
            spare_command: a process that waits for receivers (``spare_process``); None: there is none.
            batch_drivers: this host's; None: it has none.
            left_processes: what an earlier agent in the same home has left, and where this one notes its own; None:
                an agent that is killed is missed when its heartbeat is.
            withheld_from_receivers: the environment variables that receiver processes do not get.
            withheld_from_roles: those that the children by role do not get.
            service_manager: what started this process and watches it; None: nothing does.
            clock: monotonic, in seconds.
        """
        self._engine = engine
        self._name = name
        self._host = host
        self._slots = slots
        self._receiver_command = receiver_command
        self._role_commands = role_commands
        self._log_directory = log_directory
        self._is_sharing_chosen = receivers_per_process is None
        # For now, if the agent chooses: 1 until it knows its receivers.
        self._receivers_per_process = receivers_per_process or 1
        self._spare_command = spare_command
        self._batch_drivers = batch_drivers
        self._left_processes = left_processes
        self._withheld_from_receivers = withheld_from_receivers
        self._withheld_from_roles = withheld_from_roles
        self._service_manager = service_manager or ServiceManager(None)
        # Ended processes that the driver log does not know of yet.
        self._ended_pids: deque[int] = deque(maxlen=_MAX_REPORTS)
        self._least_batch_drivers = 0 if batch_drivers is None else batch_drivers.wanted
        # This host's share of the wanted drivers, and since when it has been that number.
        self._share, self._share_since = 1, clock()
        self._share_look_at = clock()
        self._clock = clock
        self._process_id: int | None = None
        self._processes: list[_StartedProcess] = []
        self._roles: dict[str, _AgentChild] = {}
        self._spare: _Spare | None = None
        self._spare_not_before = clock() + SPARE_AFTER_SECONDS
        self._histories: dict[str, _History] = {}
        # Receivers that must not share their process, by the newest placements.
        self._alone: set[int] = set()
        # Reports for the driver log, kept while it is unavailable.
        self._reports: deque[Callable[[sa.Connection], object]] = deque(maxlen=_MAX_REPORTS)

    def run(self, stop: threading.Event) -> None:
        """Reconcile children with the driver log every half second until `stop`; then stop them all."""
        with ProcessEnds() as ends:
            self._run(stop, ends)

    def _run(self, stop: threading.Event, ends: ProcessEnds) -> None:
        self._log_directory.mkdir(parents=True, exist_ok=True)
        outage = Outage("the agent", self._clock)
        # Ready without the driver log too: the agent waits for that by itself, and a restart would not help.
        self._service_manager.ready()
        try:
            while not stop.is_set():
                self._service_manager.alive(f"{len(self._processes)} receiver processes of {self._slots} slots")
                self._supervise_roles()
                self._tend_batch_drivers()
                self._look_at_left_processes()
                try:
                    with connect(self._engine) as connection:
                        self._tick(connection)
                except SURVIVED as error:
                    # Children go on: they keep what they can't register, up to a bound.
                    outage.failed(error)
                else:
                    outage.answered()
                self._keep_spare()
                self._pause(stop, ends)
        finally:
            self._service_manager.stopping()
            self._stop_all()
            self._sign_off()

    def _pause(self, stop: threading.Event, ends: ProcessEnds) -> None:
        """Wait until the next tick; return at once when a process ends that was running before the pause."""
        running = [process.child.process for process in self._processes if process.child.process.poll() is None]
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
                name=self._name,
                host=self._host,
                pid=os.getpid(),
                slots=self._slots,
            )
            log.info("agent registered", process_id=self._process_id, slots=self._slots)
        try:
            heartbeat(connection, process_id=self._process_id)
        except ProcessExpiredError:
            # Other hosts got its receivers. Its processes are fenced, and the next reconciliation stops them.
            expired, self._process_id = self._process_id, None
            log.warning("the tracker declared this agent dead; registering again", process_id=expired)
            return
        self._reconcile(connection, self._process_id)
        if self._batch_drivers is not None and self._least_batch_drivers and self._clock() >= self._share_look_at:
            self._share_look_at = self._clock() + SHARE_LOOK_SECONDS
            # At least as many as it was started with, more if batches take too long (O04); 0 stays 0.
            share = wanted_batch_drivers(connection, self._host)
            if share != self._share:
                self._share, self._share_since = share, self._clock()
            elif self._clock() - self._share_since >= STEADY_SECONDS:
                self._batch_drivers.wanted = max(self._least_batch_drivers, share)

    def _reconcile(self, connection: sa.Connection, agent_id: int) -> None:
        self._take_ended()
        # Before new processes are started: from here on the leader can't find these processes silent, and so can't take
        # the receivers from a successor that has not claimed them yet. Placements are read after it.
        self._report_ended_pids(connection)
        placed = placements_on_agent(connection, agent_id)
        wanted = {placement.receiver_id: placement.assignment for placement in placed}
        self._alone = {placement.receiver_id for placement in placed if placement.own_process}
        for process in self._processes:
            self._stop_unwanted(process, wanted)
        self._start_wanted(wanted, {placement.receiver_id for placement in placed if placement.is_unheld})
        while self._reports:
            self._reports[0](connection)
            self._reports.popleft()

    def _take_ended(self) -> None:
        """Read what each receiver process has said, and remove those that have ended."""
        for process in list(self._processes):
            # Poll first: then everything that the process said before its end is read.
            code = process.child.process.poll()
            for message in _hear(process):
                self._heard(process, message)
            if code is not None:
                process.line.close()
                self._processes.remove(process)
                self._ended_pids.append(process.child.process.pid)
                self._process_ended(process, code)

    # -- the ends of receivers ---------------------------------------------------------------------------------------

    def _heard(self, process: _StartedProcess, message: Message) -> None:
        match message:
            case Accepted(receiver_id, assignment):
                process.begun = True
                member = process.members.get(receiver_id)
                if member is not None and member.assignment == assignment:
                    member.accepted = True
            case Declined(receiver_id):
                # The process was ending just then; another process takes the receiver.
                process.members.pop(receiver_id, None)
            case Ended(receiver_id, _, code, reason):
                process.strays.discard(receiver_id)
                member = process.members.pop(receiver_id, None)
                if code in (ExitCode.FAILED, ExitCode.STUCK):
                    # Its code may still do anything in that process.
                    process.strays.add(receiver_id)
                if member is not None:
                    self._receiver_ended(receiver_id, member, code, reason)
            case _:
                log.warning("a receiver process said what only an agent says", child=process.child.name)

    def _receiver_ended(self, receiver_id: int, member: _Member, code: ExitCode, reason: str) -> None:
        history = self._history(_receiver_name(receiver_id))
        if member.stopping_since is not None or code is ExitCode.STOPPED:
            history.refused_assignment = max(history.refused_assignment, member.assignment)
            log.info("receiver ended", receiver_id=receiver_id, reason=reason)
        elif code is ExitCode.FENCED:
            history.refused_assignment = history.fenced_assignment = member.assignment
            # It is started again under that assignment only if no process has it. Each time later, to be no load.
            self._count_crash(history, member)
            log.warning("receiver was fenced", receiver_id=receiver_id, assignment=member.assignment, reason=reason)
        else:
            if code is ExitCode.STUCK:
                # It makes its process end: do not start it again together with receivers that are not at fault.
                history.suspicion = self._suspicion(history) + 1
                history.last_crash = self._clock()
            # It failed in good order: it reported why in the driver log, and ended no other receiver. If the failure is
            # final, its row is FAILED and it is not placed here any more.
            delay = self._count_crash(history, member)
            self._give_up_after_many(receiver_id, member, reason)
            log.warning("receiver failed", receiver_id=receiver_id, reason=reason, restart_in=delay)

    def _process_ended(self, process: _StartedProcess, code: int) -> None:
        """Count a crash for each receiver whose end the process did not report, whatever the exit code."""
        crashed: dict[int, _Member] = {}
        for receiver_id, member in process.members.items():
            if member.stopping_since is not None:
                history = self._history(_receiver_name(receiver_id))
                history.refused_assignment = max(history.refused_assignment, member.assignment)
            elif member.accepted:
                crashed[receiver_id] = member
        log.info("receiver process ended", child=process.child.name, exit=_exit(code), crashed=len(crashed))
        if not crashed:
            return
        now = self._clock()
        tail = _tail(process.child.log_file)
        histories = {receiver_id: self._history(_receiver_name(receiver_id)) for receiver_id in crashed}
        # One delay for all, so that they come back together.
        delay = max(self._count_crash(histories[receiver_id], member) for receiver_id, member in crashed.items())
        what = f"receiver process {_exit(code)}" + (f" with {len(crashed)} receivers" if len(crashed) > 1 else "")
        for receiver_id, member in crashed.items():
            history = histories[receiver_id]
            if process.begun:
                # If the process never ran a receiver, no receiver is at fault, and smaller groups would not help.
                history.suspicion = self._suspicion(history) + 1
                history.last_crash = now
            history.not_before = now + delay
            self._report_crash(receiver_id, member, what, delay=delay, detail=tail)

    def _count_crash(self, history: _History, member: _Member) -> float:
        """Count a crash and put off the next start; return by how many seconds."""
        if self._clock() - member.started >= HEALTHY_AFTER_SECONDS:
            history.backoff.reset()
            history.crashes = 0
        history.crashes += 1
        delay = history.backoff.next_delay() if history.crashes > 1 else 0.0
        history.not_before = self._clock() + delay
        return delay

    def _report_crash(self, receiver_id: int, member: _Member, what: str, *, delay: float, detail: str) -> None:
        history = self._history(_receiver_name(receiver_id))
        message = f"{what}; crash {history.crashes}, restart in {delay:.1f} s"
        log.error(message, receiver_id=receiver_id)
        self._report(receiver_id, ReceiverEventKind.EXITED, message, detail)
        self._give_up_after_many(receiver_id, member, what)

    def _give_up_after_many(self, receiver_id: int, member: _Member, what: str) -> None:
        history = self._history(_receiver_name(receiver_id))
        if history.crashes >= MAX_CRASHES:
            history.refused_assignment, history.fenced_assignment = member.assignment, -1
            reason = f"crashed {history.crashes} times in a row, the last time: {what}"
            # A person who starts it again has fixed something, or wants the same number of attempts once more.
            history.crashes = 0
            history.backoff.reset()
            # Before the state, so that a reader of that state finds the cause in the history.
            self._report(receiver_id, ReceiverEventKind.FAILED, reason)
            self._reports.append(
                lambda connection: set_receiver_state(
                    connection,
                    receiver_id=receiver_id,
                    assignment=member.assignment,
                    state=ReceiverState.FAILED,
                    reason=reason,
                )
            )

    def _report(self, receiver_id: int, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        self._reports.append(
            lambda connection: report_event(
                connection, receiver_id=receiver_id, epoch=0, kind=kind, message=message, detail=detail
            )
        )

    def _stop_unwanted(self, process: _StartedProcess, wanted: Mapping[int, int]) -> None:
        """Stop what is not placed here any more. A process is killed only if no receiver in it is wanted."""
        now = self._clock()
        unwanted = {
            receiver_id: member
            for receiver_id, member in process.members.items()
            if wanted.get(receiver_id) != member.assignment
        }
        if not process.members and not process.strays:
            # Its last receiver has ended, so the process ends on its own. A signal would only replace its exit code.
            process.child.stopping_since = process.child.stopping_since or now
        if len(unwanted) == len(process.members):
            for member in unwanted.values():
                member.stopping_since = member.stopping_since or now
            self._ask_to_stop(process.child)
            return
        for receiver_id, member in unwanted.items():
            if member.stopping_since is None:
                if _say(process, Stop(receiver_id)):
                    member.stopping_since = now
            elif now - member.stopping_since > STOP_GRACE_SECONDS:
                log.warning(
                    "a receiver did not stop in time; it is left alone, because others share its process",
                    child=process.child.name,
                    receiver_id=receiver_id,
                )
                del process.members[receiver_id]
                process.strays.add(receiver_id)
                history = self._history(_receiver_name(receiver_id))
                history.refused_assignment = max(history.refused_assignment, member.assignment)

    # -- the starts of receivers -------------------------------------------------------------------------------------

    def _start_wanted(self, wanted: Mapping[int, int], unheld: Collection[int] = ()) -> None:
        if self._is_sharing_chosen:
            # Processes that run go on as they are. They take further receivers when this number has risen.
            self._receivers_per_process = max(1, -(-len(wanted.keys() - self._alone) // MOST_ISOLATED))
        running = {receiver_id for process in self._processes for receiver_id in process.members}
        hanging = Counter(stray for process in self._processes if not process.members for stray in process.strays)
        groups: dict[int, list[tuple[int, int]]] = {}
        for receiver_id, assignment in wanted.items():
            history = self._history(_receiver_name(receiver_id))
            if assignment < history.refused_assignment:
                # Assignments only rise: the driver log has lost the refused one.
                history.refused_assignment = -1
            if (
                receiver_id not in running
                and hanging[receiver_id] < _MOST_LEFT_HANGING
                and (
                    assignment > history.refused_assignment
                    # The process was declared dead before it held the receiver, so the leader made no newer assignment.
                    or (assignment == history.fenced_assignment and receiver_id in unheld)
                )
                and self._clock() >= history.not_before
            ):
                groups.setdefault(self._suspicion(history), []).append((receiver_id, assignment))
        for suspicion, receivers in groups.items():
            size = self._group_size(suspicion)
            for pair in receivers:
                if pair[0] in self._alone:
                    self._start_receivers([pair])
            sharing = [pair for pair in receivers if pair[0] not in self._alone]
            left = [pair for pair in sharing if not self._join(*pair, suspicion=suspicion, size=size)]
            for first in range(0, len(left), size):
                self._start_receivers(left[first : first + size])

    def _join(self, receiver_id: int, assignment: int, *, suspicion: int, size: int) -> bool:
        """Give a receiver to a process that has room and whose receivers have the same suspicion."""
        if size == 1:
            return False
        for process in self._processes:
            if (
                len(process.members) < size
                and receiver_id not in process.strays
                and self._alone.isdisjoint(process.members)
                and any(member.stopping_since is None for member in process.members.values())
                and all(self._suspicion(self._history(_receiver_name(other))) == suspicion for other in process.members)
                and _say(process, ControlledRun(receiver_id, assignment))
            ):
                process.members[receiver_id] = _Member(assignment, self._clock(), accepted=False)
                return True
        return False

    def _start_receivers(self, receivers: Sequence[tuple[int, int]]) -> None:
        if self._receivers_per_process == 1:
            name = _receiver_name(receivers[0][0])
        else:
            taken = {process.child.name for process in self._processes}
            name = next(name for number in range(1, len(taken) + 2) if (name := f"receivers-{number}") not in taken)
        taken_over = self._take_spare(name, receivers)
        if taken_over is None:
            ours, theirs = socket_pair()
            with theirs:
                command = self._receiver_command(receivers)
                child = self._start(name, command, stdin=theirs.fileno(), withheld=self._withheld_from_receivers)
        else:
            child, ours = taken_over.child, taken_over.line
        self._spare_not_before = self._clock() + SPARE_AFTER_SECONDS
        members = {
            receiver_id: _Member(assignment, child.started, accepted=True) for receiver_id, assignment in receivers
        }
        self._processes.append(_StartedProcess(child, ours, members))

    def _suspicion(self, history: _History) -> int:
        return history.suspicion if self._clock() - history.last_crash < SUSPECT_SECONDS else 0

    def _group_size(self, suspicion: int) -> int:
        return max(1, self._receivers_per_process >> (_SPLIT_BITS * max(0, suspicion - 1)))

    # -- the spare process -------------------------------------------------------------------------------------------

    def _keep_spare(self) -> None:
        """Start a spare process, unless receivers have just been started or the last spare soon ended."""
        spare = self._spare
        if spare is not None and (code := spare.child.process.poll()) is not None:
            delay = max(SPARE_AFTER_SECONDS, self._history(_SPARE).backoff.next_delay())
            self._spare_not_before = self._clock() + delay
            spare.line.close()
            self._spare = None
            log.warning("the spare process ended", exit=_exit(code), last_lines=_tail(spare.child.log_file))
        if self._spare is None and self._spare_command is not None and self._clock() >= self._spare_not_before:
            ours, theirs = socket_pair()
            with theirs:
                child = self._start(
                    _SPARE, self._spare_command, stdin=theirs.fileno(), withheld=self._withheld_from_receivers
                )
                self._spare = _Spare(child, ours)

    def _take_spare(self, name: str, receivers: Sequence[tuple[int, int]]) -> _Spare | None:
        """Turn the spare process into these receivers' process; return None if there is no living spare."""
        spare, self._spare = self._spare, None
        if spare is None:
            return None
        log_file = self._log_directory / f"{name}.log"
        # The process opens the file itself, and may end before that.
        with contextlib.suppress(OSError):
            open_log(log_file).close()
        try:
            spare.line.sendall(encode_begin(receivers, log_file.absolute()))
        except OSError:
            self._end_spare(spare)
            return None
        self._history(_SPARE).backoff.reset()
        log.info("the spare process runs receivers now", child=name, pid=spare.child.process.pid)
        return _Spare(_AgentChild(name, spare.child.process, self._clock(), log_file), spare.line)

    @staticmethod
    def _end_spare(spare: _Spare) -> None:
        """Kill the spare process: it holds nothing that would be lost."""
        spare.line.close()
        spare.child.process.kill()
        spare.child.process.wait()

    # -- processes ---------------------------------------------------------------------------------------------------

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
                self._ended_pids.append(child.process.pid)
                del self._roles[role]
                log.error("role ended", role=role, exit=_exit(code), restart_in=delay, last_lines=_tail(child.log_file))
            if self._clock() >= self._history(role).not_before:
                self._roles[role] = self._start(role, command, withheld=self._withheld_from_roles)

    def _tend_batch_drivers(self) -> None:
        """Report an ended driver's work as lost at once, so that its batch need not wait for the time limit."""
        if self._batch_drivers is None:
            return
        self._ended_pids += self._batch_drivers.tick()

    def _look_at_left_processes(self) -> None:
        """Report at once that an earlier agent here, which was killed, and its processes have ended."""
        if self._left_processes is None:
            return
        if gone := self._left_processes.take_gone():
            log.warning("processes of an agent that was killed are gone", pids=gone)
            self._ended_pids += gone
        self._left_processes.note(self._running_pids())

    def _running_pids(self) -> list[int]:
        """Return the pids of all processes that have not been found to have ended."""
        children = [*(process.child for process in self._processes), *self._roles.values()]
        drivers = [] if self._batch_drivers is None else self._batch_drivers.pids()
        return [*(child.process.pid for child in children), *drivers]

    def _report_ended_pids(self, connection: sa.Connection) -> None:
        """End the rows of processes that are known to have ended: their parent saw it, or a look did not find them."""
        machine = socket.gethostname()
        while self._ended_pids:
            pid = self._ended_pids[0]
            if pid in self._running_pids():
                # A child of this agent got the pid while the driver log was unavailable. Only heartbeats can tell whose
                # rows those are.
                self._ended_pids.popleft()
                continue
            # A batch run in that process has its own row, under the machine's name.
            end_processes_of_pid(connection, hosts=[self._host, machine], pid=pid, why=CRASHED)
            self._ended_pids.popleft()
            # A tracker has no row there; ending its leadership lets the next tracker lead at once. Agents without a
            # tracker may lack the right to ask. Asked once: a killed tracker's last statement may hold the row for
            # long, and an agent that waited for it again and again would send no heartbeat. The next tracker then leads
            # after the time limit.
            if self._role_commands and end_leadership_of(connection, holder_name(machine, pid)):
                log.info("the leading tracker has ended", pid=pid)

    def _start(
        self, name: str, command: Sequence[str], *, withheld: Collection[str], stdin: int = subprocess.PIPE
    ) -> _AgentChild:
        log_file = self._log_directory / f"{name}.log"
        with open_child_log(log_file) as output:
            process = subprocess.Popen(  # noqa: S603  our own command
                command,
                env=environment_without(withheld),
                # The other end of this pipe or socket is the agent's. The child stops when it reads the end of it.
                stdin=stdin,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        log.info("child started", child=name, pid=process.pid)
        return _AgentChild(name, process, self._clock(), log_file)

    def _ask_to_stop(self, child: _AgentChild) -> None:
        """Send SIGTERM first, and SIGKILL when the grace period is over."""
        if child.stopping_since is None:
            child.stopping_since = self._clock()
            child.process.send_signal(signal.SIGTERM)
        elif self._clock() - child.stopping_since > STOP_GRACE_SECONDS:
            child.process.kill()
            log.warning("child did not stop in time, killed", child=child.name, pid=child.process.pid)

    def _stop_all(self) -> None:
        """Stop all children, receivers first: they drain without the tracker."""
        if self._batch_drivers is not None:
            self._batch_drivers.drain()
        if self._spare is not None:
            self._end_spare(self._spare)
            self._spare = None
        for group in ([process.child for process in self._processes], list(self._roles.values())):
            for child in group:
                self._ask_to_stop(child)
            deadline = self._clock() + STOP_GRACE_SECONDS
            for child in group:
                try:
                    child.process.wait(max(0.0, deadline - self._clock()))
                except subprocess.TimeoutExpired:
                    log.warning("child did not stop in time, killed", child=child.name, pid=child.process.pid)
                    child.process.kill()
                    child.process.wait()
        if self._batch_drivers is not None:
            self._ended_pids += self._batch_drivers.stop()
        for process in self._processes:
            process.line.close()
        self._processes.clear()
        self._roles.clear()

    def _sign_off(self) -> None:
        if self._process_id is None:
            return
        try:
            with connect(self._engine) as connection:
                self._report_ended_pids(connection)
                if self._left_processes is not None:
                    self._left_processes.forget()
                release_receivers_of_agent(connection, agent_id=self._process_id, why="its agent was stopped")
                deregister_process(connection, self._process_id)
        except SURVIVED as error:
            log.warning("could not sign off; the tracker will see this agent's heartbeat end", error=str(error))

    def _history(self, name: str) -> _History:
        return self._histories.setdefault(name, _History(Backoff(FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS)))


def _receiver_name(receiver_id: int) -> str:
    return f"receiver-{receiver_id}"


def _say(process: _StartedProcess, message: Message) -> bool:
    """Send a message; return whether it went out. The caller sends a failed one again at its next look."""
    try:
        process.line.send(encode(message))
    except OSError:
        return False
    return True


def _hear(process: _StartedProcess) -> Iterator[Message]:
    """Yield all messages that the process has sent so far."""
    try:
        while data := process.line.recv(65536):
            yield from process.lines.feed(data)
    except BlockingIOError:
        return
    except (OSError, ValueError) as error:
        log.warning("the line to a receiver process failed", child=process.child.name, error=str(error))


def _exit(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _tail(log_file: Path) -> str:
    try:
        with log_file.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 16_384))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(its log can't be read: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])
