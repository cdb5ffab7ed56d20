"""Read and write `rebalance_requests`: what `forebay agents rebalance` asks of the leading tracker.

A request is a row until the leader finds nothing more to move, so it outlives the leader. Several requests are worked
off together: they ask for the same state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.receivers.leadership import LED

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class RebalanceRequest:
    """Hold a request that is not finished; `listeners`: receivers that listen at their host's address may move too."""

    request_id: int
    listeners: bool


def request_rebalance(connection: sa.Connection, *, listeners: bool) -> int:
    """Ask the leader to rebalance now; returns the request's id. Locks: the new row."""
    with named_failures():
        request_id: int = connection.execute(
            sa.text("INSERT INTO forebay.rebalance_requests (listeners) VALUES (:listeners) RETURNING id"),
            {"listeners": listeners},
        ).scalar_one()
    return request_id


def list_rebalance_requests(connection: sa.Connection) -> Sequence[RebalanceRequest]:
    """Return the requests that are not finished, oldest first. No locks."""
    with named_failures():
        rows = connection.execute(sa.text("SELECT id, listeners FROM forebay.rebalance_requests ORDER BY id")).all()
    return [RebalanceRequest(row.id, row.listeners) for row in rows]


def finish_rebalance_requests(connection: sa.Connection, *, term: int, request_ids: Sequence[int]) -> None:
    """Delete requests: nothing more is to be moved for them. Locks: leadership FOR SHARE, their rows."""
    with named_failures():
        connection.execute(
            sa.text(f"""
                {LED}
                DELETE FROM forebay.rebalance_requests
                WHERE id = ANY (CAST(:ids AS bigint[])) AND EXISTS (SELECT FROM led)
            """),  # noqa: S608  a constant
            {"term": term, "ids": list(request_ids)},
        )
