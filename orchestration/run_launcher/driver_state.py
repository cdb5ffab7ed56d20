"""Define the states of a batch driver and the transitions between them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)


class DriverState(StrEnum):
    """Name a driver's state in its own process; a driver that is declared dead exits at once from any state.

    Other processes see its ``BatchDriverState`` in the driver log.
    """

    STARTING = "starting"  # loads the code and starts Spark; takes no runs
    IDLE = "idle"  # waits for a run
    RUNNING = "running"  # executes a run
    CANCELLING = "cancelling"  # the run is to be cancelled
    DRAINING = "draining"  # executes the runs that no other driver would take, and ends
    ENDED = "ended"


DRIVER_TRANSITIONS: Mapping[DriverState, frozenset[DriverState]] = {
    DriverState.STARTING: frozenset({DriverState.IDLE, DriverState.DRAINING}),
    DriverState.IDLE: frozenset({DriverState.RUNNING, DriverState.DRAINING}),
    # A run may end before its cancellation is noticed: then it never becomes CANCELLING.
    DriverState.RUNNING: frozenset({DriverState.IDLE, DriverState.CANCELLING}),
    DriverState.CANCELLING: frozenset({DriverState.IDLE}),
    DriverState.DRAINING: frozenset({DriverState.RUNNING, DriverState.ENDED}),
    DriverState.ENDED: frozenset(),
}


class DriverStates:
    """Hold the state of one driver. Only `move` changes it; the main thread calls it, except for CANCELLING."""

    def __init__(self) -> None:
        """Begin in STARTING."""
        self.state = DriverState.STARTING

    def move(self, to: DriverState, why: str = "") -> None:
        """Change the state to `to`. Raises RuntimeError."""
        if to not in DRIVER_TRANSITIONS[self.state]:
            raise RuntimeError(f"{self.state} -> {to}")
        log.debug("batch driver", was=self.state.value, now=to.value, why=why)
        self.state = to
