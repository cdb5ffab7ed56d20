"""Record in `source_lag` what sources have that receivers have not read. Nothing is decided by these rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

#: The source and the partition.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Unread:
    """Say how much a source has in one place (a partition, file, queue or consumer) that the receiver has not read.

    Args:
        amount: how much, in ``unit``.
        unit: ``"records"``, ``"bytes"``, ``"files"`` or ``"messages"``.
        end: the position behind the newest record that the source has, where it has positions.
        oldest_at: when the oldest unread record came, in seconds since 1970; None: unknown.
        redelivered: messages that the source has sent again and that are not acknowledged.
        read: how many were read so far, where the source has no positions: only the age follows from it. It may begin
            again, and other receivers' reads may be missing in it.
    """

    amount: int
    unit: str
    end: int | None = None
    oldest_at: float | None = None
    redelivered: int | None = None
    read: int | None = None


@dataclass(frozen=True, slots=True)
class LagReport:
    """Hold what has changed for one receiver: places and what is unread there, and the places that it reads no longer.

    ``whole``: the first report under a claim; what the receiver said under an earlier claim is forgotten.
    """

    receiver_id: int
    whole: bool
    unread: Mapping[Place, Unread]
    gone: Collection[Place] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the report as the function `report_source_lag` takes it."""
        return {
            "receiver": self.receiver_id,
            "whole": self.whole,
            "gone": [{"source": source, "partition": partition} for source, partition in self.gone],
            "rows": [
                {
                    "source": source,
                    "partition": partition,
                    "unread": one.amount,
                    "unit": one.unit,
                    "source_position": one.end,
                    "oldest_at": one.oldest_at,
                    "redelivered": one.redelivered,
                }
                for (source, partition), one in self.unread.items()
            ],
        }


def report_source_lag(connection: sa.Connection, *, process_id: int, reports: Sequence[LagReport]) -> set[int]:
    """Record reports; return the receivers whose report is recorded, which are those that the process holds.

    Locks: the written rows.
    """
    with named_failures():
        recorded: list[int] = connection.execute(
            sa.text("SELECT forebay.report_source_lag(:process, CAST(:reports AS jsonb))"),
            {"process": process_id, "reports": json.dumps([report.as_json() for report in reports])},
        ).scalar_one()
    return set(recorded)
