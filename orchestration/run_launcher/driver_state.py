"""What a batch driver is doing, and what it may do next."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)


class DriverState(StrEnum):
    """A driver's life; one that is declared dead has none (it exits at once, whatever it is doing).

    Others see of it what ``BatchDriverState`` says.
    """

    STARTING = "starting"  # loads the code and starts Spark; takes no runs
    IDLE = "idle"  # waits for a run
    RUNNING = "running"  # runs one
    CANCELLING = "cancelling"  # somebody wants the run's end
    DRAINING = "draining"  # takes what nobody else would, and ends
    ENDED = "ended"


DRIVER_TRANSITIONS: Mapping[DriverState, frozenset[DriverState]] = {
    DriverState.STARTING: frozenset({DriverState.IDLE, DriverState.DRAINING}),
    DriverState.IDLE: frozenset({DriverState.RUNNING, DriverState.DRAINING}),
    # A run that ends between two looks may be cancelled in vain.
    DriverState.RUNNING: frozenset({DriverState.IDLE, DriverState.CANCELLING}),
    DriverState.CANCELLING: frozenset({DriverState.IDLE}),
    DriverState.DRAINING: frozenset({DriverState.RUNNING, DriverState.ENDED}),
    DriverState.ENDED: frozenset(),
}


class IllegalTransitionError(RuntimeError):
    """A batch driver went where its table of transitions does not lead: this is a bug in Forebay."""


class DriverStates:
    """The state of one driver, and the one function that moves it. The main thread moves it, but for CANCELLING."""

    def __init__(self) -> None:
        """It begins as STARTING."""
        self.state = DriverState.STARTING

    def move(self, to: DriverState, why: str = "") -> None:
        """Go on. Raises IllegalTransitionError."""
        if to not in DRIVER_TRANSITIONS[self.state]:
            raise IllegalTransitionError(f"{self.state} -> {to}")
        log.debug("batch driver", was=self.state.value, now=to.value, why=why)
        self.state = to
