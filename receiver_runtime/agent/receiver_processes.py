"""Run receivers in processes: start, join and stop them as they are placed, and judge how each of them ended.

Several receivers may share a process, except those whose stream wants a process of its own. Each ends by itself, and
the process reports it. A crash ends all receivers of the process and counts against each of them. They are then
suspected for a while: suspects are started again only with other suspects, in ever smaller groups. So after a few
crashes the faulty receiver is alone in its process and crashes no other. The first crash splits no group, because most
crashes are not a receiver's fault.

A fenced receiver is not started again before the tracker has made a newer assignment, unless no process has the
receiver under this one. It never decides where a receiver runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_process import STOP_GRACE_SECONDS, describe_exit
from receiver_runtime.agent.crash_history import MAX_CRASHES, CrashHistory
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
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from receiver_runtime.agent.child_process import ChildProcess, ChildStarter
    from receiver_runtime.agent.pending_reports import PendingReports
    from receiver_runtime.agent.spare_keeper import SpareKeeper

# Each further crash reduces groups of suspects to a quarter: a shift by two bits.
_SPLIT_BITS = 2
#: With more receivers than this on a host, they share processes: its connections to the driver log stay bounded.
MOST_ISOLATED = 16
# A process that hangs in its disk may survive SIGKILL. With this many of a receiver's processes left hanging, its next
# process waits until one of them has ended.
_MOST_LEFT_HANGING = 3

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Member:
    """Hold a receiver in a process. `accepted`: the process was started with it, or has said that it runs it."""

    assignment: int
    started: float
    accepted: bool
    stopping_since: float | None = None


@dataclass(slots=True, eq=False)
class StartedProcess:
    """Hold a process that runs receivers, and the agent's end of the line to it."""

    child: ChildProcess
    line: socket.socket
    members: dict[int, Member]
    lines: Lines = field(default_factory=Lines)
    # Whether the process has begun to run receivers.
    begun: bool = False
    # Receivers that failed here, or did not stop in time: they must not be started here again.
    strays: set[int] = field(default_factory=set)


