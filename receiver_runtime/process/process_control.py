"""Exchange lines between an agent and its receiver process, over the socket that is the process's standard input.

The agent says which receivers to run and to stop; the process reports how each ended. When the socket closes, the other
side is gone. So nothing depends on a line alone: a process that ends has ended all of its receivers, whatever it said,
and the driver log has what a receiver did.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

_LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class ControlledRun:
    """Tell the process to run this receiver under this assignment."""

    receiver_id: int
    assignment: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Tell the process to stop this receiver, drained."""

    receiver_id: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Tell the agent that the process runs this receiver. The first such message shows that the process works."""

    receiver_id: int
    assignment: int


@dataclass(frozen=True, slots=True)
class Declined:
    """Tell the agent that the process is ending, or still runs that receiver; nothing of it was begun."""

    receiver_id: int
    assignment: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Tell the agent that this receiver has ended, everything of it is written, and the others go on."""

    receiver_id: int
    assignment: int
    code: ExitCode
    reason: str


Message = ControlledRun | Stop | Accepted | Declined | Ended


def encode(message: Message) -> bytes:
    """Return a message as its line."""
    match message:
        case ControlledRun(receiver_id, assignment):
            line = f"run {receiver_id} {assignment}"
        case Stop(receiver_id):
            line = f"stop {receiver_id}"
        case Accepted(receiver_id, assignment):
            line = f"accepted {receiver_id} {assignment}"
        case Declined(receiver_id, assignment):
            line = f"declined {receiver_id} {assignment}"
        case Ended(receiver_id, assignment, code, reason):
            said = shortened(" ".join(reason.split()), _LONGEST_REASON)
            line = f"ended {receiver_id} {assignment} {int(code)} {said}"
    return line.encode() + b"\n"


def decode(line: str) -> Message:
    """Return a line as its message. Raises ValueError for anything else."""
    match line.split(" ", 4):
        case ["run", receiver_id, assignment]:
            return ControlledRun(int(receiver_id), int(assignment))
        case ["stop", receiver_id]:
            return Stop(int(receiver_id))
        case ["accepted", receiver_id, assignment]:
            return Accepted(int(receiver_id), int(assignment))
        case ["declined", receiver_id, assignment]:
            return Declined(int(receiver_id), int(assignment))
        case ["ended", receiver_id, assignment, code, reason]:
            return Ended(int(receiver_id), int(assignment), ExitCode(int(code)), reason)
        case _:
            raise ValueError(f"{line!r} is no line that an agent and its receiver process know")


class Lines:
    """Put lines together from the pieces that arrive."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that are complete now. Raises ValueError as ``decode`` does."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield decode(line.decode("utf-8", errors="replace"))


def parse_receiver(value: str) -> tuple[int, int]:
    """Parse ``12:3``, as on the command line, into (receiver id, assignment). Raises ValueError."""
    receiver_id, separator, assignment = value.partition(":")
    if not separator or not receiver_id.isdecimal() or not assignment.isdecimal():
        raise ValueError(f"{value!r}: give RECEIVER_ID:ASSIGNMENT, as 12:3")
    return int(receiver_id), int(assignment)


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the agent's end, which never waits, and the process's."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.settimeout(0)
    return ours, theirs
