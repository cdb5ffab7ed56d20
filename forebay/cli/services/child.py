"""Declare the children of a supervisor: how each starts, restarts and stops, its states, and its events.

It owns the table of a child's states. It never starts a process.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path


class ChildState(StrEnum):
    """Name a child's state; see `CHILD_TRANSITIONS`."""

    NEW = "new"
    STARTING = "starting"
    """The process runs and is not ready yet."""
    READY = "ready"
    WAITING = "waiting"
    """The process has ended; the next one starts after a delay."""
    FAILED = "failed"
    """The child was restarted as often as its policy allows."""
    STOPPED = "stopped"


CHILD_TRANSITIONS: dict[ChildState, frozenset[ChildState]] = {
    ChildState.NEW: frozenset({ChildState.STARTING, ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.STARTING: frozenset({ChildState.READY, ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.READY: frozenset({ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.WAITING: frozenset({ChildState.STARTING, ChildState.WAITING, ChildState.FAILED, ChildState.STOPPED}),
    ChildState.FAILED: frozenset(),
    ChildState.STOPPED: frozenset(),
}


class ChildEventKind(StrEnum):
    """Name a kind of event in a child's life."""

    STARTED = "started"
    READY = "ready"
    EXITED = "exited"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """Report one event in a child's life.

    pid: the command's own (not its guard's), None where there is none. exit_code: as in a shell, 128 + N for signal N.
    restarts: how often the child has been restarted so far.
    """

    kind: ChildEventKind
    name: str
    pid: int | None = None
    exit_code: int | None = None
    restarts: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Say how to restart a child that has ended, with any exit code: with backoff.

    first, most: seconds of delay after the first failure, and at most. jitter: share by which a delay varies, so that
    several children do not restart at the same time. healthy_after: seconds of life after which earlier failures no
    longer count. attempts: restarts in a row before the child fails for good; None: no limit, 0: no restart.
    """

    first: float = 0.2
    factor: float = 2.0
    most: float = 15.0
    jitter: float = 0.2
    healthy_after: float = 30.0
    attempts: int | None = None

    def delay(self, failures: int, draw: float) -> float:
        """Return the seconds before a restart. failures: in a row, from 1. draw: a random number from 0 to 1."""
        # The exponent is bounded, because the power of a float overflows after a night of failures.
        plain = min(self.most, self.first * self.factor ** min(failures - 1, 64))
        return plain * (1 + self.jitter * (2 * draw - 1))


@dataclass(frozen=True, slots=True)
class Child:
    """Declare a child process.

    environment: added to the supervisor's own, or the whole environment (`inherit_environment=False`).
    withheld: variables of secrets that the child does not need, and does not inherit.
    guarded: a guard (`forebay.cli.services.guard`) runs the command and ends it with the supervisor: for programs that
        are not Forebay's. A child without a guard must watch its standard input, a pipe, and end when that closes.
    ready: asked every 0.1 s, in the child's own thread, until it returns True; an error counts as not ready yet.
        None: the child is ready as soon as it runs.
    ready_within: seconds; a process that is not ready by then is ended, and counts as failed.
    stop_signal, stop_grace: the signal that ends the process in order, and the seconds after which it is killed.
    left_grace: seconds that the process's own children have to end after the process has ended on its own, before they
        are killed and the next process is started. None: stop_grace.
    log_file: None: FOREBAY_HOME/logs/NAME.log.
    user, group: ids to run the command as; for guarded children only.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    inherit_environment: bool = True
    withheld: frozenset[str] = frozenset()
    directory: Path | None = None
    guarded: bool = True
    ready: Callable[[], bool] | None = None
    ready_within: float = 60.0
    restart: RestartPolicy = RestartPolicy()
    stop_signal: signal.Signals = signal.SIGTERM
    stop_grace: float = 10.0
    left_grace: float | None = None
    log_file: Path | None = None
    user: int | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class ChildStatus:
    """Describe a child now. pid: the command's own."""

    name: str
    state: ChildState
    pid: int | None
    restarts: int


class SupervisorError(Exception):
    """Please report this bug: the supervisor was used in a way it is not made for."""

    def __init__(self, detail: str | None = None, advice: str | None = None) -> None:
        advice = advice or " ".join((type(self).__doc__ or "").split())
        super().__init__(f"{detail}. {advice}" if detail else advice)
