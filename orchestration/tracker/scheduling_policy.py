"""Where receivers are placed: pure, state in and plan out (the original's ReceiverSchedulingPolicy, P01)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    """A live agent: `running` receivers are placed on it, `slots` is the most that may be."""

    agent_id: int
    host: str
    slots: int
    running: int


def schedule_receivers(receiver_ids: Sequence[int], agents: Sequence[AgentCapacity]) -> dict[int, int]:
    """Place each receiver on the agent with the fewest (the first on ties), never over its slots.

    Returns agent ids by receiver id; a receiver for which there is no slot is left out, and is placed when there is.
    """
    load = {agent.agent_id: agent.running for agent in agents}
    plan: dict[int, int] = {}
    for receiver_id in receiver_ids:
        free = [agent for agent in agents if load[agent.agent_id] < agent.slots]
        if not free:
            break
        chosen = min(free, key=lambda agent: load[agent.agent_id])
        load[chosen.agent_id] += 1
        plan[receiver_id] = chosen.agent_id
    return plan
