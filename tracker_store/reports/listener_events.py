"""Read the events of the driver log in one order that misses none (the view ``listener_events``).

This module owns how a listener continues: after a position, which is the last event that it has seen. It must never
skip an event that is kept, not even after the driver log was restored. Events are written by triggers alone
(``functions/events/record_event.sql``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class EventKind(StrEnum):
    """Name the kinds of events; docs/how-to/listeners.md has what each says, and a later version may have more."""

    BATCH_ALLOCATED = "batch_allocated"
    BATCH_STARTED = "batch_started"
    BATCH_COMPLETED = "batch_completed"
    BATCH_FAILED = "batch_failed"
    BATCH_BLOCKED = "batch_blocked"
    BATCH_QUARANTINED = "batch_quarantined"
    BATCH_DISCARDED = "batch_discarded"
    OUTPUT_COMMITTED = "output_committed"
    REPLAY_STARTED = "replay_started"
    REPLAY_COMPLETED = "replay_completed"
    REPLAY_FAILED = "replay_failed"
    RECEIVER_SCHEDULED = "receiver_scheduled"
    RECEIVER_STARTED = "receiver_started"
    RECEIVER_PAUSED = "receiver_paused"
    RECEIVER_RESUMED = "receiver_resumed"
    RECEIVER_STOPPED = "receiver_stopped"
    RECEIVER_FAILED = "receiver_failed"
    RECEIVER_RESTARTED = "receiver_restarted"
    RECEIVER_CONNECTED = "receiver_connected"
    RECEIVER_ERROR = "receiver_error"
    RECEIVER_EXITED = "receiver_exited"
    RECEIVER_FENCED = "receiver_fenced"
    RECEIVER_LEASE_EXPIRED = "receiver_lease_expired"
    RECEIVER_BAD_RECORD = "receiver_bad_record"
    RECEIVER_SALVAGED = "receiver_salvaged"
    BLOCKS_CLEANED_UP = "blocks_cleaned_up"
    PIPELINE_STARTED = "pipeline_started"
    PIPELINE_STOPPING = "pipeline_stopping"
    PIPELINE_STOPPED = "pipeline_stopped"
    PIPELINE_HALTED = "pipeline_halted"
    PIPELINE_CONTINUED = "pipeline_continued"
    PIPELINE_REMOVED = "pipeline_removed"
    LEADER_CHANGED = "leader_changed"


@dataclass(frozen=True, slots=True)
class EventPosition:
    """Say where a listener continues: after this event. `at` finds the place again after a restore."""

    transaction_id: int
    id: int
    at: datetime


#: The position before all events that are kept.
START = EventPosition(0, 0, datetime(1970, 1, 1, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class ListenerEvent:
    """Hold a row of the view `listener_events`; what the event is not about is None.

    `kind` is an EventKind, or one of a later version.
    """

    event_id: str
    at: datetime
    kind: str
    stream: str | None
    ordinal: int | None
    receiver_id: int | None
    pipeline: str | None
    pipeline_id: int | None
    batch_time: datetime | None
    attempt: int | None
    output: str | None
    term: int | None
    records: int | None
    message: str

    @property
    def position(self) -> EventPosition:
        """Return the position after this event."""
        transaction_id, _, number = self.event_id.partition("-")
        return EventPosition(int(transaction_id), int(number), self.at)

    def as_json(self) -> dict[str, Any]:
        """Return the event as plain values: times are text in ISO format."""
        return {
            name: value.isoformat() if isinstance(value, datetime) else value for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Return the event of which `as_json` made the values; what is missing is None."""
        batch_time = values.get("batch_time")
        return cls(
            **{
                **dict.fromkeys(cls.__slots__),
                **values,
                "at": datetime.fromisoformat(values["at"]),
                "batch_time": None if batch_time is None else datetime.fromisoformat(batch_time),
            }
        )


_COLUMNS = ", ".join(ListenerEvent.__slots__)


def newest_position(connection: sa.Connection) -> EventPosition:
    """Return the position after the newest event that can be seen now. No locks; from the end of an index."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT transaction_id, id, at
                FROM forebay.listener_events
                ORDER BY transaction_id DESC, id DESC LIMIT 1
            """)
        ).one_or_none()
        if row is None:
            row = connection.execute(sa.text("SELECT 0 AS transaction_id, 0 AS id, clock_timestamp() AS at")).one()
    return EventPosition(row.transaction_id, row.id, row.at)


def find_position(connection: sa.Connection, event_id: str) -> EventPosition:
    """Return the position after the event with this id. No locks; one probe. Raises DriverLogError."""
    parts = event_id.split("-")
    row = None
    if len(parts) == 2 and all(part.isdecimal() and len(part) < 19 for part in parts):  # noqa: PLR2004  a bigint's digits
        with named_failures():
            row = connection.execute(
                sa.text("SELECT transaction_id, id, at FROM forebay.events WHERE transaction_id = :t AND id = :i"),
                {"t": int(parts[0]), "i": int(parts[1])},
            ).one_or_none()
    if row is None:
        raise DriverLogError(
            f"the driver log has no event {event_id!r}",
            "It is older than the history, or the driver log was restored: `forebay events` without --after shows"
            " the newest. `forebay events --after start` shows all that are kept.",
        )
    return EventPosition(row.transaction_id, row.id, row.at)


def newest_events(connection: sa.Connection, *, kinds: Iterable[str] = (), limit: int) -> list[ListenerEvent]:
    """Return the newest `limit` events, oldest first; of these kinds, or of all. No locks.

    Costs what it returns; with kinds, the events back to the oldest that it returns.
    """
    with named_failures():
        rows = connection.execute(
            sa.text(f"""
                SELECT {_COLUMNS}
                FROM forebay.listener_events
                WHERE kind = ANY (CAST(:kinds AS text[])) OR cardinality(CAST(:kinds AS text[])) = 0
                ORDER BY transaction_id DESC, id DESC LIMIT :limit
            """),  # noqa: S608  our own names
            {"kinds": list(kinds), "limit": limit},
        ).all()
    return [ListenerEvent(*row) for row in reversed(rows)]


def events_after(connection: sa.Connection, position: EventPosition, *, limit: int) -> Sequence[ListenerEvent]:
    """Return the next events after a position, at most `limit`, in their order. No locks; costs what it returns.

    If the position's event is not in the driver log any more, the next events are those that happened later by the
    clock: it was cleaned up, or the driver log was restored to before it, and transaction ids began again.
    """
    values = {"t": position.transaction_id, "i": position.id, "at": position.at, "limit": limit}
    with named_failures():
        is_there = connection.execute(
            sa.text("""
                SELECT EXISTS (
                    SELECT FROM forebay.events WHERE transaction_id = :t AND id = :i AND at = :at
                )
            """),
            values,
        ).scalar_one()
        rows = connection.execute(
            sa.text(f"""
                SELECT {_COLUMNS}
                FROM forebay.listener_events
                WHERE {"(transaction_id, id) > (:t, :i)" if is_there else "at > :at"}
                ORDER BY transaction_id, id LIMIT :limit
            """),  # noqa: S608  our own names
            values,
        ).all()
    return [ListenerEvent(*row) for row in rows]
