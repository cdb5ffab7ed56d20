"""Place one receiver, as the leading tracker places several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from collections.abc import Sequence


def schedule_receiver(
    connection: sa.Connection, *, term: int, receiver_id: int, agent_id: int, why: str, only_host: str | None = None
) -> str:
    """Place an INACTIVE receiver on an agent; return 'scheduled', 'not inactive' or 'deposed'."""
    outcomes: Sequence[str] = (
        connection.execute(
            sa.text(
                "SELECT outcome FROM forebay.schedule_receivers(:term, CAST(:receivers AS bigint[]), "
                "CAST(:agents AS bigint[]), CAST(:whys AS text[]), CAST(:hosts AS text[]))"
            ),
            {"term": term, "receivers": [receiver_id], "agents": [agent_id], "whys": [why], "hosts": [only_host]},
        )
        .scalars()
        .all()
    )
    return outcomes[0] if outcomes else "not inactive"
