"""Hold what the settings say about placement, for the tracker. Decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from orchestration.policies.rebalancing_policy import MoveLimits

if TYPE_CHECKING:
    from orchestration.declarations.settings import Settings


_NO_MOVES = MoveLimits(is_on=False, interval_seconds=0.0, host_seconds=0.0)


@dataclass(frozen=True, slots=True)
class PlacementRules:
    """Say when receivers are first placed, and when they are moved. The default: at once, and only by request.

    `min_agents`: first placements wait for no more agents than this (None: for all that may come), and for
    `settle_seconds` after the newest agent registered at most.
    """

    min_agents: int | None = None
    settle_seconds: float = 0.0
    moves: MoveLimits = _NO_MOVES

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the rules of these settings."""
        return cls(
            min_agents=settings.placement_min_agents,
            settle_seconds=settings.placement_settle.total_seconds(),
            moves=MoveLimits(
                is_on=settings.rebalance,
                interval_seconds=settings.rebalance_interval.total_seconds(),
                host_seconds=settings.rebalance_host_age.total_seconds(),
            ),
        )
