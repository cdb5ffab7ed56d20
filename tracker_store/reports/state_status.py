"""Read what the view `state_status` says of the outputs that keep a state. It changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class StateStatus:
    """Hold a row of the view; `keys` is None where it is not known, `replay` where none is unfinished."""

    pipeline: str
    output: str
    batch_time: datetime
    attempt: int
    keys: int | None
    versions: int
    stored_bytes: int
    next_expiry: datetime | None
    schema_version: int
    replay: int | None
    replay_state: str | None
    replay_from: datetime | None
    replayed_to: datetime | None
    replay_to: datetime | None


def list_states(connection: sa.Connection) -> list[StateStatus]:
    """Return the state of each output that has one, by name. No locks; costs the stored versions."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT pipeline, output, batch_time, attempt, keys, versions, stored_bytes, next_expiry, schema_version,
                    replay, replay_state, replay_from, replayed_to, replay_to
                FROM forebay.state_status
                ORDER BY pipeline, output
            """)
        ).all()
    return [StateStatus(*row) for row in rows]
