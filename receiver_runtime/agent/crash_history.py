"""Remember what happened to a receiver, or a role, between two of its processes: crashes, delays, refusals."""

from __future__ import annotations

from dataclasses import dataclass, field

from receiver_runtime.watching.backoff import Backoff

# The first restart is at once; from the second on there is a delay.
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 8.0
#: After this many crashes in a row, which take about two minutes, the receiver is FAILED.
MAX_CRASHES = 20
HEALTHY_AFTER_SECONDS = 60.0
#: Seconds for which a receiver is suspected after a crash of its process; longer than most slow crashes take.
SUSPECT_SECONDS = 900.0


def _backoff() -> Backoff:
    return Backoff(FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS)


@dataclass(slots=True)
class CrashHistory:
    """Hold one receiver's or role's history. Times are on the agent's clock, in seconds."""

    backoff: Backoff = field(default_factory=_backoff)
    crashes: int = 0
    not_before: float = 0.0
    #: How many crashes it has had since it became suspected, and when the last of them was.
    suspicions: int = 0
    last_crash: float = 0.0
    #: Not started again under this assignment or an older one.
    refused_assignment: int = -1
    #: The refused assignment under which its process was fenced; -1: it is refused for another reason.
    fenced_assignment: int = -1

    def count_crash(self, now: float, started: float) -> float:
        """Count a crash and put off the next start; return by how many seconds."""
        if now - started >= HEALTHY_AFTER_SECONDS:
            self.backoff.reset()
            self.crashes = 0
        self.crashes += 1
        delay = self.backoff.next_delay() if self.crashes > 1 else 0.0
        self.not_before = now + delay
        return delay

    def suspicion(self, now: float) -> int:
        """Return how often it is suspected of having crashed its process."""
        return self.suspicions if now - self.last_crash < SUSPECT_SECONDS else 0

    def suspect(self, now: float) -> None:
        """Suspect it: it is not started again together with receivers that are not at fault."""
        self.suspicions = self.suspicion(now) + 1
        self.last_crash = now

    def refuse(self, assignment: int) -> None:
        """Start it no more under this assignment or an older one."""
        self.refused_assignment = max(self.refused_assignment, assignment)

    def may_start(self, assignment: int, now: float, *, is_unheld: bool) -> bool:
        """Return whether it may be started now. ``is_unheld``: no process has it under this assignment."""
        if assignment < self.refused_assignment:
            # Assignments only rise: the driver log has lost the refused one.
            self.refused_assignment = -1
        # A process that was declared dead before it held the receiver: the leader made no newer assignment.
        fenced = assignment == self.fenced_assignment and is_unheld
        return (assignment > self.refused_assignment or fenced) and now >= self.not_before
