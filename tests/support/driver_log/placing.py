"""Place one receiver, as the leading tracker places several."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.receivers.receivers import Placing, schedule_receivers

if TYPE_CHECKING:
    import sqlalchemy as sa


def schedule_receiver(
    connection: sa.Connection, *, term: int, receiver_id: int, agent_id: int, why: str, only_host: str | None = None
) -> bool:
    """Place a receiver on an agent; return False if it is not INACTIVE, or another tracker leads."""
    placing = Placing(receiver_id, agent_id, why, only_host)
    return receiver_id in schedule_receivers(connection, term=term, placings=[placing])