class ReceiverProcesses:
    """Hold the processes that run receivers. Only the agent's thread uses it.

    Args:
        command: the command that runs these (receiver id, assignment) in one process.
        per_process: how many receivers may share a process; with 1 each is isolated from all others. None: 1 for up to
            MOST_ISOLATED receivers, and as many more as keep the number of processes at that.
        reports: for the driver log.
        clock: monotonic, in seconds.
    """

    def __init__(
        self,
        command: Callable[[Sequence[tuple[int, int]]], Sequence[str]],
        *,
        per_process: int | None,
        starter: ChildStarter,
        spare: SpareKeeper,
        reports: PendingReports,
        clock: Callable[[], float],
    ) -> None:
        self._command = command
        self._is_sharing_chosen = per_process is None
        # For now, if the agent chooses: 1 until it knows its receivers.
        self._per_process = per_process or 1
        self._starter = starter
        self._spare = spare
        self._reports = reports
        self._clock = clock
        self.processes: list[StartedProcess] = []
        self._histories: defaultdict[int, CrashHistory] = defaultdict(CrashHistory)
        # Receivers that must not share their process, by the newest placements.
        self._alone: set[int] = set()

    # -- ends --------------------------------------------------------------------------------------------------------

    def take_ended(self) -> list[int]:
        """Read what each process has said, and remove those that have ended; return their pids."""
        ended = []
        for process in list(self.processes):
            # Poll first: then everything that the process said before its end is read.
            code = process.child.process.poll()
            for message in _receive(process):
                self._handle(process, message)
            if code is not None:
                process.line.close()
                self.processes.remove(process)
                ended.append(process.child.process.pid)
                self._process_ended(process, code)
        return ended

    def _handle(self, process: StartedProcess, message: Message) -> None:
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
                if code in (ExitCode.FAILED, ExitCode.HANGING):
                    # Its code may still do anything in that process.
                    process.strays.add(receiver_id)
                if member is not None:
                    self._receiver_ended(receiver_id, member, code, reason)
            case _:
                log.warning("a receiver process said what only an agent says", child=process.child.name)

    def _receiver_ended(self, receiver_id: int, member: Member, code: ExitCode, reason: str) -> None:
        history = self._histories[receiver_id]
        if member.stopping_since is not None or code is ExitCode.STOPPED:
            history.refuse(member.assignment)
            log.info("receiver ended", receiver_id=receiver_id, reason=reason)
        elif code is ExitCode.FENCED:
            history.refused_assignment = history.fenced_assignment = member.assignment
            # It is started again under that assignment only if no process has it. Each time later, to be no load.
            history.count_crash(self._clock(), member.started)
            log.warning("receiver was fenced", receiver_id=receiver_id, assignment=member.assignment, reason=reason)
        else:
            if code is ExitCode.HANGING:
                # It makes its process end: do not start it again together with receivers that are not at fault.
                history.suspect(self._clock())
            # It failed in good order: it reported why in the driver log, and ended no other receiver. If the failure is
            # final, its row is FAILED and it is not placed here any more.
            delay = history.count_crash(self._clock(), member.started)
            self._give_up_after_many(receiver_id, member, reason)
            log.warning("receiver failed", receiver_id=receiver_id, reason=reason, restart_in=delay)

    def _process_ended(self, process: StartedProcess, code: int) -> None:
        """Count a crash for each receiver whose end the process did not report, whatever the exit code."""
        crashed: dict[int, Member] = {}
        for receiver_id, member in process.members.items():
            if member.stopping_since is not None:
                self._histories[receiver_id].refuse(member.assignment)
            elif member.accepted:
                crashed[receiver_id] = member
        log.info("receiver process ended", child=process.child.name, exit=describe_exit(code), crashed=len(crashed))
        if not crashed:
            return
        now = self._clock()
        tail = process.child.log_tail()
        histories = {receiver_id: self._histories[receiver_id] for receiver_id in crashed}
        # One delay for all, so that they come back together.
        delay = max(
            history.count_crash(now, crashed[receiver_id].started) for receiver_id, history in histories.items()
        )
        what = f"receiver process {describe_exit(code)}" + (
            f" with {len(crashed)} receivers" if len(crashed) > 1 else ""
        )
        for receiver_id, member in crashed.items():
            history = histories[receiver_id]
            if process.begun:
                # If the process never ran a receiver, no receiver is at fault, and smaller groups would not help.
                history.suspect(now)
            history.not_before = now + delay
            message = f"{what}; crash {history.crashes}, restart in {delay:.1f} s"
            log.error(message, receiver_id=receiver_id)
            self._reports.event(receiver_id, ReceiverEventKind.EXITED, message, tail)
            self._give_up_after_many(receiver_id, member, what)

    def _give_up_after_many(self, receiver_id: int, member: Member, what: str) -> None:
        history = self._histories[receiver_id]
        if history.crashes >= MAX_CRASHES:
            history.refused_assignment, history.fenced_assignment = member.assignment, -1
            reason = f"crashed {history.crashes} times in a row, the last time: {what}"
            # A person who starts it again has fixed something, or wants the same number of attempts once more.
            history.crashes = 0
            history.backoff.reset()
            self._reports.failed(receiver_id, member.assignment, reason)

    # -- what is placed here -----------------------------------------------------------------------------------------

    def reconcile(self, wanted: Mapping[int, int], *, alone: set[int], unheld: Collection[int]) -> None:
        """Stop what is not placed here any more, and start what is.

        Args:
            wanted: the assignments by receiver.
            alone: receivers that must not share their process.
            unheld: receivers that no process has under their assignment.
        """
        self._alone = alone
        for process in self.processes:
            self._stop_unwanted(process, wanted)
        self.start_wanted(wanted, unheld)

    def _stop_unwanted(self, process: StartedProcess, wanted: Mapping[int, int]) -> None:
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
            process.child.ask_to_stop(now)
            return
        for receiver_id, member in unwanted.items():
            if member.stopping_since is None:
                if _send(process, Stop(receiver_id)):
                    member.stopping_since = now
            elif now - member.stopping_since > STOP_GRACE_SECONDS:
                log.warning(
                    "a receiver did not stop in time; it is left alone, because others share its process",
                    child=process.child.name,
                    receiver_id=receiver_id,
                )
                del process.members[receiver_id]
                process.strays.add(receiver_id)
                self._histories[receiver_id].refuse(member.assignment)

    def start_wanted(self, wanted: Mapping[int, int], unheld: Collection[int] = ()) -> None:
        """Start what is wanted and runs nowhere here, in groups of equal suspicion."""
        if self._is_sharing_chosen:
            # Processes that run go on as they are. They take further receivers when this number has risen.
            self._per_process = max(1, -(-len(wanted.keys() - self._alone) // MOST_ISOLATED))
        running = {receiver_id for process in self.processes for receiver_id in process.members}
        hanging = Counter(stray for process in self.processes if not process.members for stray in process.strays)
        groups: dict[int, list[tuple[int, int]]] = {}
        now = self._clock()
        for receiver_id, assignment in wanted.items():
            history = self._histories[receiver_id]
            may_start = history.may_start(assignment, now, is_unheld=receiver_id in unheld)
            if may_start and receiver_id not in running and hanging[receiver_id] < _MOST_LEFT_HANGING:
                groups.setdefault(history.suspicion(now), []).append((receiver_id, assignment))
        for suspicion, receivers in groups.items():
            size = max(1, self._per_process >> (_SPLIT_BITS * max(0, suspicion - 1)))
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
        now = self._clock()
        for process in self.processes:
            if (
                len(process.members) < size
                and receiver_id not in process.strays
                and self._alone.isdisjoint(process.members)
                and any(member.stopping_since is None for member in process.members.values())
                and all(self._histories[other].suspicion(now) == suspicion for other in process.members)
                and _send(process, ControlledRun(receiver_id, assignment))
            ):
                process.members[receiver_id] = Member(assignment, now, accepted=False)
                return True
        return False

    def _start_receivers(self, receivers: Sequence[tuple[int, int]]) -> None:
        if self._per_process == 1:
            name = f"receiver-{receivers[0][0]}"
        else:
            taken = {process.child.name for process in self.processes}
            name = next(name for number in range(1, len(taken) + 2) if (name := f"receivers-{number}") not in taken)
        spare = self._spare.take(name, receivers)
        if spare is None:
            ours, theirs = socket_pair()
            with theirs:
                child = self._starter.start(name, self._command(receivers), stdin=theirs.fileno())
        else:
            child, ours = spare.child, spare.line
        members = {
            receiver_id: Member(assignment, child.started, accepted=True) for receiver_id, assignment in receivers
        }
        self.processes.append(StartedProcess(child, ours, members))


def _send(process: StartedProcess, message: Message) -> bool:
    """Send a message; return whether it went out. The caller sends a failed one again at its next tick."""
    try:
        process.line.send(encode(message))
    except OSError:
        return False
    return True


def _receive(process: StartedProcess) -> Iterator[Message]:
    """Yield all messages that the process has sent so far."""
    try:
        while data := process.line.recv(65536):
            yield from process.lines.feed(data)
    except BlockingIOError:
        return
    except (OSError, ValueError) as error:
        log.warning("the line to a receiver process failed", child=process.child.name, error=str(error))
